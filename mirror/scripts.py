"""The scripts as commands of an installed package (pyproject.toml names them); each imports its own only."""

from __future__ import annotations

from mirror.errors import run_main


def train() -> None:
    """mirror-train: run_mirror.py"""
    from run_mirror import main

    run_main(main)


def cmlm() -> None:
    """mirror-cmlm: run_cmlm.py"""
    from run_cmlm import main

    run_main(main)


def evaluate() -> None:
    """mirror-eval: run_eval.py"""
    from run_eval import main

    run_main(main)


def encode() -> None:
    """mirror-encode: run_encode.py"""
    from run_encode import main

    run_main(main)


def search() -> None:
    """mirror-search: python -m mirror.search"""
    from mirror.search import main

    run_main(main)


def demo() -> None:
    """mirror-demo: python -m mirror.demo"""
    from mirror.demo import main

    run_main(main)

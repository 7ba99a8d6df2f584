"""Console commands of the installed package, as named in pyproject.toml; each one imports only its own module."""

from __future__ import annotations

from importlib import import_module

from mirror.common.errors import run_main


def train() -> None:
    """mirror-train: run_mirror.py"""
    _run("run_mirror")


def cmlm() -> None:
    """mirror-cmlm: run_cmlm.py"""
    _run("run_cmlm")


def evaluate() -> None:
    """mirror-eval: run_eval.py"""
    _run("run_eval")


def encode() -> None:
    """mirror-encode: run_encode.py"""
    _run("run_encode")


def study() -> None:
    """mirror-study: run_study.py"""
    _run("run_study")


def search() -> None:
    """mirror-search: python -m mirror.tools.search"""
    _run("mirror.tools.search")


def demo() -> None:
    """mirror-demo: python -m mirror.tools.demo"""
    _run("mirror.tools.demo")


def card() -> None:
    """mirror-card: python -m mirror.tools.model_card"""
    _run("mirror.tools.model_card")


def push() -> None:
    """mirror-push: python -m mirror.tools.push"""
    _run("mirror.tools.push")


def export() -> None:
    """mirror-export: python -m mirror.tools.onnx_export"""
    _run("mirror.tools.onnx_export")


def remove_components() -> None:
    """mirror-remove-components: python -m mirror.tools.component_removal"""
    _run("mirror.tools.component_removal")


def _run(module: str) -> None:
    run_main(import_module(module).main)

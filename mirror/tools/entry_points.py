"""Console commands of the installed package, as named in pyproject.toml. Each one imports only its own module."""

from __future__ import annotations

from functools import partial
from importlib import import_module

from mirror.common.errors import run_main


def _run(module: str) -> None:
    run_main(import_module(f"mirror.tools.{module}").main)


train = partial(_run, "train")
cmlm = partial(_run, "train_cmlm")
evaluate = partial(_run, "evaluate")
encode = partial(_run, "encode")
documents = partial(_run, "documents")
search = partial(_run, "search")
compare = partial(_run, "compare")
demo = partial(_run, "demo")
card = partial(_run, "card")
distill = partial(_run, "distill")
push = partial(_run, "push")
export = partial(_run, "onnx")
remove_components = partial(_run, "whitening")

"""Console commands of the installed package, as named in pyproject.toml. Each one imports only its own module."""

from functools import partial
from importlib import import_module

from mirror.common.errors import run_main


def _run(module: str) -> None:
    run_main(import_module(f"mirror.tools.{module}").main)


train, cmlm, evaluate, export = (partial(_run, module) for module in ("train", "train_cmlm", "evaluate", "onnx"))
encode, documents, search = (partial(_run, module) for module in ("encode", "documents", "search"))
compare, demo, card = (partial(_run, module) for module in ("compare", "demo", "card"))
distill, push, remove_components = (partial(_run, module) for module in ("distill", "push", "whitening"))

"""Console commands of the installed package, as named in pyproject.toml. Each one imports only its own module."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from mirror.common.errors import run_main


def _command(name: str, program: str) -> Callable[[], None]:
    """Return the function of a console command, which runs `main` of a script or of `python -m MODULE`."""

    def command() -> None:
        run_main(import_module(program.removeprefix("python -m ").removesuffix(".py")).main)

    command.__doc__ = f"{name}: {program}"
    return command


train = _command("mirror-train", "run_mirror.py")
cmlm = _command("mirror-cmlm", "run_cmlm.py")
evaluate = _command("mirror-eval", "run_eval.py")
encode = _command("mirror-encode", "run_encode.py")
documents = _command("mirror-documents", "python -m mirror.tools.documents")
search = _command("mirror-search", "python -m mirror.tools.search")
compare = _command("mirror-compare", "python -m mirror.tools.compare")
demo = _command("mirror-demo", "python -m mirror.tools.demo")
card = _command("mirror-card", "python -m mirror.tools.card")
distill = _command("mirror-distill", "python -m mirror.tools.distill")
push = _command("mirror-push", "python -m mirror.tools.push")
export = _command("mirror-export", "python -m mirror.tools.onnx")
remove_components = _command("mirror-remove-components", "python -m mirror.tools.whitening")

"""Console commands of the installed package, as named in pyproject.toml. Each one imports only its own module."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from mirror.common.errors import run_main


def _command(module: str) -> Callable[[], None]:
    """Return the function of a console command, which runs `main` of a module of this package."""

    def command() -> None:
        run_main(import_module(module).main)

    command.__doc__ = f"python -m {module}"
    return command


train = _command("mirror.tools.train")
cmlm = _command("mirror.tools.train_cmlm")
evaluate = _command("mirror.tools.evaluate")
encode = _command("mirror.tools.encode")
documents = _command("mirror.tools.documents")
search = _command("mirror.tools.search")
compare = _command("mirror.tools.compare")
demo = _command("mirror.tools.demo")
card = _command("mirror.tools.card")
distill = _command("mirror.tools.distill")
push = _command("mirror.tools.push")
export = _command("mirror.tools.onnx")
remove_components = _command("mirror.tools.whitening")

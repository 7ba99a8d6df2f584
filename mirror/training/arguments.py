"""Parse the command line of run_mirror.py: base model, recipe, corpus, and everything of `MirrorConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror.assets import EMBEDDED_MODEL
from mirror.common.cli import flag
from mirror.common.config_parser import check_flags, parse_flags
from mirror.data.source import CorpusSource
from mirror.training.options import OTHER_DEFAULTS, MirrorOptions


if TYPE_CHECKING:
    from mirror.training.config import MirrorConfig


@dataclass
class ScriptArguments:
    """The model to start from and the recipe."""

    _argument_group_name = "Model and recipe"

    model_name_or_path: str = flag(
        str(EMBEDDED_MODEL),
        "Hub id or path of the model to start from: a masked LM, a sentence-transformers encoder (not for CMLM), or what an "
        "earlier run saved. Default: the small masked LM of this repository.",
    )
    config: str | None = flag(None, "Path to a recipe, a YAML file of flags. Default: none.")


def parse_arguments(
    argv: list[str] | None = None, description: str = ""
) -> tuple[ScriptArguments, CorpusSource, MirrorConfig]:
    """Parse the command line of run_mirror.py. A flag beats the recipe, the recipe beats the preset of the level."""
    _, data, _ = check_flags((ScriptArguments, CorpusSource, MirrorOptions), argv, f"{description}\n{OTHER_DEFAULTS}.")
    data.check_files()
    from mirror.training.config import MirrorConfig  # late: it imports torch

    return parse_flags((ScriptArguments, CorpusSource, MirrorConfig), argv)

"""The command line of run_mirror.py: which model, which corpus, and everything of `MirrorConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror.assets import EMBEDDED_MODEL
from mirror.common.config_parser import parse_flags
from mirror.data.arguments import DataArguments
from mirror.training.config import MirrorConfig


@dataclass
class ScriptArguments:
    model_name_or_path: str = field(
        default=str(EMBEDDED_MODEL),
        metadata={
            "help": "Masked LM to start from: a Hub id or a folder. Default: the small model of this repository."
        },
    )
    config: str | None = field(default=None, metadata={"help": "Recipe: a YAML file of flags; see recipes/."})


def parse_arguments(
    argv: list[str] | None = None, description: str | None = None
) -> tuple[ScriptArguments, DataArguments, MirrorConfig]:
    """The three groups of flags: the command line beats the recipe, the recipe beats the preset of the level.

    Raises:
        InputError: an unknown flag or key, or a value that no flag takes.
    """
    return parse_flags((ScriptArguments, DataArguments, MirrorConfig), argv, description)

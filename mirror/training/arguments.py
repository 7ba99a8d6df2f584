"""The command line of run_mirror.py: which model, which corpus, and everything of `MirrorConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirror.assets import EMBEDDED_MODEL
from mirror.common.config_parser import check_flags, parse_flags
from mirror.data.arguments import DataArguments
from mirror.training.options import MirrorOptions


if TYPE_CHECKING:
    from mirror.training.config import MirrorConfig


@dataclass
class ScriptArguments:
    """Where a run starts from."""

    _argument_group_name = "Model and recipe"

    model_name_or_path: str = field(
        default=str(EMBEDDED_MODEL),
        metadata={
            "help": "Masked LM, or encoder of sentence-transformers, to start from: a Hub id or a folder. Default: the small "
            "masked LM of this repository."
        },
    )
    config: str | None = field(default=None, metadata={"help": "Recipe: a YAML file of flags."})


def parse_arguments(
    argv: list[str] | None = None, description: str | None = None
) -> tuple[ScriptArguments, DataArguments, MirrorConfig]:
    """The three groups of flags: the command line beats the recipe, the recipe beats the preset of the level.

    Torch is imported only once the flags are found sound.

    Raises:
        InputError: an unknown flag or key, a value that no flag takes, or a file that does not exist.
    """
    _, data_args, _ = check_flags((ScriptArguments, DataArguments, MirrorOptions), argv, description)
    data_args.check_files()

    from mirror.training.config import MirrorConfig

    return parse_flags((ScriptArguments, DataArguments, MirrorConfig), argv)

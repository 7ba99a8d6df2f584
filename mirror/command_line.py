"""The command line of every script that trains: flags from dataclasses, and recipes in YAML (`--config`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml
from transformers import HfArgumentParser

from mirror import trust
from mirror.errors import InputError, nearest
from mirror.flags import TRUST, add_trust


class FlagParser(HfArgumentParser):
    """Says what is wrong in one line instead of a screen of usage."""

    def error(self, message: str):
        raise InputError(f"{message}; --help lists the flags")


def parse_flags(
    dataclass_types: tuple[type, ...],
    argv: list[str] | None = None,
    description: str | None = None,
    presets: Callable[[dict], dict] = lambda chosen: {},
) -> tuple:
    """Instances of `dataclass_types`: a flag beats the recipe, the recipe beats `presets`.

    Every script gets the flags of trust too (`mirror.flags.TRUST`), which no recipe can set.

    Args:
        presets: the defaults that follow from the text values that the recipe and the command line chose.

    Raises:
        InputError: an unknown flag or key in the recipe, or a value that no flag takes.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = FlagParser(dataclass_types, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_trust(parser)
    for action in parser._actions:
        if action.dest in ("bf16", "fp16"):  # three-valued: a bare flag means true, no flag means choose
            action.nargs, action.const = "?", True
    typed = _typed(argv)
    recipe = read_recipe(typed["config"], parser) if "config" in typed else {}
    parser.set_defaults(**presets(recipe | typed) | recipe)
    try:
        *parsed, granted, unknown = parser.parse_args_into_dataclasses(args=argv, return_remaining_strings=True)
    except InputError:
        raise
    except ValueError as error:  # TrainingArguments refuses a combination
        raise InputError(" ".join(str(error).split())) from error
    if unknown:
        flags = [option for action in parser._actions for option in action.option_strings]
        raise InputError(f"unknown flag {unknown[0]}{nearest(unknown[0], flags)}")
    trust.grant(**vars(granted))
    return tuple(parsed)


def read_recipe(path: str, parser: argparse.ArgumentParser) -> dict:
    """A flat YAML file of flags, values converted as the command line would.

    Raises:
        InputError: no such file, not a mapping, or a key that is no flag (names the nearest).
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"--config {path}: expected a mapping of flags to values")
    actions = {action.dest: action for action in parser._actions}
    for key in content:
        if key in TRUST:
            raise InputError(f"--config {path}: a recipe cannot set '{key}'; give it on the command line")
        if key not in actions:
            raise InputError(f"--config {path}: unknown key '{key}'{nearest(key, actions)}")
    return {key: _convert(actions[key], value, path) for key, value in content.items()}


def one_of(flag: str, value: str, known: Iterable[str]) -> None:
    """Refuse a value that is not `known`, naming the nearest.

    Raises:
        InputError
    """
    if value not in known:
        raise InputError(f"{flag} '{value}' is unknown; one of {', '.join(known)}{nearest(value, known)}")


def probability(flag: str, value: float, hint: str) -> None:
    """Refuse a value outside [0, 1).

    Raises:
        InputError
    """
    if not 0 <= value < 1:
        raise InputError(f"{flag} is a probability in [0, 1), got {value}; {hint}")


def _typed(argv: list[str]) -> dict[str, str]:
    """What the command line says for the flags that others' defaults may hang on, before it is parsed in full."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for flag in ("config", "level", "model_name_or_path"):
        early.add_argument(f"--{flag}")
    return vars(early.parse_known_args(argv)[0])


def _convert(action: argparse.Action, value, path: str):
    """YAML 1.1 reads 1e-5 as a string, so a string goes through the flag's own type."""
    if not isinstance(value, str) or action.type is None:
        return value
    try:
        return action.type(value)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise InputError(f"--config {path}: {action.dest}: {value!r} is not a valid value") from error

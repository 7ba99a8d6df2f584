"""The command line of every script that trains: flags from dataclasses, and recipes in YAML (`--config`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml
from transformers import HfArgumentParser

from mirror.common import loading_policy
from mirror.common.cli import TRUST, OneLineErrors, add_trust
from mirror.common.errors import InputError, did_you_mean, one_line


class FlagParser(OneLineErrors, HfArgumentParser):
    """Flags from dataclasses."""


def parse_flags(
    dataclass_types: tuple[type, ...], argv: list[str] | None = None, description: str | None = None
) -> tuple:
    """Instances of `dataclass_types`: a flag beats the recipe (`--config`).

    Every script also has the flags of `mirror.common.cli.TRUST`, which no recipe can set.

    Raises:
        InputError: an unknown flag or key in the recipe, or a value that no flag takes.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = FlagParser(dataclass_types, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_trust(parser)
    for action in parser._actions:
        if action.dest in ("bf16", "fp16"):  # three values: a bare flag means true, no flag means automatic
            action.nargs, action.const = "?", True
    recipe_path = _recipe_path(argv)
    parser.set_defaults(**read_recipe(recipe_path, parser) if recipe_path else {})
    try:
        *parsed, granted, unknown = parser.parse_args_into_dataclasses(args=argv, return_remaining_strings=True)
    except InputError:
        raise
    except ValueError as error:  # TrainingArguments refuses a combination
        raise InputError(one_line(error)) from error
    if unknown:
        flags = [option for action in parser._actions for option in action.option_strings]
        raise InputError(f"unknown flag {unknown[0]}{did_you_mean(unknown[0], flags)}")
    loading_policy.grant(**vars(granted))
    return tuple(parsed)


def load_recipe(path: str) -> dict:
    """The content of a recipe, as YAML gives it.

    Raises:
        InputError: no such file, or not a mapping.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"--config {path}: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise InputError(f"--config {path}: expected a mapping of flags to values")
    return content


def read_recipe(path: str, parser: argparse.ArgumentParser) -> dict:
    """A flat YAML file of flags, values converted as the command line would.

    Raises:
        InputError: no such file, not a mapping, or a key that is not a flag (suggests the most similar).
    """
    content = load_recipe(path)
    actions = {action.dest: action for action in parser._actions}
    for key in content:
        if key in TRUST:
            raise InputError(f"--config {path}: a recipe cannot set '{key}'; give it on the command line")
        if key not in actions:
            raise InputError(f"--config {path}: unknown key '{key}'{did_you_mean(key, actions)}")
    return {key: _convert(actions[key], value, path) for key, value in content.items()}


def _recipe_path(argv: list[str]) -> str | None:
    """What `--config` says, before the command line is parsed in full: a recipe sets the defaults of that."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config")
    return early.parse_known_args(argv)[0].config


def _convert(action: argparse.Action, value, path: str):
    """YAML 1.1 reads 1e-5 as a string, so a string goes through the flag's own type."""
    if not isinstance(value, str) or action.type is None:
        return value
    try:
        return action.type(value)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise InputError(f"--config {path}: {action.dest}: {value!r} is not a valid value") from error

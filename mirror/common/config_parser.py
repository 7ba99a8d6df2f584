"""The command line of every script that trains: flags from dataclasses, and recipes in YAML (`--config`)."""

from __future__ import annotations

import argparse
import json
import sys
from copy import copy
from pathlib import Path

import yaml
from transformers import HfArgumentParser

from mirror.common import loading_policy
from mirror.common.cli import TRUST, OneLineErrors, Parser, add_trust
from mirror.common.errors import InputError, did_you_mean, library_errors, reason


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
    except Exception as error:  # TrainingArguments refuses a combination, in many ways
        raise InputError(reason(error)) from error
    if unknown:
        flags = [option for action in parser._actions for option in action.option_strings]
        raise InputError(f"unknown flag {unknown[0]}{did_you_mean(unknown[0], flags)}")
    loading_policy.grant(**vars(granted))
    return tuple(parsed)


def read_recipe(path: str, parser: argparse.ArgumentParser) -> dict:
    """A flat YAML file of flags, values converted as the command line would.

    Raises:
        InputError: no such file, not a mapping, or a key that is not a flag (suggests the most similar).
    """
    with library_errors(f"--config {path}"):
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise InputError(f"--config {path}: expected a mapping of flags to values")
    actions = {action.dest: action for action in parser._actions if action.dest != "help"}
    for key in content:
        if key in TRUST:
            raise InputError(f"--config {path}: a recipe cannot set '{key}'; give it on the command line")
        if key not in actions:
            raise InputError(f"--config {path}: unknown key '{key}'{did_you_mean(str(key), actions)}")
    return {key: _convert(actions[key], value, path) for key, value in content.items()}


def _recipe_path(argv: list[str]) -> str | None:
    """What `--config` says, before the command line is parsed in full: a recipe sets the defaults of that."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config")
    return early.parse_known_args(argv)[0].config


def _convert(action: argparse.Action, value, path: str):
    """The value as the command line would read it, so that 1e-5 is a number and one name is a list of one."""
    if value is None:
        return action.default
    if isinstance(value, dict) and "dict" in str(action.type):  # which a command line cannot give
        return value
    values = value if isinstance(value, list) else [value]
    words = [json.dumps(item) if isinstance(item, dict | list) else str(item) for item in values]
    flag, one_flag, only = action.option_strings[0], Parser(None), copy(action)
    only.option_strings = [flag]  # without its other spellings, which messages would list
    one_flag._add_action(only)
    try:
        parsed, rest = one_flag.parse_known_args([f"{flag}={words[0]}"] if len(words) == 1 else [flag, *words])
    except InputError as error:
        raise InputError(f"--config {path}: {error}") from error
    if rest:
        raise InputError(f"--config {path}: {action.dest} takes one value, got {value}")
    return getattr(parsed, action.dest)

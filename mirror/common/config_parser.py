"""The command line of every script that trains: flags from dataclasses, and recipes in YAML (`--config`).

Importing transformers' `TrainingArguments` takes seconds, because it imports torch. So a command line is parsed twice: first by
`check_flags`, which needs only our own dataclasses and the names of the library's flags, then completely by `parse_flags`.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from copy import copy
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path

import yaml
from transformers import HfArgumentParser

from mirror.common import trust
from mirror.common.cli import TRUST, HelpFormatter, OneLineErrors, Parser, add_trust
from mirror.common.errors import InputError, did_you_mean, library_errors, reason


RECIPES = Path(__file__).resolve().parents[1] / "recipes"
LIBRARY_HELP = """\
Every flag of transformers' TrainingArguments works too, for example --seed, --max_steps, --save_steps,
--resume_from_checkpoint true, --report_to tensorboard and --push_to_hub; --help_all lists them all."""


class FlagParser(OneLineErrors, HfArgumentParser):
    """Argument parser with flags from dataclasses. `_argument_group_name` of a dataclass is its heading in the help."""

    def __init__(self, kinds: tuple[type, ...], description: str | None = None, **settings):
        settings = {"usage": "%(prog)s [--flag value ...]", "formatter_class": HelpFormatter} | settings
        super().__init__(kinds, description=description, allow_abbrev=False, **settings)
        self.add_version()
        for action in self._actions:
            if action.dest in ("bf16", "fp16"):  # three values: a bare flag means true, no flag means automatic
                action.nargs, action.const = "?", True
            if isinstance(action, argparse._StoreFalseAction):  # --no_x is redundant: --x false does the same
                action.help = argparse.SUPPRESS


def check_flags(kinds: tuple[type, ...], argv: list[str] | None = None, description: str | None = None) -> tuple:
    """Return instances of torch-free dataclasses from a command line that may contain flags of `TrainingArguments` too.

    Answers --help and --help_all, where a class that inherits from several is one group for each. Checks only the names
    of the library's flags. Raises an `InputError` like `parse_flags`.
    """
    groups = []
    for item in kinds:
        bases = [base for base in item.__bases__ if is_dataclass(base)] if len(item.__bases__) > 1 else []
        groups += bases or [item]
    parser = FlagParser(tuple(groups), description, epilog=LIBRARY_HELP)
    add_trust(parser.add_argument_group("Untrusted models"))
    parser.add_argument("--help_all", action=HelpAll, nargs=0, help="show TrainingArguments' flags too, and exit")
    known = {action.dest for action in parser._actions}
    # Read from the source, because the import takes seconds.
    source = Path(find_spec("transformers.training_args").origin).read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    declared = [node.target.id for node in classes["TrainingArguments"].body if isinstance(node, ast.AnnAssign)]
    for name in declared:
        if name not in known and not name.startswith("_"):
            spellings = [f"--{start}{name}" for start in ("", "no_")]
            spellings += [spelling.replace("_", "-") for spelling in spellings if "_" in spelling]
            parser.add_argument(*spellings, dest=name, nargs="*", help=argparse.SUPPRESS)
    return _instances(kinds, _parse(parser, argv))


def parse_flags(kinds: tuple[type, ...], argv: list[str] | None = None, description: str | None = None) -> tuple:
    """Return instances of `kinds`. A flag overrides the recipe (`--config`).

    Adds the flags of `mirror.common.cli.TRUST`, which a recipe cannot set, and grants what they allow. Raises an
    `InputError` for an unknown flag or key of the recipe, or an invalid value.
    """
    parser = FlagParser(kinds, description)
    add_trust(parser)
    values = _parse(parser, argv)
    try:
        parsed = _instances(kinds, values)
    except InputError:
        raise
    except Exception as error:  # TrainingArguments rejects combinations with many kinds of exceptions
        raise InputError(reason(error)) from error
    trust.grant(**{name: getattr(values, name) for name in TRUST})
    return parsed


class HelpAll(argparse.Action):
    """Print the help of a parser, then the help of the other flags of `TrainingArguments`."""

    def __call__(self, parser, namespace, values, option_string=None):
        from transformers import TrainingArguments

        class LibraryFlags(TrainingArguments):
            _argument_group_name = "TrainingArguments of transformers"

        library = FlagParser((LibraryFlags,), usage=argparse.SUPPRESS, add_help=False)
        own = {action.dest for action in parser._actions if action.help != argparse.SUPPRESS}
        for action in library._actions:
            if action.dest in own:
                action.help = argparse.SUPPRESS
        parser.epilog = None
        sys.stdout.write(f"{parser.format_help()}\n{library.format_help().strip()}\n")
        parser.exit()


def load_recipe(path: str) -> dict:
    """Return the content of a recipe as YAML reads it. Raise an `InputError` if there is none, or no mapping in it.

    A name such as `word-bert`, `word-bert.yaml` or `recipes/word-bert.yaml` is that of a published recipe if there is
    no such file.
    """
    file = Path(path)
    if not file.exists() and file.parent in (Path("."), Path("recipes")):
        published = {place.stem: place for place in RECIPES.glob("*.yaml")}
        if file.stem not in published:
            problem = f"no such file, and no published recipe{did_you_mean(file.stem, published)}"
            raise InputError(f"--config {path}: {problem}")
        file = published[file.stem]
    with library_errors(f"--config {path}"):
        text = file.read_text(encoding="utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):  # a few lines can mean gigabytes
            raise InputError(f"--config {path}: YAML aliases (*name) are not supported; write the value out")
        content = yaml.safe_load(text)
    if not isinstance(content, dict):
        raise InputError(f"--config {path}: expected a mapping of flags to values")
    return content


def read_recipe(path: str, parser: argparse.ArgumentParser) -> dict:
    """Return the values of a recipe as the command line would parse them. Raise an `InputError` for an unknown key."""
    content = load_recipe(path)
    # Reversed, because of --x and --no_x the first one takes a value.
    actions = {item.dest: item for item in reversed(parser._actions)}
    for name in ("help", "help_all", "version"):
        actions.pop(name, None)
    for key in content:
        if key in (*TRUST, "config"):
            raise InputError(f"--config {path}: a recipe cannot set '{key}'; give it on the command line")
        if key not in actions:
            raise InputError(f"--config {path}: unknown key '{key}'{did_you_mean(str(key), actions)}")
    return {key: _convert(actions[key], value, path) for key, value in content.items()}


def _instances(kinds: tuple[type, ...], values: argparse.Namespace) -> tuple:
    names = {item: [field.name for field in fields(item) if field.init] for item in kinds}
    return tuple(item(**{name: getattr(values, name) for name in own}) for item, own in names.items())


def _parse(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    argv = sys.argv[1:] if argv is None else argv
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config")
    # The recipe has to be known before the command line is parsed, because it sets the defaults.
    recipe_path = early.parse_known_args(argv)[0].config
    parser.set_defaults(**read_recipe(recipe_path, parser) if recipe_path else {})
    values, unknown = parser.parse_known_args(argv)
    parser.refuse_leftover(unknown, argv)
    return values


def _convert(action: argparse.Action, value, path: str):
    """Return a value of a recipe as the command line would parse it, so that 1e-5 is a number and one name a list."""
    if value is None:
        return action.default
    if isinstance(value, dict) and "dict" in str(action.type):  # a mapping has no form on a command line
        return value
    values = value if isinstance(value, list) else [value]
    words = [json.dumps(item) if isinstance(item, dict | list) else str(item) for item in values]
    flag, one_flag, only = action.option_strings[0], Parser(None), copy(action)
    only.option_strings = [flag]  # error messages would list the other spellings too
    one_flag._add_action(only)
    try:
        parsed, rest = one_flag.parse_known_args([f"{flag}={words[0]}"] if len(words) == 1 else [flag, *words])
    except InputError as error:
        raise InputError(f"--config {path}: {error}") from error
    if rest:
        raise InputError(f"--config {path}: {action.dest} takes one value, got {value}")
    return getattr(parsed, action.dest)

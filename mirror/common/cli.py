"""Argument parsing and checks of values, with one-line errors. Imports nothing heavy, so --help and mistyped flags answer at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NoReturn

from mirror.common.errors import InputError, did_you_mean


TRUST = {
    "allow_pickle": "Also read weights that exist only as a pickle (.bin). Command line only, never in a recipe.",
    "trust_remote_code": "Run the Python code that comes with a model. Command line only, never in a recipe.",
}


METAVARS = {"int": "N", "float": "X", "str": "TEXT", "string_to_bool": "true|false"}  # of types of flags


class OneLineErrors:
    """Mixin for argument parsers: a mistake is one line instead of a screen of usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help lists the flags")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Each flag in one spelling, with its default wherever the text does not say it."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{action.option_strings[0]} {value}"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        """`N` for a number, as our other parsers have it, instead of the name of the flag again."""
        return METAVARS.get(getattr(action.type, "__name__", ""), action.dest.upper())

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_told = "default" in (action.help or "").lower() or action.default == argparse.SUPPRESS
        if is_told or action.required or action.nargs == 0 or not action.option_strings:
            return action.help
        values = (action.default if isinstance(action.default, list) else [action.default]) or [None]
        shown = " ".join(str(value).lower() if value in (None, True, False) else str(value) for value in values)
        return f"{action.help} (default: {shown.replace('%', '%%')})"


class Parser(OneLineErrors, argparse.ArgumentParser):
    """The parser of scripts and tools that do not train."""

    def __init__(self, description: str | None):
        super().__init__(description=description, formatter_class=HelpFormatter, allow_abbrev=False)


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Add the flags of `mirror.common.loading_policy`."""
    for flag, meaning in TRUST.items():
        parser.add_argument(f"--{flag}", action="store_true", help=meaning)


def add_prompt(parser: argparse._ActionsContainer) -> None:
    """Add the flags of a text before every text (`mirror.modeling.checkpoint_settings.choose_prompt`)."""
    names = parser.add_mutually_exclusive_group()
    names.add_argument(
        "--prompt", metavar="TEXT", help="put this before every text; '' for none (default: the checkpoint's)"
    )
    names.add_argument(
        "--prompt_name",
        metavar="NAME",
        help="the prompt of this name in the checkpoint, such as query (default: the checkpoint's)",
    )


def add_timeout(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--ddp_timeout", type=positive, default=1800, metavar="S",
        help="seconds that one process of accelerate launch waits for another (default: 1800)",
    )  # fmt: skip


def positive(text: str) -> int:
    """Parse a whole number of 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def one_of(flag: str, value: str, known: Iterable[str]) -> None:
    """Refuse a value that is not `known`, suggesting the most similar.

    Raises:
        InputError
    """
    if value not in known:
        raise InputError(f"{flag} '{value}' is unknown; one of {', '.join(known)}{did_you_mean(value, known)}")


def probability(flag: str, value: float, hint: str) -> None:
    """Refuse a value outside [0, 1).

    Raises:
        InputError
    """
    if not 0 <= value < 1:
        raise InputError(f"{flag} is a probability in [0, 1), got {value}; {hint}")

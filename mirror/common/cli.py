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


class OneLineErrors:
    """Mixin for argument parsers: a mistake is one line instead of a screen of usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help lists the flags")


class Parser(OneLineErrors, argparse.ArgumentParser):
    """The parser of scripts and tools that do not train."""

    def __init__(self, description: str | None):
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `mirror.common.loading_policy`."""
    for flag, meaning in TRUST.items():
        parser.add_argument(f"--{flag}", action="store_true", help=meaning)


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a text before every text (`mirror.modeling.encoder.choose_prompt`)."""
    names = parser.add_mutually_exclusive_group()
    names.add_argument(
        "--prompt", metavar="TEXT", help="put this before every text; '' for none (default: the checkpoint's default)"
    )
    names.add_argument(
        "--prompt_name", metavar="NAME", help="the prompt of this name in the checkpoint, such as query"
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
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

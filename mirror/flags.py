"""Command lines that answer a mistake in one line. Imports nothing heavy, so that --help and a mistyped flag are instant."""

from __future__ import annotations

import argparse

from mirror.errors import InputError


TRUST = {
    "allow_pickle": "Also read weights that are a pickle (.bin) only. Of the command line, never of a recipe.",
    "trust_remote_code": "Run the Python code that a model brings along. Of the command line, never of a recipe.",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of a screen of usage."""

    def __init__(self, description: str | None):
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )

    def error(self, message: str) -> None:
        raise InputError(f"{message}; --help lists the flags")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """What `mirror.trust` can be granted."""
    for flag, meaning in TRUST.items():
        parser.add_argument(f"--{flag}", action="store_true", help=meaning)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ddp_timeout", type=positive, default=1800, metavar="S",
        help="seconds that one process of accelerate launch waits for another (default: 1800)",
    )  # fmt: skip


def positive(text: str) -> int:
    """A flag's whole number of 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number

"""The command line of every script: flags declared once, argument parsers, and the logging setup.

A flag of a dataclass has its type and check in the annotation, and its default and help beside it:

>>> @dataclass
... class LossOptions:
...     temperature: Annotated[float | None, above(0)] = flag(None, "Temperature of the loss. Default: 0.04.")

`HfArgumentParser` reads the type through the annotation and ignores the check. `run_checks` runs all checks of an
instance, so the command line and the Python API refuse the same values with the same words.

Imports nothing heavy, so that --help and mistyped flags answer immediately.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from typing import Any, NoReturn, get_type_hints

import mirror
from mirror.common.errors import InputError, did_you_mean


Check = Callable[[str, Any], None]  # (name of the flag, value); raises InputError
TRUST = {
    "allow_pickle": "Also read weights that exist only as a pickle (.bin). Command line only, never in a recipe.",
    "trust_remote_code": "Run the Python code that comes with a model. Command line only, never in a recipe.",
}
METAVARS = {"int": "N", "float": "X", "str": "TEXT", "string_to_bool": "true|false"}  # by the type of a flag
HUB_CLIENT = "huggingface_hub"


def flag(default: Any, help: str, **options: Any) -> Any:
    """Return a dataclass field for a flag. `options` go to `argparse.ArgumentParser.add_argument`, for example `nargs`."""
    metadata = {"help": help, **options}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def run_checks(instance: object, kind: type) -> None:
    """Check every flag of a dataclass instance that has a value. An `InputError` names the flag of the first bad one.

    `kind` is the dataclass that declares the flags: `TrainingArguments`, whose annotations need torch, has no checks.
    """
    for name, hint in get_type_hints(kind, include_extras=True).items():
        value = getattr(instance, name, None)
        for check in getattr(hint, "__metadata__", ()) if value is not None else ():
            check(f"--{name}", value)


def condition(holds: Callable[[Any], bool], words: str, hint: str = "") -> Check:
    """Return a check that refuses values for which `holds` is false: they must be `words`, for example "positive"."""

    def check(name: str, value: Any) -> None:
        if not holds(value):
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            raise InputError(f"{name} must be {words}, got {shown}{'. ' + hint if hint else ''}")

    return check


def above(bound: float, hint: str = "") -> Check:
    """Return a check for numbers greater than `bound`."""
    return condition(lambda value: value > bound, "positive" if bound == 0 else f"above {bound}", hint)


def at_least(bound: float, hint: str = "") -> Check:
    """Return a check for numbers not below `bound`."""
    return condition(lambda value: value >= bound, f"{bound} or more" if bound == 0 else f"at least {bound}", hint)


def share(hint: str = "") -> Check:
    """Return a check for probabilities and shares in [0, 1)."""
    return condition(lambda value: 0 <= value < 1, "a share or probability in [0, 1)", hint)


def each_of(known: Collection[str]) -> Check:
    """Return a check for a list of names, each as in `one_of`."""

    def check(name: str, values: Collection[str]) -> None:
        for value in values:
            one_of(known)(name, value)

    return check


def one_of(known: Collection[str]) -> Check:
    """Return a check for one of several names, which suggests the most similar one."""

    def check(name: str, value: str) -> None:
        if value not in known:
            raise InputError(f"{name} '{value}' is unknown; one of {', '.join(known)}{did_you_mean(value, known)}")

    return check


class OneLineErrors:
    """Mixin for argument parsers that reports a mistake in one line instead of a screen of usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help lists the flags")

    def refuse_leftover(self, unknown: Sequence[str], argv: Sequence[str]) -> None:
        """Raise an `InputError` about the first of the arguments that no flag has taken, if there are any."""
        if not unknown:
            return
        word = unknown[0]
        flags = {spelling: action for action in self._actions for spelling in action.option_strings}
        if word.startswith("--"):
            name = word.partition("=")[0]
            self.error(f"unknown flag {name}{did_you_mean(name, [flag for flag in flags if flag[:2] == '--'])}")
        if any(not action.option_strings for action in self._actions):  # it may have been meant for one of those
            self.error(f"unexpected argument '{word}'; put a text with spaces in quotes")
        end = len(argv) - 1 - argv[::-1].index(word)
        starts = [index for index, before in enumerate(argv[:end]) if before.startswith("--")]
        if not starts:
            self.error(f"unexpected argument '{word}': it follows no flag")
        name, _, value = argv[starts[-1]].partition("=")
        values = " ".join([*([value] if value else []), *argv[starts[-1] + 1 : end + 1]])
        if name in flags and flags[name].nargs == 0:
            self.error(f"{name} takes no value, got {values}")
        self.error(f"{name} takes one value, got {values}; put a text with spaces in quotes")

    def add_version(self) -> None:
        """Add `--version`."""
        version = f"%(prog)s of mirror-encoders {mirror.__version__}"
        self.add_argument("--version", action="version", version=version, help="show the version and exit")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Show each flag in one spelling, and its default unless its help text contains it."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{action.option_strings[0]} {value}"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        # `N` for a number. HfArgumentParser would repeat the name of the flag.
        return METAVARS.get(getattr(action.type, "__name__", ""), action.dest.upper())

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = "default" in (action.help or "").lower() or action.default == argparse.SUPPRESS
        if has_default or action.required or action.nargs == 0 or not action.option_strings:
            return action.help
        values = (action.default if isinstance(action.default, list) else [action.default]) or [None]
        shown = " ".join(str(value).lower() if value in (None, True, False) else str(value) for value in values)
        return f"{action.help} (default: {shown.replace('%', '%%')})"


class Parser(OneLineErrors, argparse.ArgumentParser):
    """Argument parser of scripts and tools that do not train."""

    def __init__(self, description: str | None):
        super().__init__(description=description, formatter_class=HelpFormatter, allow_abbrev=False)
        self.add_version()

    def parse_args(self, args: Sequence[str] | None = None, namespace=None) -> argparse.Namespace:
        """Parse a command line, flags before, between or after the others. An argument that no flag takes is an `InputError`."""
        parsed, left = self.parse_known_intermixed_args(args, namespace)
        self.refuse_leftover(left, sys.argv[1:] if args is None else args)
        return parsed


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Add the flags of `mirror.common.trust`."""
    for flag, meaning in TRUST.items():
        parser.add_argument(f"--{flag}", action="store_true", help=meaning)


def add_prompt(parser: argparse._ActionsContainer) -> None:
    """Add the flags of the text before every text (`mirror.modeling.read_checkpoint.choose_prompt`)."""
    names = parser.add_mutually_exclusive_group()
    meaning = "put this before every text; '' for none (default: the checkpoint's)"
    names.add_argument("--prompt", metavar="TEXT", help=meaning)
    meaning = "the prompt of this name in the checkpoint, such as query (default: the checkpoint's)"
    names.add_argument("--prompt_name", metavar="NAME", help=meaning)


def add_timeout(parser: argparse._ActionsContainer) -> None:
    """Add `--ddp_timeout` of scripts without a Trainer."""
    meaning = "seconds that one process of accelerate launch waits for another (default: 1800)"
    parser.add_argument("--ddp_timeout", type=positive, default=1800, metavar="S", help=meaning)


def positive(text: str) -> int:
    """Parse a whole number of 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


class LogHandler(logging.StreamHandler):
    """Writes lines to stderr. A progress bar is cleared first and drawn again below the line."""

    def emit(self, record: logging.LogRecord) -> None:
        if "tqdm" not in sys.modules:  # then there is no bar
            return super().emit(record)
        with sys.modules["tqdm"].tqdm.external_write_mode(file=self.stream):
            super().emit(record)


def configure_logging(level: int = logging.INFO) -> None:
    """Log plain lines to stderr. Of chatty libraries and a machine's other processes, log only warnings."""
    level = level if os.environ.get("LOCAL_RANK", "0") == "0" else max(level, logging.WARNING)
    logging.basicConfig(format="%(message)s", level=level, handlers=[LogHandler()])
    for name in ("httpx", "httpx2", "absl", "fontTools"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # The client of the Hub has its own handler: each line would appear twice.
    logging.getLogger(HUB_CLIENT).propagate = False
    log_each_retry_once()
    # It warns about the older spelling of the pooling, which our checkpoints contain on purpose (save_checkpoint.py).
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


class OneLinePerRetry(logging.Filter):
    """Join the two lines that the client of the Hub logs for a retry. The first one contains the signed URL."""

    reason = ""

    def filter(self, record: logging.LogRecord) -> bool:
        message = without_signatures(record.getMessage())
        reason, is_reason, _ = message.partition(" thrown while requesting ")
        if is_reason:
            self.reason = reason.strip("'.")
            return False
        record.msg, record.args = (f"the Hub: {self.reason}. {message}" if "[Retry " in message else message), ()
        return True


_one_line_per_retry = OneLinePerRetry()


def log_each_retry_once() -> None:
    """Log one line, without the URL, for each retry of the client of the Hub."""
    logging.getLogger(f"{HUB_CLIENT}.utils._http").addFilter(_one_line_per_retry)


def without_signatures(text: str) -> str:
    """Return `text` with every URL cut at its query, which can be a signature that gives access."""
    return re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text)


def hide_dataset_progress() -> None:
    """Turn off the progress bars of `datasets`."""
    from datasets import disable_progress_bars  # this import takes a second; tools without data do not need it

    disable_progress_bars()

"""Declare a flag once: its type and check in the annotation, its default and help beside it.

>>> @dataclass
... class LossOptions:
...     temperature: Annotated[float | None, above(0)] = flag(None, "Temperature of the loss. Default: 0.04.")

`HfArgumentParser` reads the type through the annotation and ignores the check. `run_checks` runs all checks of an
instance, so the command line and the Python API refuse the same values with the same words. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field
from typing import Any, get_type_hints

from mirror.common.errors import InputError, did_you_mean


Check = Callable[[str, Any], None]  # (name of the flag, value); raises InputError


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

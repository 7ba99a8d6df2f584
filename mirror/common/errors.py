"""The exception that scripts turn into one line on stderr and exit status 2."""

from __future__ import annotations

import difflib
import errno
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # full, over quota, too large, read-only


class InputError(ValueError):
    """An error that the user can fix. The message names the file, row or flag, and the fix, in one line."""


def one_line(error: object, limit: int = 300) -> str:
    """Return an error's message without line breaks, cut at `limit` characters, or its type if it has no message."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def reason(error: BaseException) -> str:
    """Return an error's message in one line, after its type if the message alone says little."""
    message, name = one_line(error), type(error).__name__
    # The messages of these are sentences. The message of a KeyError is only a name.
    is_sentence = isinstance(error, (OSError, ValueError, RuntimeError, ImportError))
    return message if is_sentence or message == name else f"{name}: {message}"


@contextmanager
def library_errors(what: str, let_through: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn any error of a library, except `let_through`, into an `InputError`: what failed, and the library's reason.

    A full disk, and a collective that fails because another process did, pass unchanged: `run_main` explains them.
    """
    try:
        yield
    except (InputError, *let_through):
        raise
    except Exception as error:
        if getattr(error, "errno", None) in DISK_ERRORS or (isinstance(error, RuntimeError) and _peer_failure(error)):
            raise
        raise InputError(f"{what}: {reason(error)}") from error
    except BaseException as error:  # Rust's, of a tokenizer with a rule that fails
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {reason(error)}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the most similar known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def run_main(main: Callable[[], None]) -> None:
    """Run a script's `main` and turn errors that the user can fix into one line on stderr.

    Exit with 2 after an `InputError` or a disk that is full or fails, with 1 if another process of a distributed run failed, with
    130 after Ctrl-C, and silently with 141 if the reader of stdout, such as `head`, has closed it.
    """
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except InputError as error:
        # An error in a worker of torch's DataLoader arrives as a traceback whose last line is the message.
        _exit_with(str(error).strip().rpartition("\n")[2].removeprefix(f"{__name__}.InputError: "), 2)
    except KeyboardInterrupt:
        _exit_with("stopped by Ctrl-C", 128 + signal.SIGINT)
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)  # errors are always reported
        if not output.poll(0):
            raise
        # Without this, the flush at the interpreter's exit fails again and prints a warning.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)  # the exit status that shells expect when nobody reads the output
    except OSError as error:
        if error.errno not in (*DISK_ERRORS, errno.EIO):
            raise
        fix = "check the disk" if error.errno == errno.EIO else "free some space"
        _exit_with(f"{one_line(error)}; {fix}, then run the same command again", 2)
    except RuntimeError as error:
        if (line := _peer_failure(error)) is None:
            raise
        _exit_with(line, 1)


def _peer_failure(error: RuntimeError) -> str | None:
    from mirror.common.distributed import describe_peer_failure  # imports torch

    return describe_peer_failure(error)


def _exit_with(line: str, status: int) -> NoReturn:
    if os.environ.get("MIRROR_TRACEBACK"):
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
    if "torch" not in sys.modules:  # an invalid flag is reported without waiting for the import of torch
        sys.exit(status)
    from mirror.common.distributed import exit_process

    exit_process(status)

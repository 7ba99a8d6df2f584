"""The one exception that scripts turn into one line on stderr and exit status 2."""

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
TRACEBACK = "MIRROR_TRACEBACK"  # environment variable: show the traceback above the line
PLAIN = (OSError, ValueError, RuntimeError, ImportError)  # their messages are sentences; that of a KeyError is a name
CLOSED_PIPE = 141  # 128 + SIGPIPE: the exit status by which a shell knows a program whose output nobody reads


class InputError(ValueError):
    """Something that the user can fix: the message names the file, row or flag, and the fix, in one line."""


def one_line(error: object, limit: int = 300) -> str:
    """The message of a library's error without line breaks, cut at `limit` characters; its type where there is none."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def reason(error: BaseException) -> str:
    """The message of a library's error in one line, after its type where the message alone says little."""
    message = one_line(error)
    name = type(error).__name__
    return message if isinstance(error, PLAIN) or message == name else f"{name}: {message}"


@contextmanager
def library_errors(what: str, let_through: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Context in which any error of a library becomes an `InputError`: what failed, and the library's reason.

    A full disk, and a collective that fails because another process did, stay what they are for `run_main`.

    Args:
        let_through: kinds of errors that are none of this.
    """
    try:
        yield
    except (InputError, *let_through):
        raise
    except Exception as error:
        if getattr(error, "errno", None) in DISK_ERRORS or (isinstance(error, RuntimeError) and _peer_failure(error)):
            raise
        raise InputError(f"{what}: {reason(error)}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the most similar known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def run_main(main: Callable[[], None]) -> None:
    """Run a script's `main` and turn what the user can fix into one line on stderr.

    Exit status 2 for an `InputError`, or a disk that is full or fails, 1 where another process of a distributed run failed, 130 after Ctrl-C,
    and 141 without a line where the reader of stdout, such as `head`, has closed it.
    """
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except InputError as error:
        _exit_with(_last_line(error), 2)
    except KeyboardInterrupt:
        _exit_with("stopped by Ctrl-C", 128 + signal.SIGINT)
    except BrokenPipeError:
        if not _stdout_is_closed():
            raise
        # Otherwise the flush at the interpreter's exit fails too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE)
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
    from mirror.common.distributed import describe_peer_failure

    return describe_peer_failure(error)


def _last_line(error: InputError) -> str:
    """The message; of an error in a worker of torch's DataLoader, which comes as a traceback, the one at its end."""
    return str(error).strip().rpartition("\n")[2].removeprefix(f"{__name__}.InputError: ")


def _stdout_is_closed() -> bool:
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors are always reported
    return bool(output.poll(0))


def _exit_with(line: str, status: int) -> NoReturn:
    if os.environ.get(TRACEBACK):
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
    if "torch" not in sys.modules:  # errors in the arguments answer without importing torch
        sys.exit(status)
    from mirror.common.distributed import exit_process

    exit_process(status)

"""The one exception that scripts turn into one line on stderr and exit status 2."""

from __future__ import annotations

import difflib
import errno
import signal
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # full, over quota, too large, read-only


class InputError(ValueError):
    """Something that the user can fix: the message names the file, row or flag, and the fix, in one line."""


def one_line(error: object, limit: int = 300) -> str:
    """The message of a library's error without line breaks, cut at `limit` characters; its type where there is none."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the most similar known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def run_main(main: Callable[[], None]) -> None:
    """Run a script's `main` and turn what the user can fix into one line on stderr.

    Exit status 2 for an `InputError` or a full disk, 1 where another process of a distributed run failed, 130 after Ctrl-C.
    """
    try:
        main()
    except InputError as error:
        _exit_with(str(error), 2)
    except KeyboardInterrupt:
        _exit_with("stopped by Ctrl-C", 128 + signal.SIGINT)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        _exit_with(f"{one_line(error)}; free some space, then run the same command again", 2)
    except RuntimeError as error:
        from mirror.common.distributed import describe_peer_failure

        if (line := describe_peer_failure(error)) is None:
            raise
        _exit_with(line, 1)


def _exit_with(line: str, status: int) -> NoReturn:
    print(f"error: {line}", file=sys.stderr)
    if "torch" not in sys.modules:  # errors in the arguments answer without importing torch
        sys.exit(status)
    from mirror.common.distributed import exit_process

    exit_process(status)

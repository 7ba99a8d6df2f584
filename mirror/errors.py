"""The one exception that scripts turn into one line on stderr and exit status 2."""

from __future__ import annotations

import difflib
import errno
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # full, over quota, too large, read-only


class InputError(ValueError):
    """Something the user can mend: the message names the file, row or flag, and the fix, in one line."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def run_main(main: Callable[[], None]) -> None:
    """Run a script's `main`. What the user can mend becomes one line on stderr: an `InputError` or a full disk with exit
    status 2, another process of the run that died or hangs with status 1.
    """
    try:
        main()
    except InputError as error:
        _end(str(error), 2)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        _end(f"{' '.join(str(error).split())}; make room, then run the same command again", 2)
    except RuntimeError as error:
        from mirror.distributed import lost_process

        if (line := lost_process(error)) is None:
            raise
        _end(line, 1)


def _end(line: str, status: int) -> NoReturn:
    print(f"error: {line}", file=sys.stderr)
    if "torch" not in sys.modules:  # a mistyped flag answers at once
        sys.exit(status)
    from mirror.distributed import leave

    leave(status)

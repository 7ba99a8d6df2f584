"""The one exception that scripts turn into one line on stderr and exit status 2."""

from __future__ import annotations

import difflib
import errno
import sys
from collections.abc import Callable, Iterable


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # full, over quota, too large, read-only


class InputError(ValueError):
    """Something the user can mend: the message names the file, row or flag, and the fix, in one line."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def run_main(main: Callable[[], None]) -> None:
    """Run a script's `main`; an `InputError`, or a disk that is full, becomes one line on stderr and exit status 2."""
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        print(f"error: {' '.join(str(error).split())}; make room, then run the same command again", file=sys.stderr)
        sys.exit(2)

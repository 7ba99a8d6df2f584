"""One run at a time in an output folder."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from filelock import FileLock, Timeout

from mirror.common.errors import InputError


LOCK = "_lock"  # the underscore keeps it from being pushed
_locks: list[FileLock] = []  # held until the process ends


def lock_output_dir(output_dir: str) -> None:
    """Keep other runs out of the output folder until this process ends, in whatever way: the system releases the lock.

    Raises:
        InputError: another run is there; says which.
    """
    path = Path(output_dir) / LOCK
    lock = FileLock(path, timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout as error:
        holder = path.read_text(encoding="utf-8") or "another process"
        raise InputError(
            f"--output_dir {output_dir} is in use by {holder}; wait for its end, or choose another folder"
        ) from error
    path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    _locks.append(lock)

"""Output folders, and atomic file writes: a file is written under a temporary name and renamed, so it is complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirror.common.errors import InputError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name in the folder of `path`; it is renamed to `path` at the end, or removed after an error.

    The leading underscore hides the file from programs that read every file of a folder; the process id keeps two
    writers apart.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"_{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def make_output_folder(path: str | Path) -> Path:
    """Create the folder of `--output_dir` if it does not exist, before any long computation starts.

    Raises:
        InputError: it is a file, or cannot be created.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output_dir {path} cannot be a folder: {error.strerror}; choose another path") from error
    return Path(path)

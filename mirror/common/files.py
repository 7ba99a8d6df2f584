"""Output folders and atomic file writes. A file is written under a temporary name and renamed: it is complete or absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mirror.common.errors import InputError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name in the folder of `path`. Rename it to `path` at the end, or remove it after an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The underscore hides the file from programs that read every file of a folder. The process id keeps two writers apart.
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


def follow_umask(folder: str | Path) -> None:
    """Give all files of a folder, those of its subfolders too, the mode that a new file gets."""
    # safetensors writes through a temporary file, which only its owner can read.
    probe = Path(folder) / f"_mode.{os.getpid()}.tmp"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for path in Path(folder).rglob("*"):
        with suppress(OSError):  # a file of somebody else, or a file system without modes
            if path.is_file() and path.stat().st_mode != mode:
                path.chmod(mode)


def sync_folder(folder: str | Path) -> None:
    """Flush the names in a folder to the disk, so that renamed and created files survive a power failure."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_files(source: str | Path, target: str | Path, last: str) -> None:
    """Move all files of the folder `source` into `target`, replacing files of the same name, and remove `source`.

    The file `last` marks `target` as complete. It is removed first and moved last.
    """
    source, target = Path(source), Path(target)
    (target / last).unlink(missing_ok=True)
    for path in sorted(source.iterdir(), key=lambda path: (path.name == last, path.name)):
        place = target / path.name
        if place.is_dir():
            shutil.rmtree(place)
        path.replace(place)
    source.rmdir()
    sync_folder(target)


def make_output_folder(path: str | Path, flag: str = "--output_dir") -> Path:
    """Create the folder of a flag, before anything long starts. Raise an `InputError` if that is not possible."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{flag} {path} cannot be a folder: {error.strerror}; choose another path") from error
    return Path(path)

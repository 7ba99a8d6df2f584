"""`manifest.json`: the files of a saved folder with sizes and checksums, written last. A folder that differs from it is not used."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from mirror.common.atomic_files import atomic_path, sync_folder


logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
BLOCK = 1 << 20  # bytes


def write_manifest(folder: str | Path, left_out: Sequence[str] = ()) -> None:
    """List the files of a finished folder in its manifest, atomically; files, folders and manifest are on the disk afterwards.

    Args:
        left_out: names of files that may change later.
    """
    folder = Path(folder)
    entries = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix == ".tmp" or path.name in (MANIFEST, *left_out):
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
        entries[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
    with atomic_path(folder / MANIFEST) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(entries, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    for changed in (*(path for path in folder.rglob("*") if path.is_dir()), folder, folder.parent):
        sync_folder(changed)


def listed_files(folder: str | Path) -> set[str]:
    """The files that the manifest of a folder names, whole or not; none if it has no readable manifest."""
    try:
        return set(json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return set()


def is_complete(folder: str | Path) -> bool:
    """Whether a folder holds every file of its manifest, byte for byte."""
    folder = Path(folder)
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if not listed or any((folder / name).stat().st_size != entry["bytes"] for name, entry in listed.items()):
            return False
        return all(checksum(folder / name) == entry["sha256"] for name, entry in listed.items())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False


def last_complete_checkpoint(output_dir: str | Path) -> str | None:
    """The newest complete checkpoint of a run; later incomplete ones are skipped with a warning."""
    numbered = {
        int(match[1]): path
        for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)) and path.is_dir()
    }
    for _, path in sorted(numbered.items(), reverse=True):
        if is_complete(path):
            return str(path)
        logger.warning("%s is incomplete (its save was interrupted, or files are missing or damaged); skipped", path)
    return None


def describe_last(output_dir: str | Path) -> str:
    """Which checkpoint is left, for the message of a failed save."""
    last = last_complete_checkpoint(output_dir)
    return f"the last complete checkpoint is {last}" if last else "there is no earlier complete checkpoint"


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()

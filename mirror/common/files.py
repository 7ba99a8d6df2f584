"""Output folders: files that are complete or absent, manifests, the lock of a folder, and reuse of earlier work.

A file is written under a temporary name and renamed. Training runs, CMLM stages, cells of a study and evaluations all ask the
same two questions of earlier work: was it made from the same inputs, and is it whole? The first is answered by an identity, plain
data that describes the inputs by content. The second is answered by a manifest, the sizes and checksums of the files of a folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import shutil
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from mirror.common.errors import InputError


logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
LOCK = "_lock"  # the underscore keeps it out of pushes
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of flock on NFS, FUSE and others
_locks: list[FileLock] = []  # held until the process ends


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


def plain(value: object) -> object:
    """Return `value` as JSON reads it back: tuples become lists, paths and enums become strings."""
    return json.loads(json.dumps(value, default=str))


def digest(value: object) -> str:
    """Return the SHA-256 of plain data. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def text_digest(text: str, size: int = 8) -> bytes:
    """Return `size` bytes that are a function of a text: to compare texts by, or to seed with."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


class StoredWork:
    """A JSON file with an identity and the work that was done under it.

    >>> work = StoredWork(folder / "cell.json", identity)
    >>> if work.content() is None:
    ...     work.save({"scores": compute()})

    The file is written atomically, so it is whole or absent. The identity names every input of the work by its content.
    """

    def __init__(self, path: str | Path, identity: dict):
        self.path, self.identity = Path(path), plain(identity)

    def stored(self) -> dict | None:
        """Return the whole file, `{"identity": ..., **content}`, whatever its identity. None: absent or damaged."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            return stored if isinstance(stored["identity"], dict) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def content(self) -> dict | None:
        """Return the content if it was stored under the same identity, else None."""
        stored = self.stored()
        return stored if stored and stored["identity"] == self.identity else None

    def differences(self) -> list[str]:
        """Return the names of the entries in which the stored identity differs from this one."""
        before = (self.stored() or {}).get("identity", {})
        return sorted(key for key in before.keys() | self.identity.keys() if before.get(key) != self.identity.get(key))

    def save(self, content: dict) -> None:
        """Replace the file by the identity and `content`."""
        whole = {"identity": self.identity, **content}
        atomic_write_text(self.path, json.dumps(whole, indent=2, ensure_ascii=False, default=to_python_scalar) + "\n")


def to_python_scalar(value: object) -> object:
    """Return a NumPy scalar as a Python number and anything else as a string, for `json.dumps(default=...)`."""
    return value.item() if hasattr(value, "item") else str(value)


def write_manifest(folder: str | Path, only: Collection[str] | None = None) -> None:
    """List the files of a finished folder, or `only` these names in it, in its manifest, and flush them to the disk."""
    folder, entries = Path(folder), {}
    for path in sorted(folder.rglob("*") if only is None else (folder / name for name in only)):
        if path.is_file() and path.suffix != ".tmp" and path.name != MANIFEST:
            with path.open("rb") as file:
                os.fsync(file.fileno())
            entries[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    with atomic_path(folder / MANIFEST) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(entries, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    for changed in (*(path for path in folder.rglob("*") if path.is_dir()), folder, folder.parent):
        sync_folder(changed)


def listed_files(folder: str | Path) -> set[str]:
    """Return the names in the manifest of a folder. Empty if it has no readable manifest."""
    return set(_manifest(Path(folder)))


def is_complete(folder: str | Path) -> bool:
    """Return whether a folder holds every file of its manifest, byte for byte."""
    folder = Path(folder)
    listed = _manifest(folder)
    try:  # all sizes before any checksum
        sizes = all((folder / name).stat().st_size == entry["bytes"] for name, entry in listed.items())
        hashes = sizes and all(file_digest(folder / name) == entry["sha256"] for name, entry in listed.items())
        return bool(listed) and hashes
    except (OSError, TypeError, KeyError):
        return False


def _manifest(folder: Path) -> dict[str, dict]:
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return listed if isinstance(listed, dict) else {}
    except (OSError, ValueError):
        return {}


def lock_output_dir(output_dir: str | Path) -> AbstractContextManager:
    """Keep other runs out of an output folder, and return the lock, which ends with a `with` block or this process.

    Raises an `InputError`, which names the other process, if another run has it.
    """
    path = Path(output_dir) / LOCK
    try:
        lock = acquire_lock(path, timeout=0)
    except Timeout as error:
        holder = path.read_text(encoding="utf-8", errors="replace") or "another process"
        fix = "wait for its end, or choose another folder"
        raise InputError(f"--output_dir {output_dir} is in use by {holder}; {fix}") from error
    path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    return lock


def acquire_lock(path: str | Path, timeout: float = -1) -> AbstractContextManager:
    """Lock a file, and return the lock. On a file system without locks, warn and return a lock of nothing.

    Waits `timeout` seconds for another holder, by default forever, and raises a `Timeout` then.
    """
    # Otherwise filelock would make a file instead of a lock, which stays after the run and keeps the next one out.
    lock = FileLock(path, timeout=timeout, is_singleton=True, fallback_to_soft=False)
    try:
        held = lock.acquire()
    except (OSError, NotImplementedError) as error:
        if isinstance(error, Timeout) or getattr(error, "errno", errno.ENOSYS) not in NO_LOCKS:
            raise
        logger.warning("%s: no locks on this file system; start no second run in this folder", Path(path).parent)
        return nullcontext()
    _locks.append(lock)
    return held

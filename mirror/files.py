"""Files that are whole or not there: written aside, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: str | Path) -> Iterator[Path]:
    """The name to write a file under; when the block ends it becomes `path`, and when the block fails nothing is left.

    The underscore hides the file from programs that read all files of a folder, the number of the process keeps two
    writers apart.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"_{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, aside and renamed."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")

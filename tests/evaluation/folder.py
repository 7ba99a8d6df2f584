"""Small data folders in the layout of the tasks, tasks by name, and a fake encoder with known cosines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from mirror.evaluation.run import all_tasks
from mirror.evaluation.task import Options, Task


def write_tsv(path: Path, header: Sequence[str], rows: Iterable[Sequence]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(str(field) for field in row) for row in (header, *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def task_named(name: str, data_dir: Path, **options) -> Task:
    """Return a task on a data folder; `options` are fields of `Options`."""
    return all_tasks(data_dir, Options(**options))[name]


def pairs(count: int, top: float = 5.0) -> list[tuple[str, str, float]]:
    """Return rows ("a n", "b n", score) whose scores decrease evenly from `top` to 0; so do cosines of `on_a_circle`."""
    return [(f"a {n}", f"b {n}", round(top * (1 - n / (count - 1)), 6)) for n in range(count)]


def on_a_circle(texts: Sequence[str]) -> np.ndarray:
    """Encode "a n" as the x axis and "b n" at an angle of n/1000 radian from it; (N, 2)."""
    angles = np.array([0.001 * int(text.split()[1]) if text.startswith("b") else 0.0 for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

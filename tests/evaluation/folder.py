"""Small data folders in the harness's own layout, with vectors whose cosines are known beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np


def write_tsv(path: Path, header: Sequence[str], rows: Iterable[Sequence]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(str(field) for field in row) for row in (header, *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def pairs(count: int, top: float = 5.0) -> list[tuple[str, str, float]]:
    """Row n is ("a n", "b n", score), the score falling evenly from `top` to 0: as the cosine of `on_a_circle` does."""
    return [(f"a {n}", f"b {n}", round(top * (1 - n / (count - 1)), 6)) for n in range(count)]


def on_a_circle(texts: Sequence[str]) -> np.ndarray:
    """(N, 2): "a n" points along x, "b n" is turned away from it by n thousandths of a radian."""
    angles = np.array([0.001 * int(text.split()[1]) if text.startswith("b") else 0.0 for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

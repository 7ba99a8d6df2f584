"""What a task is: data that says where its files are, how it is scored, and which protocol the number follows.

A task sees a data folder and an `encode` function, never a checkpoint; `encode(list of N texts)` gives (N, D) float32.
The exception says so: a task that trains gets the encoder itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirror.errors import InputError


if TYPE_CHECKING:
    from mirror.encoder import Encoder


Encode = Callable[[Sequence[str]], np.ndarray]
Columns = dict[str, list[str]]


@dataclass(frozen=True)
class DataFile:
    """A tab-separated file of the data folder: UTF-8, one header line, no quoting."""

    path: str  # relative to the data folder
    columns: tuple[str, ...]
    rows: tuple[int, ...] = ()  # the sizes it may have; empty: any
    score_range: tuple[float, float] | None = None  # what the column `score` must lie in

    def read(self, data_dir: Path) -> Columns:
        """The file as columns of strings.

        Raises:
            InputError: missing, not UTF-8, another header, a row with another number of fields, a wrong number of rows,
                a score outside its range. The message names the file, the row and what was expected.
        """
        path = data_dir / self.path
        if not path.is_file():
            raise InputError(f"{path} is missing; data_scripts/prepare_eval_data.py --help says how to get it")
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() would also cut at U+2028
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8 (byte {error.start})") from error
        # Blank lines carry nothing, but they count when a later line is named.
        numbered = [(number, line.split("\t")) for number, line in enumerate(lines, start=1) if line]
        header = numbered[0][1] if numbered else []
        if missing := [column for column in self.columns if column not in header]:
            raise InputError(f"{path}: no column {missing[0]!r}; the header has {header}")
        for number, row in numbered[1:]:
            if len(row) != len(header):
                raise InputError(f"{path}, line {number}: {len(row)} fields, expected {len(header)}")
        self._check_size(path, len(numbered) - 1)
        if self.score_range:
            self._check_scores(path, header.index("score"), numbered[1:])
        return {name: [row[index] for _, row in numbered[1:]] for index, name in enumerate(header)}

    def _check_size(self, path: Path, found: int) -> None:
        if (self.rows and found not in self.rows) or not found:
            expected = " or ".join(f"{size:,}" for size in self.rows) or "at least one"
            raise InputError(f"{path} has {found:,} rows, expected {expected}; the file is short or another version")

    def _check_scores(self, path: Path, column: int, numbered: list[tuple[int, list[str]]]) -> None:
        low, high = self.score_range
        for number, row in numbered:
            try:
                good = low <= float(row[column]) <= high
            except ValueError:
                good = False
            if not good:
                raise InputError(
                    f"{path}, line {number}: score {row[column]!r} is not a number in [{low:g}, {high:g}]"
                )


@dataclass(frozen=True)
class Task:
    """One number to report.

    `score(encode, data_dir)` returns `main_score`, `num_examples` and any further fields for results.json; a task
    without files returns its own `data_sha256` too. A task that trains gets the encoder in place of `encode`, and leaves
    it as it was.
    """

    name: str
    metric: str  # of the main score: "spearman_cosine", "accuracy", ...
    protocol: str  # one line: exactly how the number was made
    files: tuple[DataFile, ...]
    score: Callable[[Encode, Path], dict] | Callable[[Encoder, Path], dict]
    groups: tuple[str, ...] = ()
    trains: bool = False  # a copy of the encoder
    published: str = ""  # the row of a paper or leaderboard that this can be checked against

    def missing_files(self, data_dir: Path) -> list[str]:
        """Paths of the task's files that the folder does not have."""
        return [str(data_dir / file.path) for file in self.files if not (data_dir / file.path).is_file()]

    def check(self, data_dir: Path) -> None:
        """Read every file once, so that a damaged one is named before hours of encoding.

        Raises:
            InputError: see `DataFile.read`.
        """
        for file in self.files:
            file.read(data_dir)

    def data_sha256(self, data_dir: Path) -> str:
        """One hash over all files of the task, in their order."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update((data_dir / file.path).read_bytes())
        return digest.hexdigest()

"""Definition of an evaluation task: its data files, its score function, its metric and its protocol.

A task receives a data folder and a function `encode(list of N texts) -> (N, D) float32`, never a checkpoint. Tasks
with `trains=True` receive the encoder instead.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.errors import InputError, library_errors


if TYPE_CHECKING:
    from mirror.modeling.encoder import Encode, Encoder


Columns = dict[str, list[str]]


@dataclass(frozen=True)
class DataFile:
    """A tab-separated file of the data folder: UTF-8, one header line, no quoting."""

    path: str  # relative to the data folder
    columns: tuple[str, ...]
    rows: tuple[int, ...] = ()  # accepted numbers of rows; empty: any
    score_range: tuple[float, float] | None = None  # lowest and highest value of the column `score`

    def read(self, data_dir: Path) -> Columns:
        """Read and validate the file; return its columns as lists of strings.

        Raises:
            InputError: the file is missing or not UTF-8, a column is missing, a row has the wrong number of fields,
                the number of rows is wrong, or a score is out of range. The message names the file, the line and what
                was expected.
        """
        path = data_dir / self.path
        if not path.is_file():
            raise InputError(f"{path} is missing; make it with: {preparation(['TASK'], data_dir)}")
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() would also split at U+2028
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8 (byte {error.start}); convert the file to UTF-8") from error
        # Blank lines are skipped, but they count in the line numbers of error messages.
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
            raise InputError(
                f"{path} has {found:,} rows, expected {expected}; the file is truncated or another version"
            )

    def _check_scores(self, path: Path, column: int, numbered: list[tuple[int, list[str]]]) -> None:
        low, high = self.score_range
        for number, row in numbered:
            try:
                valid = low <= float(row[column]) <= high
            except ValueError:
                valid = False
            if not valid:
                raise InputError(
                    f"{path}, line {number}: score {row[column]!r} is not a number in [{low:g}, {high:g}]"
                )


@dataclass(frozen=True)
class Task:
    """An evaluation task with one main score.

    `score(encode, data_dir)` returns `main_score`, `num_examples` and any further fields for results.json. A task
    without files also returns its own `data_sha256`. A task with `trains=True` receives the encoder instead of
    `encode` and must not modify it. A task with `takes_second_encode=True` receives a third argument, the `encode` of
    its second language, which is the first one unless the user gave a second model.
    """

    name: str
    metric: str  # of the main score: "spearman_cosine", "accuracy", ...
    protocol: str  # one line: how the main score is computed
    files: tuple[DataFile, ...]
    score: Callable[[Encode, Path], dict] | Callable[[Encoder, Path], dict] | Callable[[Encode, Path, Encode], dict]
    groups: tuple[str, ...] = ()
    trains: bool = False  # whether scoring trains a copy of the encoder
    takes_second_encode: bool = False  # whether the second language may have an encoder of its own
    published: str = ""  # the table of a paper or the leaderboard with comparable scores
    check_other_data: Callable[[], None] | None = None  # raises InputError if data that is not in `files` is missing

    def missing_files(self, data_dir: Path) -> list[str]:
        """Paths of the task's files that are missing from the data folder."""
        return [str(data_dir / file.path) for file in self.files if not (data_dir / file.path).is_file()]

    def check(self, data_dir: Path) -> None:
        """Read every file once, so that a damaged file is reported before anything is encoded.

        Raises:
            InputError: see `DataFile.read`.
        """
        for file in self.files:
            with library_errors(str(data_dir / file.path)):
                file.read(data_dir)
        if self.check_other_data:
            self.check_other_data()

    def is_available(self, data_dir: Path) -> bool:
        """Whether the data of the task exists; files are not read."""
        try:
            if self.check_other_data:
                self.check_other_data()
        except InputError:
            return False
        return not self.missing_files(data_dir)

    def data_sha256(self, data_dir: Path) -> str:
        """SHA-256 of the concatenated files of the task, in the order of `files`."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update((data_dir / file.path).read_bytes())
        return digest.hexdigest()


def preparation(tasks: Sequence[str], data_dir: Path) -> str:
    """The command that makes the data of `tasks`; a pip installation is told where its script is."""
    script = Path(__file__).resolve().parents[2] / "data_scripts" / "prepare_eval_data.py"
    arguments = f"--tasks {' '.join(tasks)} --output_dir {shlex.quote(str(data_dir))}"
    if script.is_file():
        return f"python {shlex.quote(os.path.relpath(script))} {arguments}"
    return f"python data_scripts/prepare_eval_data.py {arguments} (in a clone of the repository; pip installs no data_scripts)"

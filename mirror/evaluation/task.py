"""Evaluation tasks as data: the files of a task, its score, its protocol, its data set and its figures.

A task receives a data folder and a function `encode(list of N texts) -> (N, D) float32`, never a checkpoint. Those on a
user's own files share how files are read, names of columns and numbers in cells. Imports neither torch nor datasets.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.errors import InputError, library_errors, one_line


if TYPE_CHECKING:
    from mirror.modeling.encoder import Encode, Encoder

Columns = dict[str, list[str]]
TABLE_ENDINGS = ("jsonl", "json", "csv", "tsv", "parquet")  # each also as .gz
MTEB = "mteb:"  # begins the name of a task of mteb
TRIPLET = ("anchor", "positive", "negative")


@dataclass(frozen=True)
class DataFile:
    """A tab-separated file of the data folder: UTF-8 with one header line."""

    path: str  # relative to the data folder, or absolute
    columns: tuple[str, ...]
    rows: tuple[int, ...] = ()  # accepted numbers of rows; empty: any
    score_range: tuple[float, float] | None = None  # lowest and highest value of the column `score`
    quoted: bool = False  # whether fields may be quoted and then contain line breaks

    def read(self, data_dir: Path) -> Columns:
        """Read and validate the file and return its columns as lists of strings.

        Raises:
            InputError: The file is missing or damaged. The message names the file, the line and what was expected.
        """
        path = data_dir / self.path
        if not path.is_file():
            raise InputError(f"{path} is missing; make it with: {preparation(['TASK'], data_dir)}")
        # Blank lines are skipped, but they count in the line numbers of error messages.
        numbered = [(number, line.split("\t")) for number, line in enumerate(_read_lines(path), start=1) if line]
        if self.quoted:
            with library_errors(str(path)):
                reader = csv.reader((f"{line}\n" for line in _read_lines(path)), delimiter="\t")
                numbered = [(reader.line_num, row) for row in reader if row]
        header = numbered[0][1] if numbered else []
        if missing := [column for column in self.columns if column not in header]:
            raise InputError(f"{path}: no column {missing[0]!r}; the header has {header}")
        for number, row in numbered[1:]:
            if len(row) != len(header):
                raise InputError(f"{path}, line {number}: {len(row)} fields, expected {len(header)}")
        self._check_size(path, len(numbered) - 1)
        for number, row in numbered[1:] if self.score_range else ():
            score, (low, high) = row[header.index("score")], self.score_range
            with contextlib.suppress(ValueError):
                if low <= float(score) <= high:  # False for nan
                    continue
            raise InputError(f"{path}, line {number}: score {score!r} is not a number in [{low:g}, {high:g}]")
        return {name: [row[index] for _, row in numbered[1:]] for index, name in enumerate(header)}

    def _check_size(self, path: Path, found: int) -> None:
        if (self.rows and found not in self.rows) or not found:
            expected = " or ".join(f"{size:,}" for size in self.rows) or "at least one"
            fix = "the file is truncated or another version"
            raise InputError(f"{path} has {found:,} rows, expected {expected}; {fix}")


@dataclass(frozen=True)
class LineFile(DataFile):
    """A UTF-8 file with one entry per line and no header, such as `a||b||c`. Blank lines are skipped."""

    separator: str | None = None  # None: the whole line is the only column
    distinct: bool = False  # whether blank and repeated lines are errors, as in a list of words

    def read(self, data_dir: Path) -> Columns:
        """Read the file as `DataFile.read` does and return its columns as lists of stripped strings."""
        path, rows, seen = data_dir / self.path, [], {}
        lines = [line.strip() for line in _read_lines(path)]
        for number, line in enumerate(lines if lines[-1] else lines[:-1], start=1):
            if self.distinct and not line:
                raise InputError(f"{path}, line {number} is blank; give one word per line")
            if self.distinct and seen.setdefault(line, number) != number:
                raise InputError(f"{path}, line {number} repeats '{line}' of line {seen[line]}; remove repeated words")
            if line:
                fields = line.split(self.separator) if self.separator else [line]
                if len(fields) != len(self.columns):
                    raise InputError(f"{path}, line {number}: {len(fields)} fields, expected {len(self.columns)}")
                rows.append([field.strip() for field in fields])
        self._check_size(path, len(rows))
        return {name: list(values) for name, values in zip(self.columns, zip(*rows, strict=True), strict=True)}


@dataclass(frozen=True)
class Options:
    """Settings of the task families that a user can choose. Flags of run_eval.py have the same names."""

    second_model_name_or_path: str | None = None
    bli_vocabulary: str | None = None
    bli_self_learning: bool = False
    bel_add_mentions: bool = False
    isotropy_texts: str | None = None
    senteval_dir: str | None = None


@dataclass(frozen=True)
class Task:
    """An evaluation task with one main score.

    `score(encode, data_dir)` returns `main_score`, `num_examples` and any further fields for results.json. A task without files
    also returns its own `data_sha256`. With `trains` it gets the encoder instead of `encode` and must not modify it, with
    `takes_second_encode` also the `encode` of its second language. `plot({model: entry of results.json}, folder)` draws what the
    results contain, and returns the paths.
    """

    name: str
    metric: str  # of the main score: "spearman_cosine", "accuracy", ...
    protocol: str  # one line: how the main score is computed
    files: tuple[DataFile, ...]
    score: Callable[[Encode, Path], dict] | Callable[[Encoder, Path], dict] | Callable[[Encode, Path, Encode], dict]
    groups: tuple[str, ...] = ()
    dataset: str = ""  # usual name of the data set, for model cards
    hub: tuple[str, ...] = ()  # the data set's id on the Hub, then its configuration and its split
    published: str = ""  # the table of a paper or the leaderboard with comparable scores
    trains: bool = False  # whether scoring trains a copy of the encoder
    takes_second_encode: bool = False  # whether the second language may have an encoder of its own
    check_other_data: Callable[[], None] | None = None  # raises InputError if data that is not in `files` is missing
    plot: Callable[[Mapping[str, dict], Path], list[Path]] | None = None

    def missing_files(self, data_dir: Path) -> list[str]:
        """Return the paths of the task's files that do not exist."""
        return [str(data_dir / file.path) for file in self.files if not (data_dir / file.path).is_file()]

    def check(self, data_dir: Path) -> None:
        """Read every file once, so that a damaged file raises an `InputError` before anything is encoded."""
        for file in self.files:
            file.read(data_dir)
        if self.check_other_data:
            self.check_other_data()

    def is_available(self, data_dir: Path) -> bool:
        """Return whether the data of the task exists. The files are not read."""
        try:
            if self.check_other_data:
                self.check_other_data()
        except InputError:
            return False
        return not self.missing_files(data_dir)

    def data_sha256(self, data_dir: Path) -> str:
        """Return the SHA-256 of the concatenated files of the task, in the order of `files`."""
        digest = hashlib.sha256()
        for file in self.files:
            with (data_dir / file.path).open("rb") as content:
                while block := content.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def dataset_fields(self) -> dict[str, str]:
        """Return the data set as fields of `huggingface_hub.EvalResult`. Without a Hub id its type is the task's name."""
        on_hub = zip(("dataset_type", "dataset_config", "dataset_split"), self.hub, strict=False)
        return {"dataset_name": self.dataset or self.name, "dataset_type": self.name} | dict(on_hub)


def preparation(tasks: Sequence[str], data_dir: Path) -> str:
    """Return the command that makes the data of `tasks`, of which paths of a user's own files are left out."""
    script = Path(__file__).resolve().parents[2] / "data_scripts" / "prepare_eval_data.py"
    named = " ".join(task for task in tasks if not Path(task).exists() and not re.search(r"[/:.]", task))
    arguments = f"--tasks {named} --output_dir {shlex.quote(str(data_dir))}"
    if script.is_file():
        return f"python {shlex.quote(os.path.relpath(script))} {arguments}"
    return f"python data_scripts/prepare_eval_data.py {arguments} (in a clone of the repository; pip installs no data_scripts)"


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. A file that ends with a line break has an empty last line."""
    try:
        with library_errors(f"cannot read {path}", let_through=(UnicodeDecodeError,)):
            return path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() would also split at U+2028
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); convert the file to UTF-8") from error


class FileTask(Task):
    """Task on a user's files of any format, which `check_other_data` reads and checks."""

    def check(self, data_dir: Path) -> None:
        self.check_other_data()

    def is_available(self, data_dir: Path) -> bool:
        return not self.missing_files(data_dir)  # a wrong file is an error, and not missing data


def file_task(
    name: str, metric: str, protocol: str, dataset: str, read: Callable, inputs: tuple, score: Callable
) -> FileTask:
    """Build a task on files: `read(*inputs)`, of paths and settings, reads and checks, `score(data, encode)` scores.

    What was read of the same files before is not read again.
    """
    paths = [each for each in inputs if isinstance(each, Path)]

    def load():
        return _read(read, inputs, tuple((it.st_mtime_ns, it.st_size, it.st_ino) for it in map(Path.stat, paths)))

    files = tuple(DataFile(str(path), ()) for path in paths)
    fields = {"dataset": dataset, "check_other_data": load}
    return FileTask(name, metric, protocol, files, lambda encode, data_dir: score(load(), encode), **fields)


@lru_cache(maxsize=8)
def _read(read: Callable, inputs: tuple, versions: tuple):
    return read(*inputs)


def stem(path: Path) -> str:
    """Return a file's name without its ending and without `.gz`."""
    return path.name.removesuffix(".gz").rpartition(".")[0]


def is_task(path: Path) -> bool:
    """Return whether the columns of a file make it a task (`own_tables.table_task`), and not only a file of texts."""
    from mirror.data.files import ending_of  # late: they import datasets, which a list of tasks does not need
    from mirror.data.tables import columns_of

    if ending_of(path) not in TABLE_ENDINGS:
        return False
    known = set(columns_of(path))
    return bool(known & {"score", "label"}) or known >= set(TRIPLET)


def find_column(path: Path, known: Sequence[str], names: Sequence[str]) -> str:
    """Return the first of `names` among the `known` columns of a file. An `InputError` if there is none."""
    for name in names:
        if name in known:
            return name
    raise InputError(f"{path} has no column '{names[0]}'; it has {', '.join(known)}")


def parse_number(text: str, where: str) -> float:
    """Parse a finite number, or raise an `InputError` that begins with `where`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where} is {one_line(repr(text), 80)}, not a number")
    return value

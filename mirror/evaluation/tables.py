"""Parts that the tasks on a user's own files share: formats, names of columns, numbers in cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from mirror.common.errors import InputError, one_line
from mirror.data.files import ending_of
from mirror.data.tables import columns_of
from mirror.evaluation.task import DataFile, Task


TABLE_ENDINGS = ("jsonl", "json", "csv", "tsv", "parquet")  # each also as .gz
TRIPLET = ("anchor", "positive", "negative")


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
        return _read(read, inputs, tuple(map(_version_of, paths)))

    files = tuple(DataFile(str(path), ()) for path in paths)
    fields = {"dataset": dataset, "check_other_data": load}
    return FileTask(name, metric, protocol, files, lambda encode, data_dir: score(load(), encode), **fields)


@lru_cache(maxsize=8)
def _read(read: Callable, inputs: tuple, versions: tuple):
    return read(*inputs)


def _version_of(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def stem(path: Path) -> str:
    """Return a file's name without its ending and without `.gz`."""
    return path.name.removesuffix(".gz").rpartition(".")[0]


def is_task(path: Path) -> bool:
    """Return whether the columns of a file make it a task (`own_tables.table_task`), and not only a file of texts."""
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

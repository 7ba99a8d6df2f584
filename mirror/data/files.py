"""Names of files, and their lines. An error in a file becomes one line that names it."""

from __future__ import annotations

import glob
import gzip
import io
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets.exceptions import DatasetGenerationError

from mirror.common.errors import InputError, library_errors


logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # they log what they raise

ENDINGS = ("txt", "csv", "tsv", "json", "jsonl", "parquet")
MAX_LINE_BYTES = 1 << 20  # a longer line is not a text to embed
MAX_FILE_WITHOUT_LINES = 1 << 26  # bytes; a longer "line" is a file without line ends
MAX_UNPACKING = 200  # a .gz of text unpacks to some three times its size, one of nothing but newlines to a thousand


def expand_paths(patterns: Iterable[str]) -> list[Path]:
    """Return the files of names, folders and globs, in order. Of a folder, take the files with a known ending.

    Raises an `InputError` if nothing matches one of them, or its ending is unknown.
    """
    paths = []
    for pattern in patterns:
        if Path(pattern).is_file():  # before globbing, because a name may contain brackets
            found = [Path(pattern)]
        elif pattern and Path(pattern).is_dir():
            found = sorted(path for path in Path(pattern).iterdir() if path.is_file() and _is_data(path))
        else:
            found = sorted(Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
        if not found:
            problem = "no texts or documents in this folder" if pattern and Path(pattern).is_dir() else "no such file"
            raise InputError(f"{pattern or repr(pattern)}: {problem}")
        paths += found
    for path in paths:
        if ending_of(path) not in ENDINGS:
            raise InputError(f"{path}: unknown ending; one of {', '.join(ENDINGS)}, each also as .gz")
    return paths


def _is_data(path: Path) -> bool:
    # Names that begin so are the notes of an operating system or of an office program about another file.
    return not path.name.startswith((".", "~$")) and ending_of(path) in ENDINGS


def ending_of(path: Path | str) -> str:
    """Return the ending of a file's name in lower case, without `.gz`: its format."""
    return Path(path).name.lower().removesuffix(".gz").rpartition(".")[2]


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file or .gz with their ends. Only a newline ends one, and a byte order mark is left out.

    Raises an `InputError`, which names the line, if the file is empty, not UTF-8, binary, without lines, or a .gz that
    unpacks to far more than text would.
    """
    is_packed = path.name.lower().endswith(".gz")
    number, total, encoding = 0, 0, "utf-8-sig"
    # GzipFile.readline alone takes a microsecond a line.
    with library_errors(str(path)), io.BufferedReader(gzip.open(path) if is_packed else io.FileIO(str(path))) as file:
        limit = max(MAX_LINE_BYTES, MAX_UNPACKING * path.stat().st_size)
        while line := file.readline(MAX_FILE_WITHOUT_LINES + 2):
            number, total = number + 1, total + len(line)
            if b"\0" in line:
                raise InputError(f"{path}, line {number}: not a text file (a NUL byte)")
            if is_packed and total > limit:
                raise InputError(f"{path}: unpacks to over {MAX_UNPACKING} times its size, which no text does")
            if len(line) > MAX_FILE_WITHOUT_LINES + 1:
                what = f"{path}, line {number}"
                raise InputError(f"{what}: not a text file (a line over {MAX_FILE_WITHOUT_LINES:,} bytes)")
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError as error:
                what = f"{path}, line {number}: not UTF-8 ({error.reason})"
                raise InputError(f"{what}; convert it, e.g. with iconv") from error
            encoding = "utf-8"
            yield text
    if not total:
        raise InputError(f"{path} is empty")


def check_text_file(path: Path) -> None:
    """Read a text file to its end for the errors of `text_lines`."""
    deque(text_lines(path), maxlen=0)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn errors of the libraries that read rows into one line that begins with `name`."""
    with library_errors(name, let_through=(RuntimeError,)):  # out of memory, or a worker that was killed
        try:
            yield
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None

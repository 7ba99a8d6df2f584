"""Names of files, and checks of their bytes before they are read. An error in a file becomes one line that names it."""

from __future__ import annotations

import codecs
import glob
import gzip
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pyarrow.parquet as pq
from datasets.exceptions import DatasetGenerationError

from mirror.common.errors import InputError, library_errors


logger = logging.getLogger(__name__)
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


def open_text(path: Path) -> TextIO:
    """Open a text file or .gz to read. Lines end at newlines only, and a byte order mark is no part of the first one."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    return opener(path, "rt", encoding="utf-8-sig", newline="\n")


def check_file(path: Path, strict: bool = False) -> None:
    """Refuse a damaged file, before a library fails on it, and log the lines of a txt file that are left out.

    Args:
        strict: refuse a txt file with a line over a megabyte.
    """
    if ending_of(path) == "parquet":
        with reading(str(path)):
            pq.read_schema(path)
        return
    long_lines = check_text_file(path)
    if ending_of(path) != "txt" or not long_lines:
        return
    if strict:
        raise InputError(f"{path}, line {long_lines[0]}: over 1 MB; break it into texts")
    logger.warning("%s: %d line(s) over 1 MB left out, first line %d", path, len(long_lines), long_lines[0])


def check_text_file(path: Path) -> list[int]:
    """Refuse a file that is not text, before a library fails on it. Return the numbers of the lines over a megabyte.

    Raises an `InputError`, which names the line, if the file is empty, not UTF-8, binary, without lines, or a .gz that
    unpacks to far more than text would.
    """
    is_packed = path.name.lower().endswith(".gz")
    number, length, total, long_lines = 1, 0, 0, []  # `number` and `length` of the line at the end of what was read
    decode = codecs.getincrementaldecoder("utf-8")().decode
    with library_errors(str(path)), (gzip.open if is_packed else open)(path, "rb") as file:
        limit = max(MAX_LINE_BYTES, MAX_UNPACKING * path.stat().st_size)
        while block := file.read(MAX_LINE_BYTES):  # so that only the first line that ends in a block can be too long
            if b"\0" in block:
                number += block.count(b"\n", 0, block.index(b"\0"))
                raise InputError(f"{path}, line {number}: not a text file (a NUL byte)")
            try:
                decode(block, final=len(block) < MAX_LINE_BYTES)
            except UnicodeDecodeError as error:
                number += error.object.count(b"\n", 0, error.start)
                what = f"{path}, line {number}: not UTF-8 ({error.reason})"
                raise InputError(f"{what}; convert it, e.g. with iconv") from error
            total += len(block)
            if is_packed and total > limit:
                raise InputError(f"{path}: unpacks to over {MAX_UNPACKING} times its size, which no text does")
            end = block.find(b"\n")
            length += len(block) if end < 0 else end
            if length > (most := MAX_FILE_WITHOUT_LINES):
                raise InputError(f"{path}, line {number}: not a text file (a line over {most:,} bytes)")
            if end >= 0:
                long_lines += [number] if length > MAX_LINE_BYTES else []
                number += block.count(b"\n")
                length = len(block) - block.rfind(b"\n") - 1
    if not total:
        raise InputError(f"{path} is empty")
    return long_lines + ([number] if length > MAX_LINE_BYTES else [])


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn errors of the libraries that read rows into one line that begins with `name`."""
    with library_errors(name, let_through=(RuntimeError,)):  # out of memory, or a worker that was killed
        try:
            yield
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None

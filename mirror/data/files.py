"""Files of every format become rows. An error in a file becomes one line that names it."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetGenerationError

from mirror.common.errors import InputError, library_errors
from mirror.data.cache import load_dataset


logger = logging.getLogger(__name__)
logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # they log what they raise

BUILDERS = {"txt": "text", "csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "parquet": "parquet"}
SEPARATORS = {"csv": ",", "tsv": "\t"}
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
        elif Path(pattern).is_dir():
            found = sorted(path for path in Path(pattern).iterdir() if path.is_file() and _ending(path) in BUILDERS)
        else:
            found = sorted(Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
        if not found:
            raise InputError(f"{pattern}: no such file")
        paths += found
    for path in paths:
        if _ending(path) not in BUILDERS:
            raise InputError(f"{path}: unknown ending; one of {', '.join(BUILDERS)}, each also as .gz")
    return paths


def _ending(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[2].lower()


def open_file(path: Path, streaming: bool, strict: bool = False) -> Dataset | IterableDataset:
    """Return the rows of a file. `strict`: refuse a txt file with a line over a megabyte instead of dropping it."""
    ending = _ending(path)
    options = {"encoding": "utf-8-sig"} if ending == "txt" else {}  # without a byte order mark before the first text
    long_lines: list[int] = []
    if ending == "parquet":
        with reading(str(path)):
            pq.read_schema(path)  # otherwise damage would look like damage of the cache
    else:
        long_lines = check_text_file(path)
    if ending in SEPARATORS:
        # Every column as a string: "007" stays "007", and "null" is a word.
        opener = gzip.open if path.suffix == ".gz" else open
        try:
            with opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
                header = next(csv.reader(lines, delimiter=SEPARATORS[ending]), [])
        except csv.Error as error:
            raise InputError(f"{path}, line 1: {error}") from error
        if not header:
            raise InputError(f"{path}, line 1: no names of columns")
        features = Features({name: Value("string") for name in header})
        options = {"sep": SEPARATORS[ending], "keep_default_na": False, "features": features}
        if len(header) == 1:
            options["skip_blank_lines"] = False  # a blank line is a row like any other
        if ending == "tsv":
            options["quoting"] = csv.QUOTE_NONE
    options |= {"data_files": glob.escape(str(path)), "split": "train", "streaming": streaming}
    with reading(str(path)):
        rows = load_dataset(BUILDERS[ending], **options)
    if ending != "txt" or not long_lines:
        return rows
    if strict:
        raise InputError(f"{path}, line {long_lines[0]}: over 1 MB; break it into texts")
    logger.warning("%s: %d line(s) over 1 MB left out, first line %d", path, len(long_lines), long_lines[0])
    return rows.filter(_is_short)


def check_text_file(path: Path) -> list[int]:
    """Refuse a file that is not text, before a library fails on it. Return the numbers of the lines over a megabyte.

    Raises an `InputError`, which names the line, if the file is empty, not UTF-8, binary, without lines, or a .gz that
    unpacks to far more than text would.
    """
    is_packed = path.suffix == ".gz"
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


def _is_short(record: dict[str, str]) -> bool:
    return len(record["text"].encode("utf-8", "surrogatepass")) <= MAX_LINE_BYTES


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn errors of the libraries that read rows into one line that begins with `name`."""
    with library_errors(name, let_through=(RuntimeError,)):  # out of memory, or a worker that was killed
        try:
            yield
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None

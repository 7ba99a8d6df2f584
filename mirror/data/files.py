"""Files of every format become rows, and what is wrong with a file becomes one line that names it."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetGenerationError

from mirror.common.errors import InputError, library_errors
from mirror.data.arrow_cache import load_dataset


logger = logging.getLogger(__name__)
logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # they log what they raise

BUILDERS = {"txt": "text", "csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "parquet": "parquet"}
SEPARATORS = {"csv": ",", "tsv": "\t"}
MAX_LINE_BYTES = 1 << 20  # a longer line is not a text to embed
MAX_FILE_WITHOUT_LINES = 1 << 26  # bytes; a longer "line" is a file without line ends
MAX_UNPACKING = 200  # a .gz of text unpacks to some three times its size, one of nothing but newlines to a thousand


def expand_paths(patterns: Iterable[str]) -> list[Path]:
    """Files of names, folders and globs, in order; of a folder, the files with an ending that is read.

    Raises:
        InputError: nothing matches one of them, or its ending is not one that is read.
    """
    paths = []
    for pattern in patterns:
        if Path(pattern).is_file():  # also a name with brackets in it
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
    """The rows of a file, without the lines of a txt file that are over a megabyte, or with `strict` refused for them."""
    ending = _ending(path)
    options = {"encoding": "utf-8-sig"} if ending == "txt" else {}  # without a byte order mark before the first text
    long_lines = []
    if ending == "parquet":
        with reading(str(path)):
            pq.read_schema(path)  # or damage would look like that of the cache
    else:
        long_lines = check_text_file(path)
    if ending in SEPARATORS:
        # Every column as a string: "007" stays "007", and "null" is a word.
        header = _csv_header(path, SEPARATORS[ending])
        features = Features({name: Value("string") for name in header})
        options = {"sep": SEPARATORS[ending], "keep_default_na": False, "features": features}
        if len(header) == 1:
            options["skip_blank_lines"] = False  # such a line is a row like any other, and counts as one
        if ending == "tsv":
            options["quoting"] = csv.QUOTE_NONE
    with reading(str(path)):
        rows = load_dataset(
            BUILDERS[ending], data_files=glob.escape(str(path)), split="train", streaming=streaming, **options
        )
    if ending != "txt" or not long_lines:
        return rows
    if strict:
        raise InputError(f"{path}, line {long_lines[0]}: over 1 MB; break it into texts")
    logger.warning("%s: %d line(s) over 1 MB left out, first line %d", path, len(long_lines), long_lines[0])
    return rows.filter(_is_short)


def check_text_file(path: Path) -> list[int]:
    """Refuse what is no text, before a library trips over it.

    Returns:
        The numbers of the lines over a megabyte.

    Raises:
        InputError: empty, not UTF-8, binary, without lines, or a .gz that unpacks to far more than a text would; names the
            line.
    """
    is_packed = path.suffix == ".gz"
    number, length, total, long_lines = 1, 0, 0, []  # of the line at the end of what was read
    decode = codecs.getincrementaldecoder("utf-8")().decode
    with library_errors(str(path)), (gzip.open if is_packed else open)(path, "rb") as file:
        limit = max(MAX_LINE_BYTES, MAX_UNPACKING * path.stat().st_size)
        while block := file.read(MAX_LINE_BYTES):  # so that only the first line that ends in a block can be too long
            _check_block(block, partial(decode, final=len(block) < MAX_LINE_BYTES), path, number)
            total += len(block)
            if is_packed and total > limit:
                raise InputError(f"{path}: unpacks to over {MAX_UNPACKING} times its size, which no text does")
            end = block.find(b"\n")
            length += len(block) if end < 0 else end
            if length > MAX_FILE_WITHOUT_LINES:
                raise InputError(
                    f"{path}, line {number}: not a text file (a line over {MAX_FILE_WITHOUT_LINES:,} bytes)"
                )
            if end >= 0:
                long_lines += [number] if length > MAX_LINE_BYTES else []
                number += block.count(b"\n")
                length = len(block) - block.rfind(b"\n") - 1
    if not total:
        raise InputError(f"{path} is empty")
    return long_lines + ([number] if length > MAX_LINE_BYTES else [])


def _check_block(block: bytes, decode: Callable[[bytes], str], path: Path, number: int) -> None:
    """
    Args:
        number: of the line at the start of the block.

    Raises:
        InputError: bytes that are not text; names the line.
    """
    if b"\0" in block:
        number += block.count(b"\n", 0, block.index(b"\0"))
        raise InputError(f"{path}, line {number}: not a text file (a NUL byte)")
    try:
        decode(block)
    except UnicodeDecodeError as error:
        number += error.object.count(b"\n", 0, error.start)
        raise InputError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert it, e.g. with iconv") from error


def _csv_header(path: Path, separator: str) -> list[str]:
    """
    Raises:
        InputError: the first line is blank, or no csv.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            header = next(csv.reader(lines, delimiter=separator), [])
    except csv.Error as error:
        raise InputError(f"{path}, line 1: {error}") from error
    if not header:
        raise InputError(f"{path}, line 1: no names of columns")
    return header


def _is_short(record: dict[str, str]) -> bool:
    return len(record["text"].encode("utf-8", "surrogatepass")) <= MAX_LINE_BYTES


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Context in which an error of the libraries that read rows becomes one line that begins with `name`.

    A RuntimeError is of another kind: memory, a worker that was killed.
    """
    with library_errors(name, let_through=(RuntimeError,)):
        try:
            yield
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None

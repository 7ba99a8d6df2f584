"""Local files of every format: their names, and their rows before any library can guess a type, cells as they are spelled.

txt and tsv are split at newlines only. csv is read by RFC 4180: a quotation mark is escaped by a second one, never by a backslash.
An error in a file becomes one line that names it.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets.exceptions import DatasetGenerationError

from mirror.common.errors import InputError, library_errors, one_line


logger = logging.getLogger(__name__)
logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # they log what they raise

ENDINGS = ("txt", "csv", "tsv", "json", "jsonl", "parquet")
MAX_LINE_BYTES = 1 << 20  # a longer line is not a text to embed
MAX_FILE_WITHOUT_LINES = 1 << 26  # bytes; a longer "line" is a file without line ends
MAX_UNPACKING = 200  # a .gz of text unpacks to some three times its size, one of nothing but newlines to a thousand
SEPARATORS = (",", ";", "\t", "|")
PARQUET_ROWS, PARQUET_BYTES = 256, 1 << 24  # decoded at once; and read, as the file has them
CSV_ERRORS = {  # of Python's csv module, and what to do
    "unexpected end of data": "a quotation mark that opens a field is never closed",
    "field larger than": "a field of over 64 MB; is a quotation mark not closed?",
    "new-line character": "a carriage return outside of quotation marks; convert the line ends to \\n",
    "expected after": "text after the quotation mark that closes a field; double the marks within a field",
}

Cells = Iterator[tuple[int, list]]  # number of a line or row, from 1, and what is in it
LEFT_OUT: dict[Path, str] = {}  # what a warning says of the files of which lines were left out


def expand_paths(patterns: Iterable[str]) -> list[Path]:
    """Return the files of names, folders and globs, in order. Of a folder, take the files with a known ending.

    Raises an `InputError` if nothing matches one of them, or its ending is unknown.
    """
    paths = []
    for pattern in patterns:
        if Path(pattern).is_file():  # before globbing, because a name may contain brackets
            found = [Path(pattern)]
        elif pattern and Path(pattern).is_dir():
            # Names that begin so are the notes of an operating system or of an office program about another file.
            found = (path for path in Path(pattern).iterdir() if not path.name.startswith((".", "~$")))
            found = sorted(path for path in found if path.is_file() and ending_of(path) in ENDINGS)
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


class Number(str):
    """A number of a JSON file, as it is spelled there."""


def place(path: Path, number: int) -> str:
    """Return the words for a line or row of a file."""
    return f"{path}, {'row' if ending_of(path) in ('json', 'parquet') else 'line'} {number}"


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text file without their ends. Only a newline ends a line."""
    return (line.removesuffix("\n").removesuffix("\r") for line in text_lines(path))


def texts_of(path: Path, strict: bool = False) -> Cells:
    """Yield number and text of each line of a txt file. One over a megabyte is logged and left out, or refused if `strict`."""
    long_lines = []
    for number, line in enumerate(lines_of(path), start=1):
        if len(line) <= MAX_LINE_BYTES // 4 or len(line.encode()) <= MAX_LINE_BYTES:
            yield number, [line]
        elif strict:
            raise InputError(f"{path}, line {number}: over 1 MB; break it into texts")
        else:
            long_lines.append(number)
    if long_lines:
        LEFT_OUT[path] = f"{len(long_lines)} line(s) over 1 MB left out, first line {long_lines[0]}"
        log_left_out(path)


def records_of(path: Path) -> Cells:
    """Yield line and fields of each record of a csv or tsv file, the header first. All have as many fields as the header.

    The separator is that of the ending, of a first line `sep=;`, or the one at which the header splits.
    """
    lines = text_lines(path)
    number, header = 1, next(lines)
    own = separator = "\t" if ending_of(path) == "tsv" else ","
    if match := re.fullmatch(r'"?sep=(.)"?\r?\n?', header, re.IGNORECASE):  # a line that Excel writes and reads
        separator, number, header = match[1], 2, next(lines, "")
    else:
        counts = {each: _count_fields(header, each) for each in SEPARATORS}
        if counts[own] < 2:
            separator = max(SEPARATORS, key=lambda each: (counts[each], each == own))
    among = "" if separator == own else f" (separated by {separator!r})"
    if own == "\t" and not among:  # a quotation mark of a tsv is a character like any other
        reader = None
        rows = (line.removesuffix("\n").removesuffix("\r").split(separator) for line in chain([header], lines))
    else:
        csv.field_size_limit(MAX_FILE_WITHOUT_LINES)  # there is no other way to read a field of over 128 kB
        rows = reader = csv.reader(chain([header], lines), delimiter=separator, strict=True)
    first, width = number, 0
    try:
        for fields in rows:
            if not width:
                if not any(fields):
                    break
                width = len(fields)
                if among:
                    _log_once(f"Reading {width} columns of {path}{among}", logging.INFO)
            if len(fields) < 2 and not "".join(fields).strip():  # blank; of a single column a row like any other
                fields = [""] if width == 1 else None
            elif len(fields) != width:
                found = f"{len(fields)} field{'s' if len(fields) != 1 else ''}, the header has {width}"
                raise InputError(f"{path}, line {number}: {found}{among}")
            if fields:
                yield number, fields
            number = first + reader.line_num if reader else number + 1
    except csv.Error as error:
        reason = next((words for part, words in CSV_ERRORS.items() if part in str(error)), one_line(error))
        raise InputError(f"{path}, line {number}: {reason}") from None
    if not width:
        raise InputError(f"{path}, line {first}: no names of columns")


def _count_fields(line: str, separator: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=separator, strict=True), []))
    except csv.Error:  # not with this separator
        return 0


def log_left_out(path: Path) -> None:
    """Warn of the lines of a file that are left out, if there are any."""
    if path in LEFT_OUT:
        _log_once(f"{path}: {LEFT_OUT[path]}", logging.WARNING)


@cache
def _log_once(line: str, level: int) -> None:
    logger.log(level, line)


# No number is converted, and pairs of (key, value) show keys that are there twice.
_json = json.JSONDecoder(object_pairs_hook=tuple, parse_int=Number, parse_float=Number, parse_constant=Number)


def objects_of(path: Path, wanted: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield number and values of each object of a JSON file: one per line, or those of one list.

    Also read: objects over several lines, a list of texts (as the column `text`), and one object of lists (columns).
    Raises an `InputError`, which names the line or row, if a `wanted` key is there twice.
    """
    first = next((line for line in text_lines(path) if line.strip()), "").strip()
    is_by_line = not first.startswith("[")
    if is_by_line and ending_of(path) == "json":
        try:
            row = _json.decode(first)
            is_by_line = not (isinstance(row, tuple) and row and all(isinstance(values, list) for _, values in row))
        except (ValueError, RecursionError):
            is_by_line = False
    for number, row in _objects_by_line(path) if is_by_line else _objects_of_whole(path):
        if not isinstance(row, tuple):
            kind = "a list" if isinstance(row, list) else one_line(repr(row), 40)
            raise InputError(f"{place(path, number)}: {kind} is not a JSON object")
        values = dict(row)
        if len(values) < len(row):
            keys = [key for key, _ in row]
            if twice := [name for name in wanted if keys.count(name) > 1]:
                raise InputError(f"{place(path, number)}: the key '{twice[0]}' is there twice; rename one")
        yield number, values


def _objects_by_line(path: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(map(str.strip, text_lines(path)), start=1):
        try:
            if line:
                yield number, _json.decode(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise _json_error(path, error, number) from None


def _objects_of_whole(path: Path) -> Iterator[tuple[int, object]]:
    text, rows, end = "".join(text_lines(path)), [], 0
    try:
        while (end := re.compile(r"\s*").match(text, end).end()) < len(text):
            row, end = _json.raw_decode(text, end)
            rows.append(row)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _json_error(path, error) from None
    if len(rows) == 1 and isinstance(whole := rows[0], list):
        rows = [(("text", row),) for row in whole] if whole and type(whole[0]) is str else whole
    elif len(rows) == 1 and whole and all(isinstance(column, list) for _, column in whole):
        names, columns = zip(*whole, strict=True)
        if len(set(map(len, columns))) > 1:
            raise InputError(f"{path}: its columns have different lengths")
        rows = [tuple(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return enumerate(rows, start=1)


def _json_error(path: Path, error: json.JSONDecodeError | RecursionError, line: int = 0) -> InputError:
    if isinstance(error, RecursionError):
        return InputError(f"{path}{f', line {line}' if line else ''}: JSON that is nested too deeply")
    return InputError(f"{path}, line {line or error.lineno}: not JSON ({error.msg}, column {error.colno})")


def parquet_rows(path: Path, wanted: Sequence[str], only_text: Sequence[str]) -> Cells:
    """Yield number and cells of each row of a parquet file. Only the wanted columns are decoded, a few rows at once.

    A column that is missing is None. Raises an `InputError` if a column of `only_text` holds something else, or if the
    file unpacks to far more than text would.
    """
    limit = max(MAX_FILE_WITHOUT_LINES, MAX_UNPACKING * path.stat().st_size)
    bomb = InputError(f"{path}: unpacks to over {limit:,} bytes, {MAX_UNPACKING} times what text would")
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema in wanted]
    if (unpacked := sum(chunk.total_uncompressed_size for chunk in chunks)) > limit:
        raise bomb
    # A dictionary stays one until its size is known: a few bytes can stand for many copies of a long text.
    packed = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
    file = pq.ParquetFile(path, read_dictionary=sorted(packed))
    found = [name for name in wanted if name in file.schema_arrow.names]
    for name in found:
        if not holds_text(kind := file.schema_arrow.field(name).type) and (
            name in only_text or pa.types.is_nested(kind)
        ):
            raise InputError(f"{path}: column '{name}' holds {one_line(kind)}, not text; choose one with text")
    labels, number, size = _label_names(file.schema_arrow), 0, 0
    at_once = min(max(PARQUET_BYTES * metadata.num_rows // max(unpacked, 1), PARQUET_ROWS), 40 * PARQUET_ROWS)
    for batch in file.iter_batches(at_once, columns=found):
        for column in batch.columns:
            if pa.types.is_dictionary(column.type) and holds_text(column.type):
                size += pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
            else:
                size += column.nbytes
            if size > limit:
                raise bomb
        for part in (batch.slice(start, PARQUET_ROWS) for start in range(0, len(batch), PARQUET_ROWS)):
            cells = dict.fromkeys(wanted, [None] * len(part))
            for name, column in zip(part.schema.names, part.columns, strict=True):
                plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                try:
                    cells[name] = plain.cast(pa.string()).to_pylist()
                except pa.ArrowInvalid as error:
                    what = f"{path}: a column of bytes that are not UTF-8, '{name}'"
                    raise InputError(f"{what} ({one_line(error)}); choose one with text") from error
                if known := labels.get(name):
                    cells[name] = [known.get(cell, cell) for cell in cells[name]]
            for row in zip(*(cells[name] for name in wanted), strict=True):
                number += 1
                yield number, list(row)


def holds_text(kind: pa.DataType) -> bool:
    """Return whether a column of this Arrow type can hold texts: strings or bytes, or nothing at all."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "null")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


def _label_names(schema: pa.Schema) -> dict[str, dict[str, str]]:
    """Return the name of each number of the columns that `datasets` wrote as a `ClassLabel`."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = {name: item["names"] for name, item in features.items() if item.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
    return {name: {str(number): known for number, known in enumerate(items)} for name, items in names.items()}

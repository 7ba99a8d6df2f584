"""Named columns of local files as strings: read once and stored on disk, or streamed.

A date, `007` or `1e5` stays as it is spelled, and columns that nobody asked for are never looked at.

    >>> table = read_table(Path("corpus.jsonl"), ["title", "text"], key="_id", optional=["title"])
    >>> table[0]
    {'title': '', 'text': 'A cat runs.', '_id': '7'}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetInfo, Features, IterableDataset, Value
from datasets.iterable_dataset import ArrowExamplesIterable

from mirror.common.errors import InputError, one_line
from mirror.data import files
from mirror.data.cache import arrow_batches, stored_rows
from mirror.data.files import Cells, Number, check_text_file, ending_of, holds_text, objects_of, place, reading


PEEKED_ROWS = 1000  # of a JSON file, in which every row has its own keys


def columns_of(path: Path, only_texts: bool = False) -> list[str]:
    """Return the names of the columns of a file, of JSON those in its first 1,000 rows. A txt file has `text`.

    `only_texts` leaves out the columns of JSON and parquet files that hold something else.
    """
    ending = ending_of(path)
    with reading(str(path)):
        if ending == "txt":
            return ["text"]
        if ending in ("csv", "tsv"):
            return next(files.records_of(path))[1]
        if ending == "parquet":
            return [field.name for field in pq.read_schema(path) if holds_text(field.type) or not only_texts]
        names: dict[str, bool] = {}  # whether each has held texts only
        for _, row in islice(objects_of(path), PEEKED_ROWS):
            for name, value in row.items():
                names[name] = names.get(name, True) and (value is None or type(value) is str)
        return [name for name, is_text in names.items() if is_text or not only_texts]


def read_table(
    path: Path,
    texts: Sequence[str],
    values: Sequence[str] = (),
    key: str | None = None,
    optional: Sequence[str] = (),
    choose: str = "",
) -> Dataset:
    """Return the named columns of a file as strings. The rows are stored on disk, found again by the file's content.

    Args:
        path: csv, tsv, json, jsonl or parquet, each also as .gz, or txt, whose lines are the column `text`.
        texts: columns with text. Empty cells and null are empty strings.
        values: columns with ids, labels or scores. Numbers are taken as they are spelled.
        key: a column with ids that are not empty and differ from row to row.
        optional: those of all columns that the file may lack. They are empty strings then.
        choose: the fix to name if a column is missing, such as "choose with --text_column".

    Raises:
        InputError: the file is damaged, lacks a column, holds something else than text, or has an id twice. Names the
            line or row.
    """
    values = [name for name in dict.fromkeys([*values, *([key] if key else [])]) if name not in texts]
    arguments = {"texts": tuple(texts), "values": tuple(values), "optional": tuple(optional), "choose": choose}
    table = rows_of_file(path, _records, arguments, [*texts, *values])
    if key is not None:
        check_ids(table, key, str(path))
    return table


def read_rows(
    path: str,
    texts: Sequence[str],
    values: Sequence[str] = (),
    optional: Sequence[str] = (),
    choose: str = "",
    is_only: bool = False,
    strict: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row, or of the line where it begins, and its cells: those of `texts`, then of `values`.

    The arguments and errors are those of `read_table`. `is_only`: a row with any other column is an error. `strict`: so
    is a line of a txt file over a megabyte.
    """
    path, wanted = Path(path), [*texts, *values]
    required = [name for name in wanted if name not in optional]
    with reading(str(path)):
        if ending_of(path) in ("json", "jsonl"):
            rows = _json_cells(path, wanted, required, choose, is_only)
        else:
            names = columns_of(path)
            check_columns(str(path), required, names, choose)
            if twice := [name for name in wanted if names.count(name) > 1]:
                raise InputError(f"{path}, line 1: two columns have the name '{twice[0]}'; rename one")
            if ending_of(path) == "parquet":
                rows = files.parquet_rows(path, wanted, texts)
            elif ending_of(path) == "txt":
                rows = files.texts_of(path, strict)
            else:
                places = [names.index(name) if name in names else None for name in wanted]
                records = islice(files.records_of(path), 1, None)
                rows = ((number, [None if at is None else row[at] for at in places]) for number, row in records)
        for number, cells in rows:
            for at, cell in enumerate(cells):
                if type(cell) is not str or not cell.isascii():
                    try:
                        cells[at] = _as_text(cell, at >= len(texts))
                    except ValueError as error:
                        raise InputError(f"{place(path, number)}: '{wanted[at]}' holds {error}") from None
            yield number, cells


def _json_cells(path: Path, wanted: list[str], required: list[str], choose: str, is_only: bool) -> Cells:
    names: dict[str, None] = {}
    for number, row in objects_of(path, wanted):
        if not names.keys() >= row.keys():
            names |= dict.fromkeys(row)
            if is_only and len(names) > 1:
                check_columns(str(path), ["text"], [name for name in names if name != "text"], choose)
        yield number, [row.get(name) for name in wanted]
    check_columns(str(path), required, names, choose)


def check_columns(name: str, wanted: Iterable[str], columns: Iterable[str], choose: str) -> None:
    """Raise an `InputError` if a file or dataset `name` lacks a column. `choose` is the fix that it names."""
    columns = list(columns)
    for column in wanted:
        if column not in columns:
            found = one_line(", ".join(columns)) if columns else "no columns"
            raise InputError(f"{name} has no column '{column}'; it has {found}{choose and '; '}{choose}")


def _as_text(cell: object, is_value: bool) -> str:
    """Return a cell as a string. Raise a `ValueError` that says what it holds if that is no text."""
    if cell is None:
        return ""
    if is_value and isinstance(cell, Number | bool):
        return str(cell) if isinstance(cell, str) else json.dumps(cell)
    if type(cell) is not str:
        kinds = {list: "a list", tuple: "an object", Number: f"the number {cell!s:.40}"}
        quotes = "" if isinstance(cell, list | tuple) else "put it in quotes or "
        raise ValueError(f"{kinds.get(type(cell)) or json.dumps(cell)}, not a text; {quotes}choose another column")
    try:
        cell.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a surrogate pair ({cell[error.start]!a}), not a text; remove it") from None
    return cell


def _records(path: str, **arguments) -> Iterator[list[str]]:
    return (cells for _, cells in read_rows(path, **arguments))


def check_ids(rows: Dataset, column: str, name: str) -> None:
    """Raise an `InputError`, which names the row, if a column has an empty cell or the same one twice."""
    first: dict[int, int] = {}  # row by hash, because ids may be long
    cells = (cell for batch in rows.select_columns([column]).iter(1000) for cell in batch[column])
    for number, cell in enumerate(cells, start=1):
        if not cell:
            raise InputError(f"{name}, row {number}: no id in the column '{column}'")
        earlier = first.setdefault(hash(cell), number)
        if earlier != number and rows[earlier - 1][column] == cell:
            raise InputError(f"{name}, row {number}: id '{one_line(cell, 80)}' is that of row {earlier} too")


def rows_of_file(
    path: Path, generate: Callable[..., Iterator[list[str]]], arguments: dict, columns: Sequence[str], streaming=False
) -> Dataset | IterableDataset:
    """Return the rows of strings that `generate(path, **arguments)` yields: a stream, or stored on disk.

    `generate` is a function of a module, whose source is part of what the stored rows are found by. `arguments` are plain
    data without lists, which a stream would split among its workers. `columns` name the cells of a row.
    """
    if streaming:
        if ending_of(path) != "parquet":
            check_text_file(path)  # to its end, before anything long starts
        features = Features({name: Value("string") for name in columns})
        arguments = {"generate": generate, "path": str(path), "arguments": arguments, "columns": tuple(columns)}
        # Faster than `from_generator`, which converts every row on its own.
        return IterableDataset(ArrowExamplesIterable(_as_tables, arguments), DatasetInfo(features=features))
    modules = (files, sys.modules[__name__], sys.modules[generate.__module__])
    return stored_rows(path, lambda: generate(str(path), **arguments), columns, arguments, modules)


def _as_tables(
    generate: Callable, path: str, arguments: dict, columns: tuple[str, ...]
) -> Iterator[tuple[int, pa.Table]]:
    for number, batch in enumerate(arrow_batches(generate(path, **arguments), columns)):
        yield number, pa.Table.from_batches([batch])

"""Files, Hub datasets or streams become rows of `text` (and `text_pair`). Knows nothing of tokens or models."""

from __future__ import annotations

import csv
import glob
import gzip
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, IterableDataset, Value, concatenate_datasets
from datasets.exceptions import DatasetGenerationError

from mirror.arrow_cache import load_dataset, map_rows
from mirror.errors import InputError


BUILDERS = {"txt": "text", "csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "parquet": "parquet"}
SEPARATORS = {"csv": ",", "tsv": "\t"}
MAX_LINE_BYTES = 1 << 20  # a longer "line" is a binary or a file without line ends, not a text to embed

Row = tuple[str, ...]  # one text, or the two of a pair


@dataclass(frozen=True)
class DataSettings:
    """Where the rows come from; the command line has flags of the same names."""

    train_file: tuple[str, ...] = ()
    dataset_name: str | None = None
    dataset_config_name: str | None = None
    dataset_split: str = "train"
    streaming: bool = False
    text_column: str | None = None
    pair_columns: tuple[str, str] | None = None
    pair_separator: str | None = None
    max_train_samples: int | None = None
    keep_duplicates: bool = False


@dataclass
class Corpus:
    """Rows to train on, and what was seen on the way to them."""

    rows: Dataset | IterableDataset  # columns: text, and text_pair in pair mode
    blank_rows: int = 0
    duplicate_rows: int = 0  # rows equal to an earlier one, whether dropped or kept
    read_rows: int = 0  # not blank, duplicates included
    equal_pairs: int = 0  # unordered pairs of equal texts among the rows read: each can be a false negative


def load_corpus(settings: DataSettings) -> Corpus:
    """Read, check and clean the training rows; of equal rows the first stays.

    Raises:
        InputError: a file that is missing, empty, not text or without the column; names it, and the line if there is one.
    """
    parts = [pick_columns(part, name, settings) for name, part in open_parts(settings)]
    if settings.streaming:
        return Corpus(_stream(parts, settings))
    rows = (tuple(record.values()) for part in parts for record in part)
    corpus = clean(rows, settings.keep_duplicates, settings.max_train_samples)
    if not len(corpus.rows):
        raise InputError(f"{_source(settings)}: no text in it")
    return corpus


def clean(rows: Iterable[Row], keep_duplicates: bool = False, limit: int | None = None) -> Corpus:
    """A corpus of stripped rows: blank ones go, and so do repeated ones, for in a batch they are false negatives."""
    kept: list[Row] = []
    seen: set[Row] = set()
    texts: Counter[str] = Counter()
    blank = duplicates = read = 0
    for row in rows:
        row = tuple(text.strip() for text in row)
        if not all(row):
            blank += 1
            continue
        read += 1
        texts.update(set(row))
        duplicates += row in seen
        if keep_duplicates or row not in seen:
            kept.append(row)
        seen.add(row)
        if len(kept) == limit:
            break
    names = ("text", "text_pair")[: len(kept[0]) if kept else 1]
    dataset = Dataset.from_dict({name: [row[index] for row in kept] for index, name in enumerate(names)})
    return Corpus(dataset, blank, duplicates, read, sum(count * (count - 1) // 2 for count in texts.values()))


def false_negative_chance(equal_pairs: int, rows: int, batch_size: int) -> float:
    """Chance that a random batch holds two equal texts (Poisson approximation of drawing without replacement)."""
    if rows < 2:
        return 0.0
    expected = equal_pairs * batch_size * (batch_size - 1) / (rows * (rows - 1))
    return 1.0 - 2.718281828459045**-expected


def open_parts(settings: DataSettings) -> Iterable[tuple[str, Dataset | IterableDataset]]:
    """The name and the rows of each file, or of the one dataset; nothing is cleaned yet."""
    if settings.dataset_name:
        yield settings.dataset_name, _open_dataset(settings)
    else:
        for path in expand_paths(settings.train_file):
            yield str(path), open_file(path, settings.streaming)


def _open_dataset(settings: DataSettings) -> Dataset | IterableDataset:
    try:
        return load_dataset(
            settings.dataset_name,
            settings.dataset_config_name,
            split=settings.dataset_split,
            streaming=settings.streaming,
        )
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise InputError(f"--dataset_name {settings.dataset_name}: {_one_line(error)}") from error


def expand_paths(patterns: Iterable[str]) -> list[Path]:
    """Files of names and globs, in order.

    Raises:
        InputError: nothing matches one of them, or its ending is not one that is read.
    """
    paths = []
    for pattern in patterns:
        found = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
        if not found or not all(Path(name).is_file() for name in found):
            raise InputError(f"{pattern}: no such file")
        paths += [Path(name) for name in found]
    for path in paths:
        if _ending(path) not in BUILDERS:
            raise InputError(f"{path}: unknown ending; one of {', '.join(BUILDERS)}, each also as .gz")
    return paths


def _ending(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[2].lower()


def open_file(path: Path, streaming: bool) -> Dataset | IterableDataset:
    ending = _ending(path)
    options = {}
    if ending != "parquet":
        check_text_file(path)
    if ending in SEPARATORS:
        # Every column as a string: "007" stays "007", and "null" is a word.
        header = _csv_header(path, SEPARATORS[ending])
        features = Features({name: Value("string") for name in header})
        options = {"sep": SEPARATORS[ending], "keep_default_na": False, "features": features}
        if ending == "tsv":
            options["quoting"] = csv.QUOTE_NONE
    try:
        return load_dataset(BUILDERS[ending], data_files=str(path), split="train", streaming=streaming, **options)
    except (DatasetGenerationError, ValueError, OSError) as error:
        raise InputError(f"{path}: {_one_line(error.__cause__ or error)}") from error


def check_text_file(path: Path) -> None:
    """Refuse what is no text, before a library trips over it.

    Raises:
        InputError: empty, not UTF-8, or binary (a NUL byte, a line over a megabyte); names the line.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rb") as lines:
            while line := lines.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES or b"\0" in line:
                    raise InputError(f"{path}, line {number}: not a text file (a NUL byte, or a line over 1 MB)")
                line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert it, e.g. with iconv") from error
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: {_one_line(error)}") from error
    if number == 0:
        raise InputError(f"{path} is empty")


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


def pick_columns(part: Dataset | IterableDataset, name: str, settings: DataSettings) -> Dataset | IterableDataset:
    """The column or columns to train on, renamed to `text` (and `text_pair`)."""
    columns = part.column_names or list(next(iter(part)))
    if settings.pair_columns:
        wanted = list(settings.pair_columns)
    elif settings.text_column:
        wanted = [settings.text_column]
    else:
        wanted = columns if len(columns) == 1 else ["text"]
    for column in wanted:
        if column not in columns:
            flag = "--pair_columns" if settings.pair_columns else "--text_column"
            raise InputError(f"{name} has no column '{column}'; it has {', '.join(columns)}; choose with {flag}")
        feature = (part.features or {}).get(column)
        if feature is not None and not isinstance(feature, (Value, ClassLabel)):
            raise InputError(f"{name}: column '{column}' holds {_one_line(feature)}, not text; choose one with text")
    part = part.select_columns(wanted)
    if settings.pair_separator:
        return map_rows(part, _split_pair, fn_kwargs={"column": wanted[0], "separator": settings.pair_separator, "name": name},
                        with_indices=True, remove_columns=wanted)  # fmt: skip
    names = ("text", "text_pair")
    renamed = {old: new for old, new in zip(wanted, names, strict=False) if old != new}
    part = part.rename_columns(renamed) if renamed else part
    return map_rows(
        part, _as_strings, batched=True, features=Features({new: Value("string") for new in names[: len(wanted)]})
    )


def _as_strings(batch: dict[str, list]) -> dict[str, list[str]]:
    return {name: ["" if value is None else str(value) for value in values] for name, values in batch.items()}


def _split_pair(record: dict[str, str], index: int, column: str, separator: str, name: str) -> dict[str, str]:
    text = record[column]
    if not text.strip():
        return {"text": "", "text_pair": ""}
    parts = text.split(separator)
    if len(parts) != 2:
        raise InputError(f"{name}, line {index + 1}: {len(parts)} texts around '{separator}', expected 2")
    return {"text": parts[0], "text_pair": parts[1]}


def _stream(parts: list[IterableDataset], settings: DataSettings) -> IterableDataset:
    rows = concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    rows = rows.filter(_has_text)
    if next(iter(rows), None) is None:
        raise InputError(f"{_source(settings)}: no text in it")
    return rows.take(settings.max_train_samples) if settings.max_train_samples else rows


def _has_text(record: dict[str, str]) -> bool:
    return all(text.strip() for text in record.values())


def _source(settings: DataSettings) -> str:
    return settings.dataset_name or " ".join(settings.train_file)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__

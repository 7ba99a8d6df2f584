"""Rows of files, Hub datasets or streams become `text` (and `text_pair`). Knows nothing of tokens or models."""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from datasets import ClassLabel, Dataset, Features, IterableDataset, Value, concatenate_datasets

from mirror.common.cli import one_of
from mirror.common.errors import InputError, one_line
from mirror.data.arrow_cache import load_dataset, map_rows
from mirror.data.docstring_corpus import collect, training_texts
from mirror.data.files import expand_paths, open_file, reading
from mirror.data.near_duplicates import NearDuplicates, find_near_duplicates


logger = logging.getLogger(__name__)

NEAR_DUPLICATES = ("report", "drop", "off")
READ_ROWS = 10_000  # rows in memory at once while duplicates are looked for


@dataclass(frozen=True)
class CorpusSource:
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
    near_duplicates: str = "report"  # or "drop" or "off"
    strict: bool = False  # refuse a txt file with a line over a megabyte instead of leaving the line out


@dataclass
class Corpus:
    """Rows to train on, and what was counted while they were read."""

    rows: Dataset | IterableDataset  # columns: text, and text_pair in pair mode
    source: CorpusSource = field(default_factory=CorpusSource)
    blank_rows: int = 0
    duplicate_rows: int = 0  # rows equal to an earlier one, whether dropped or kept
    read_rows: int = 0  # not blank, duplicates included
    equal_pairs: int = 0  # unordered pairs of equal texts among the rows read: each can be a false negative
    near_duplicates: NearDuplicates | None = None  # those that were dropped
    held_out_rows: int = 0

    def sample_texts(self, count: int = 8) -> list[str]:
        """`count` texts from everywhere in the corpus; the first ones of a stream."""
        if isinstance(self.rows, IterableDataset):
            with reading(source_name(self.source)):
                return [row["text"] for row in self.rows.take(count)]
        places = np.linspace(0, len(self.rows) - 1, min(count, len(self.rows))).astype(int)
        return list(self.rows.select(places)["text"])


def load_corpus(source: CorpusSource | str | Sequence[str]) -> Corpus:
    """Read, check and clean texts to train on; of equal rows the first is kept.

    >>> load_corpus("notes/*.txt").rows["text"][0]

    Args:
        source: names or globs of files (txt with one text per line, csv, tsv, json, jsonl, parquet, each also as .gz), or
            a `CorpusSource` for everything else.

    Raises:
        InputError: a file that is missing, empty, not text or without the column; names it, and the line if there is one.
    """
    if not isinstance(source, CorpusSource):
        source = CorpusSource(train_file=(source,) if isinstance(source, str) else tuple(source))
    parts = [pick_columns(part, name, source) for name, part in open_parts(source)]
    rows = concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    return _corpus_of(rows, source, source_name(source))


def source_name(source: CorpusSource) -> str:
    """The files or the dataset, as the user named them."""
    return source.dataset_name or " ".join(source.train_file) or "train_dataset"


def load_training_corpus(source: CorpusSource) -> Corpus:
    """`load_corpus`, or without a file or dataset the docstrings of the packages on this machine."""
    if source.train_file or source.dataset_name:
        return load_corpus(source)
    logger.info("no --train_file or --dataset_name: reading the docstrings of this machine's Python packages")
    texts = training_texts(collect())
    random.Random(0).shuffle(texts)  # so that --max_train_samples takes some of every package
    return as_corpus(texts, source)


def as_corpus(texts: Corpus | Sequence[str] | Dataset | IterableDataset, source: CorpusSource | None = None) -> Corpus:
    """A corpus of texts that are in memory or in a dataset, cleaned as files are.

    Args:
        texts: strings, or a dataset with the column `text`, and `text_pair` for pairs. A `Corpus` is returned as it is.
        source: which columns to take, and whether to keep duplicates.

    Raises:
        InputError: no such column, or no text.
    """
    if isinstance(texts, Corpus):
        return texts
    source = source or CorpusSource()
    if not isinstance(texts, (Dataset, IterableDataset)):
        texts = Dataset.from_dict({"text": list(texts)})
    if "text_pair" in (texts.column_names or ()) and source.pair_columns is None:
        source = replace(source, pair_columns=("text", "text_pair"))
    return _corpus_of(pick_columns(texts, "train_dataset", source), source, "train_dataset")


def has_pairs(texts: Corpus | Sequence[str] | Dataset | IterableDataset) -> bool:
    """Whether the rows that `as_corpus` makes of `texts` have a second text."""
    rows = texts.rows if isinstance(texts, Corpus) else texts
    return "text_pair" in (getattr(rows, "column_names", None) or ())


def read_batches(rows: Dataset | IterableDataset, batch_size: int, name: str) -> Iterator[dict[str, list]]:
    """`rows.iter(batch_size)`, with errors of `reading`."""
    with reading(name):
        yield from rows.iter(batch_size=batch_size)


def _corpus_of(rows: Dataset | IterableDataset, source: CorpusSource, name: str) -> Corpus:
    """
    Raises:
        InputError: there is no text in `rows`; `name` says where they come from.
    """
    one_of("--near_duplicates", source.near_duplicates, NEAR_DUPLICATES)
    is_stream = isinstance(rows, IterableDataset)
    if is_stream and source.near_duplicates == "drop":
        raise InputError("--near_duplicates drop compares all texts; leave out --streaming")
    corpus = Corpus(rows.filter(_has_text), source) if is_stream else clean(rows, source)
    with reading(name):
        if next(iter(corpus.rows), None) is None:
            raise InputError(f"{name}: no text in it")
    if is_stream and source.max_train_samples:
        corpus.rows = corpus.rows.take(source.max_train_samples)
    if source.near_duplicates == "drop":
        corpus.near_duplicates = find_near_duplicates(corpus.rows)
        kept = np.setdiff1d(np.arange(len(corpus.rows)), corpus.near_duplicates.rows)
        corpus.rows = corpus.rows.select(kept)
    return corpus


def clean(rows: Dataset, source: CorpusSource | None = None) -> Corpus:
    """Drop blank rows and, unless they are to be kept, repeated ones: in a batch, two equal texts are false negatives.

    Texts are compared by 128-bit hashes, and the result selects rows of a dataset that stays on disk: memory grows by
    some 50 bytes per row, whatever the length of the texts.

    Args:
        rows: stripped strings (`pick_columns` strips them).
    """
    source = source or CorpusSource()
    hashes, filled = _hash_rows(rows)  # (N, columns, 2), (N,)
    position = np.flatnonzero(filled)
    hashes = hashes[position]
    is_first = _first_occurrences(hashes.reshape(len(hashes), 2 * hashes.shape[1]))
    kept = np.ones_like(is_first) if source.keep_duplicates else is_first
    seen, limit = len(rows), source.max_train_samples
    if limit is not None and kept.sum() >= limit:  # what comes after the last row that is kept counts as not read
        end = int(np.flatnonzero(kept)[limit - 1]) + 1
        kept, is_first, hashes, position = kept[:end], is_first[:end], hashes[:end], position[:end]
        seen = int(position[-1]) + 1
    return Corpus(
        rows=rows.select(position[kept]),
        source=source,
        blank_rows=seen - len(position),
        duplicate_rows=int((~is_first).sum()),
        read_rows=len(position),
        equal_pairs=_equal_pairs(hashes),
    )


def _hash_rows(rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """128-bit hashes of every text as two uint64, (N, columns, 2), and whether no text of a row is blank, (N,)."""
    hashes = np.empty((len(rows), len(rows.column_names), 2), dtype=np.uint64)
    filled = np.ones(len(rows), dtype=bool)
    for index, name in enumerate(rows.column_names):
        start = 0
        for batch in rows.select_columns([name]).iter(batch_size=READ_ROWS):
            texts = batch[name]
            encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
            digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in encoded)
            part = slice(start, start + len(texts))
            hashes[part, index] = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
            filled[part] &= np.fromiter(map(bool, texts), dtype=bool, count=len(texts))
            start += len(texts)
    return hashes, filled


def _first_occurrences(hashes: np.ndarray) -> np.ndarray:
    """(N,) whether no earlier row of (N, K) is equal."""
    order, is_new = _sorted_groups(hashes)
    first = np.zeros(len(hashes), dtype=bool)
    first[order[is_new]] = True
    return first


def _equal_pairs(hashes: np.ndarray) -> int:
    """Unordered pairs of rows of (N, columns, 2) that share a text; the same text twice in one row counts once."""
    texts = hashes[:, 0]
    if hashes.shape[1] == 2:
        differs = (hashes[:, 0] != hashes[:, 1]).any(axis=1)
        texts = np.concatenate([texts, hashes[differs, 1]])
    _, is_new = _sorted_groups(texts)
    counts = np.diff(np.flatnonzero(np.append(is_new, True)))
    return int((counts * (counts - 1) // 2).sum())


def _sorted_groups(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A stable sorting order of (N, K), and whether each row in that order differs from the one before it."""
    order = np.lexsort(rows.T)
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    return order, is_new


def source_settings(source: CorpusSource) -> dict:
    """The fields of `source` that were set, as plain data for the record of a run."""
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(source).items()}
    return {key: value for key, value in values.items() if value not in (None, [])}


def false_negative_chance(equal_pairs: int, rows: int, batch_size: int) -> float:
    """Chance that a random batch holds two equal texts (Poisson approximation of drawing without replacement)."""
    if rows < 2:
        return 0.0
    expected = equal_pairs * batch_size * (batch_size - 1) / (rows * (rows - 1))
    return -math.expm1(-expected)


def open_parts(source: CorpusSource) -> Iterable[tuple[str, Dataset | IterableDataset]]:
    """The name and the rows of each file, or of the one dataset; nothing is cleaned yet."""
    if source.dataset_name:
        yield source.dataset_name, _open_dataset(source)
    else:
        for path in expand_paths(source.train_file):
            yield str(path), open_file(path, source.streaming, source.strict)


def _open_dataset(source: CorpusSource) -> Dataset | IterableDataset:
    with reading(f"--dataset_name {source.dataset_name}"):
        return load_dataset(
            source.dataset_name,
            source.dataset_config_name,
            split=source.dataset_split,
            streaming=source.streaming,
        )


def pick_columns(
    part: Dataset | IterableDataset, name: str, source: CorpusSource, strip: bool = True
) -> Dataset | IterableDataset:
    """The column or columns to train on as strings, renamed to `text` (and `text_pair`).

    Args:
        name: of the file or dataset, for messages.
        strip: remove white space around each text.

    Raises:
        InputError: no such column, or one that holds no text.
    """
    columns = part.column_names or _columns_of_first_row(part, name)
    if source.pair_columns:
        wanted = list(source.pair_columns)
    elif source.text_column:
        wanted = [source.text_column]
    else:
        wanted = columns if len(columns) == 1 else ["text"]
    for column in wanted:
        if column not in columns:
            flag = "--pair_columns" if source.pair_columns else "--text_column"
            raise InputError(f"{name} has no column '{column}'; it has {', '.join(columns)}; choose with {flag}")
        feature = (part.features or {}).get(column)
        if feature is not None and not isinstance(feature, (Value, ClassLabel)):
            raise InputError(f"{name}: column '{column}' holds {one_line(feature)}, not text; choose one with text")
    part = part.select_columns(wanted)
    if source.pair_separator:
        return map_rows(part, _split_pair, fn_kwargs={"column": wanted[0], "separator": source.pair_separator, "name": name},
                        with_indices=True, remove_columns=wanted)  # fmt: skip
    names = ("text", "text_pair")
    renamed = {old: new for old, new in zip(wanted, names, strict=False) if old != new}
    part = part.rename_columns(renamed) if renamed else part
    features = Features({new: Value("string") for new in names[: len(wanted)]})
    return map_rows(
        part,
        _as_strings,
        batched=True,
        features=features,
        fn_kwargs={"strip": strip, "name": name},
        **_progress(part, "Reading texts"),
    )


def _columns_of_first_row(stream: IterableDataset, name: str) -> list[str]:
    with reading(name):
        row = next(iter(stream), None)
    if row is None:
        raise InputError(f"{name}: no rows in it")
    return list(row)


def _progress(rows: Dataset | IterableDataset, title: str) -> dict[str, str]:
    """The title of the progress bar of a map; streams have none."""
    return {} if isinstance(rows, IterableDataset) else {"desc": title}


def _as_strings(batch: dict[str, list], strip: bool, name: str) -> dict[str, list[str]]:
    texts = {column: as_strings(values, name) for column, values in batch.items()}
    return {column: [text.strip() for text in values] for column, values in texts.items()} if strip else texts


def as_strings(values: Iterable, name: str) -> list[str]:
    """Values of a column as text: nothing as an empty one, bytes decoded, numbers as they are printed.

    Raises:
        InputError: lists, mappings, or bytes that are not UTF-8; `name` is that of the file or dataset.
    """
    try:
        return [_as_string(value, name) for value in values]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: a column of bytes that are not UTF-8 ({error.reason}); choose one with text"
        ) from error


def _as_string(value: object, name: str) -> str:
    if isinstance(value, list | dict):  # of a stream, whose columns say nothing before they are read
        raise InputError(f"{name}: a row holds {one_line(value, 80)}, not text; choose a column with text")
    return "" if value is None else value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _split_pair(record: dict[str, str], index: int, column: str, separator: str, name: str) -> dict[str, str]:
    text = record[column]
    if not text.strip():
        return {"text": "", "text_pair": ""}
    parts = text.split(separator)
    if len(parts) != 2:
        raise InputError(f"{name}, line {index + 1}: {len(parts)} texts around '{separator}', expected 2")
    return {"text": parts[0].strip(), "text_pair": parts[1].strip()}


def _has_text(record: dict[str, str]) -> bool:
    return all(text.strip() for text in record.values())

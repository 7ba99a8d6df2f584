"""Rows of files, Hub datasets or streams become `text` (and `text_pair`). Knows nothing of tokens or models."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from datasets import ClassLabel, Dataset, Features, IterableDataset, Value, concatenate_datasets

from mirror.common.errors import InputError, one_line
from mirror.data.cache import load_dataset, map_rows
from mirror.data.cleaning import Corpus, clean, find_near_duplicates
from mirror.data.docstrings import collect, training_texts
from mirror.data.files import expand_paths, open_file, reading
from mirror.data.source import CorpusSource, source_name


logger = logging.getLogger(__name__)


def load_corpus(source: CorpusSource | str | Sequence[str]) -> Corpus:
    """Read, check and clean texts to train on. Of equal rows the first is kept.

    >>> load_corpus("notes/*.txt").rows["text"][0]

    Args:
        source: names or globs of files (txt with one text per line, csv, tsv, json, jsonl, parquet, each also as .gz), or
            a `CorpusSource` for everything else.

    Raises:
        InputError: a file is missing, empty, not text or without the column. Names it, and the line if there is one.
    """
    if not isinstance(source, CorpusSource):
        source = CorpusSource(train_file=[source] if isinstance(source, str) else list(source))
    parts = [pick_columns(part, name, source) for name, part in open_parts(source)]
    rows = concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    return _corpus_of(rows, source, source_name(source))


def load_training_corpus(source: CorpusSource) -> Corpus:
    """Call `load_corpus`, or without a file or dataset read the docstrings of the packages on this machine."""
    if source.train_file or source.dataset_name:
        return load_corpus(source)
    logger.info("No --train_file or --dataset_name: reading the docstrings of this machine's Python packages")
    texts = training_texts(collect())
    random.Random(0).shuffle(texts)  # so that --max_train_samples takes some of every package
    return as_corpus(texts, source)


def as_corpus(texts: Corpus | Sequence[str] | Dataset | IterableDataset, source: CorpusSource | None = None) -> Corpus:
    """Return a corpus of texts in memory or in a dataset, cleaned as files are. A `Corpus` is returned unchanged.

    `texts` are strings, or a dataset with the column `text`, and `text_pair` for pairs. Raises an `InputError` if the
    column does not exist, or there is no text.
    """
    if isinstance(texts, Corpus):
        return texts
    source = source or CorpusSource()
    if not isinstance(texts, (Dataset, IterableDataset)):
        texts = Dataset.from_dict({"text": list(texts)})
    if "text_pair" in (texts.column_names or ()) and source.pair_columns is None:
        source = replace(source, pair_columns=["text", "text_pair"])
    return _corpus_of(pick_columns(texts, "train_dataset", source), source, "train_dataset")


def has_pairs(texts: Corpus | Sequence[str] | Dataset | IterableDataset) -> bool:
    """Return whether the rows that `as_corpus` makes of `texts` have a second text."""
    rows = texts.rows if isinstance(texts, Corpus) else texts
    return "text_pair" in (getattr(rows, "column_names", None) or ())


def read_batches(rows: Dataset | IterableDataset, batch_size: int, name: str) -> Iterator[dict[str, list]]:
    """Yield `rows.iter(batch_size)` with the errors of `mirror.data.files.reading`."""
    with reading(name):
        yield from rows.iter(batch_size=batch_size)


def _corpus_of(rows: Dataset | IterableDataset, source: CorpusSource, name: str) -> Corpus:
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


def open_parts(source: CorpusSource) -> Iterable[tuple[str, Dataset | IterableDataset]]:
    """Yield the name and the rows of each file, or of the one dataset. Nothing is cleaned yet."""
    if not source.dataset_name:
        for path in expand_paths(source.train_file or ()):
            yield str(path), open_file(path, source.streaming, source.strict)
        return
    options = {"split": source.dataset_split, "streaming": source.streaming}
    with reading(f"--dataset_name {source.dataset_name}"):
        rows = load_dataset(source.dataset_name, source.dataset_config_name, **options)
    yield source.dataset_name, rows


def pick_columns(
    part: Dataset | IterableDataset, name: str, source: CorpusSource, strip: bool = True
) -> Dataset | IterableDataset:
    """Return the column or columns to train on as strings, stripped by default, as `text` (and `text_pair`).

    Raises an `InputError`, which begins with `name`, if the column does not exist or holds no text.
    """
    columns = part.column_names
    if not columns:  # of a stream, until its first row is read
        with reading(name):
            row = next(iter(part), None)
        if row is None:
            raise InputError(f"{name}: no rows in it")
        columns = list(row)
    default = source.text_column or (columns[0] if len(columns) == 1 else "text")
    wanted = list(source.pair_columns or [default])
    for column in wanted:
        if column not in columns:
            flag = "--pair_columns" if source.pair_columns else "--text_column"
            raise InputError(f"{name} has no column '{column}'; it has {', '.join(columns)}; choose with {flag}")
        feature = (part.features or {}).get(column)
        if feature is not None and not isinstance(feature, (Value, ClassLabel)):
            raise InputError(f"{name}: column '{column}' holds {one_line(feature)}, not text; choose one with text")
    part = part.select_columns(wanted)
    if source.pair_separator:
        arguments = {"column": wanted[0], "separator": source.pair_separator, "name": name}
        return map_rows(part, _split_pair, fn_kwargs=arguments, with_indices=True, remove_columns=wanted)
    names = ("text", "text_pair")
    renamed = {old: new for old, new in zip(wanted, names, strict=False) if old != new}
    part = part.rename_columns(renamed) if renamed else part
    features = Features({new: Value("string") for new in names[: len(wanted)]})
    options = {} if isinstance(part, IterableDataset) else {"desc": "Reading texts"}  # streams have no progress bar
    arguments = {"strip": strip, "name": name}
    return map_rows(part, _as_strings, batched=True, features=features, fn_kwargs=arguments, **options)


def as_strings(values: Iterable, name: str) -> list[str]:
    """Return values of a column as text: None as an empty string, bytes decoded, numbers as they are printed.

    Raises an `InputError`, which begins with `name`, for a list, a mapping, and bytes that are not UTF-8.
    """
    texts = []
    for value in values:
        if isinstance(
            value, list | dict
        ):  # only of a stream: the types of its columns are not known before they are read
            raise InputError(f"{name}: a row holds {one_line(value, 80)}, not text; choose a column with text")
        try:
            value = value.decode("utf-8") if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            message = f"{name}: a column of bytes that are not UTF-8 ({error.reason}); choose one with text"
            raise InputError(message) from error
        texts.append("" if value is None else str(value))
    return texts


def _as_strings(batch: dict[str, list], strip: bool, name: str) -> dict[str, list[str]]:
    texts = {column: as_strings(values, name) for column, values in batch.items()}
    return {column: [text.strip() for text in values] for column, values in texts.items()} if strip else texts


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

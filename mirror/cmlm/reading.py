"""Files, Hub datasets or streams become documents, and tables become labelled or unlabelled pairs. Knows no tokens."""

from __future__ import annotations

import glob
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from datasets import ClassLabel, Dataset, IterableDataset, Value

from mirror.cmlm.model import NLI_LABELS
from mirror.common.errors import InputError
from mirror.data.arrow_cache import load_dataset
from mirror.data.corpus import CorpusSource, as_strings, clean, load_corpus, pick_columns
from mirror.data.files import check_text_file, expand_paths, open_file, reading


logger = logging.getLogger(__name__)

NO_GOLD_LABEL = ("-", "-1")  # SNLI and MultiNLI, where the annotators did not agree
STRINGS = ("string", "large_string")


def read_documents(source: CorpusSource, line_is_document: bool = False) -> list[Dataset | IterableDataset]:
    """One dataset of documents, column `text`, for each file, or one for the Hub dataset.

    Each row of a table is a document; in a txt file, documents are separated by empty lines, or with `line_is_document`
    each line is one.

    Raises:
        InputError: nothing to read, or nothing readable.
    """
    if source.dataset_name:
        return [load_corpus(source).rows]
    return [_read_file(path, source, line_is_document) for path in expand_paths(source.train_file)]


def _read_file(path: Path, source: CorpusSource, line_is_document: bool) -> Dataset | IterableDataset:
    is_text = path.name.removesuffix(".gz").endswith(".txt")
    if not is_text or line_is_document:
        return load_corpus(replace(source, train_file=(str(path),))).rows
    check_text_file(path)
    with reading(str(path)):
        documents = load_dataset(
            "text",
            data_files=glob.escape(str(path)),
            encoding="utf-8-sig",
            sample_by="paragraph",
            split="train",
            streaming=source.streaming,
        )
    if source.max_train_samples:
        documents = documents.take(source.max_train_samples)
    if not source.streaming and len(documents) == 1:
        logger.warning(
            "%s has no empty line, so it is one document; if each line is a document, pass --line_is_document",
            path.name,
        )
    return documents


def read_pairs(flag: str, names: Sequence[str], columns: Sequence[str] | None) -> list[Dataset]:
    """One dataset of `text` and `text_pair` for each file: without blank and repeated pairs.

    Args:
        flag: which flag named the files, for messages.
        columns: the two columns; by default the first two that hold text, `label` apart.
    """
    parts = []
    for path in _paths(flag, names):
        table = open_file(path, streaming=False)
        first, second = columns or text_columns(path, table)
        _check_columns(path, table, [first, second])
        rows = clean(pick_columns(table, str(path), CorpusSource(pair_columns=(first, second)))).rows
        if not len(rows):
            raise InputError(f"{path}: no pair of texts in it")
        parts.append(rows)
    return parts


def read_labelled_pairs(names: Sequence[str], columns: Sequence[str] | None, label: str = "label") -> list[Dataset]:
    """One dataset of `text`, `text_pair` and `label` (0 entailment, 1 neutral, 2 contradiction) for each file.

    Rows without a gold label, "-" or -1, are left out.

    Raises:
        InputError: no column with labels, or a label that is not one of the three; names the row.
    """
    parts = []
    for path in _paths("--nli_file", names):
        table = open_file(path, streaming=False)
        first, second = columns or text_columns(path, table, label)
        if label not in table.column_names:
            raise InputError(
                f"{path} has no column '{label}'; it has {', '.join(table.column_names)}; choose with --label_column"
            )
        _check_columns(path, table, [first, second])
        labels = [_label(value, path, row) for row, value in enumerate(_label_names(path, table, label), start=1)]
        columns_of = {
            "text": as_strings(table[first], str(path)),
            "text_pair": as_strings(table[second], str(path)),
            "label": labels,
        }
        rows = Dataset.from_dict(columns_of).filter(lambda row: row["label"] is not None)
        if not len(rows):
            raise InputError(f"{path}: no labelled pair in it")
        logger.info(
            "%s: %s labelled pairs, %s without a gold label left out", path.name, len(rows), len(table) - len(rows)
        )
        parts.append(rows)
    return parts


def text_columns(path: Path, table: Dataset, label: str = "label") -> tuple[str, str]:
    """The first two columns of strings that are not the label.

    Raises:
        InputError: there are fewer.
    """
    named = [
        name
        for name, feature in table.features.items()
        if isinstance(feature, Value) and feature.dtype in STRINGS and name != label
    ]
    if len(named) < 2:
        raise InputError(f"{path}: two columns of text expected, found {', '.join(named) or 'none'}")
    return named[0], named[1]


def _paths(flag: str, names: Sequence[str]) -> list[Path]:
    try:
        return expand_paths(names)
    except InputError as error:
        raise InputError(f"{flag} {error}") from None


def _check_columns(path: Path, table: Dataset, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in table.column_names:
            raise InputError(
                f"{path} has no column '{column}'; it has {', '.join(table.column_names)}; choose two with --pair_columns"
            )


def _label_names(path: Path, table: Dataset, column: str) -> list[str]:
    """Labels as text; numbers with names are told by their names."""
    feature = table.features[column]
    if isinstance(feature, ClassLabel):
        return [NO_GOLD_LABEL[0] if value == -1 else feature.int2str(value) for value in table[column]]
    return as_strings(table[column], str(path))


def _label(value: str, path: Path, row: int) -> int | None:
    name = value.strip().lower()
    if name in NO_GOLD_LABEL:
        return None
    if name in ("0", "1", "2"):
        return int(name)
    if name not in NLI_LABELS:
        raise InputError(
            f"{path}, row {row}: label '{value}'; expected {', '.join(NLI_LABELS)}, or 0, 1, 2 in that order"
        )
    return NLI_LABELS.index(name)

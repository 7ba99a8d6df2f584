"""Rows of files, Hub datasets or streams become `text` (and `text_pair`). Knows nothing of tokens or models."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets

from mirror.common.errors import INSTEAD, InputError, hub_failure, one_line
from mirror.data.cache import load_dataset, map_rows
from mirror.data.cleaning import Corpus, clean
from mirror.data.docstrings import collect, training_texts
from mirror.data.document_corpus import docstring_pairs, document_corpus, pair_kinds
from mirror.data.documents import are_documents
from mirror.data.files import ending_of, expand_paths, reading
from mirror.data.source import PASSAGE_TOKENS, CorpusSource, source_name
from mirror.data.tables import check_columns, check_ids, columns_of, read_rows, rows_of_file


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Table = Any  # a data frame of pandas or another library, or a mapping: columns by their names
Texts = Corpus | Dataset | IterableDataset | Table | Iterable[str] | str | Path
AS_SPELLED = r"(large_)?(string|binary)|u?int|bool|null"  # types whose values print as a file would spell them


def load_corpus(
    source: CorpusSource | str | Path | Sequence[str | Path] | Table,
    tokenizer: Callable[[], PreTrainedTokenizerBase] | None = None,
    max_tokens: int = PASSAGE_TOKENS,
    **options,
) -> Corpus:
    """Read, check and clean texts to train on. Of equal rows the first is kept.

    >>> load_corpus("products.csv", text_column=["title", "description"]).rows[0]

    Args:
        source: a name or glob of files (txt with one text per line, csv, tsv, json, jsonl, parquet, each also as .gz), a
            folder of them, documents (`document_corpus`), a list of these, a data frame or dataset, or a `CorpusSource`.
        tokenizer, max_tokens: returns the tokenizer of the passages of documents; and their length.
        options: fields of `CorpusSource`.

    Raises:
        InputError: a file is missing, empty, not text or without the column. Names it, and the line if there is one.
    """
    if isinstance(source, IterableDataset) or _columns_in(source):
        return as_corpus(source, CorpusSource(**options))
    if not isinstance(source, CorpusSource):
        source = CorpusSource(train_file=source if isinstance(source, str | Path) else [*map(str, source)])
    source = replace(source, **options)
    if not (source.train_file or source.dataset_name):
        raise InputError("no texts; name files in train_file, or a dataset in dataset_name")
    if source.train_file and are_documents(source.train_file):
        return document_corpus(source, tokenizer() if tokenizer else None, max_tokens)
    _check_pairs(source)  # before a large file is read
    return _corpus_of(text_rows(source), source, source_name(source))


def load_texts(source: CorpusSource) -> list[str]:
    """Return the distinct texts that `load_training_corpus` reads, and of documents the passages without the anchors of pairs."""
    return load_training_corpus(replace(source, pairs=["none"])).rows["text"][:]


def load_training_corpus(source: CorpusSource, **documents) -> Corpus:
    """Call `load_corpus`, or without a file or dataset read the docstrings of the packages on this machine."""
    if source.train_file or source.dataset_name:
        return load_corpus(source, **documents)
    logger.info("No --train_file or --dataset_name: reading the docstrings of this machine's Python packages")
    if kinds := pair_kinds(source, []):
        if "signature" not in kinds:
            raise InputError(f"--pairs {' '.join(kinds)}: docstrings have signature only, name and summary")
        return docstring_pairs(collect(), source)
    texts = training_texts(collect())
    random.Random(0).shuffle(texts)  # so that --max_train_samples takes some of every package
    return as_corpus(texts, source)


def as_corpus(texts: Texts, source: CorpusSource | None = None) -> Corpus:
    """Return a corpus of texts in memory or in a dataset, cleaned as files are. A `Corpus` is returned unchanged.

    Args:
        texts: strings in any iterable, such as a list, a generator, a pandas Series or a NumPy array; a data frame or dataset
            with the column `text`, and `text_pair` for pairs; or the name of a file or folder, as in `load_corpus`.
        source: other columns, and what to drop.

    Raises:
        InputError: the column does not exist, there is no text, or something is no text. Names its index.
    """
    if isinstance(texts, Corpus):
        return texts
    source, name = source or CorpusSource(), "train_dataset"
    if isinstance(texts, str | Path):
        return load_corpus(replace(source, train_file=[str(texts)], dataset_name=None))
    if "text_pair" in _columns_in(texts) and not (source.pair_columns or source.text_column):
        source = replace(source, pair_columns=["text", "text_pair"])
    if not isinstance(texts, Dataset | IterableDataset):
        if isinstance(texts, Mapping) and texts and all(isinstance(part, Dataset) for part in texts.values()):
            splits = f"{', '.join(texts)}, as in data['{next(iter(texts))}']"
            raise InputError(f"{name}: several splits; choose one of {splits}")
        if not isinstance(texts, Iterable):
            raise InputError(f"{name}: {type(texts).__name__} holds no texts; pass a list of strings or a dataset")
        columns = {"text": texts}
        if names := _columns_in(texts):
            columns = {column: texts[column] for column in _wanted_columns(names, name, source)}
        texts = Dataset.from_dict({column: _strings(cells, column) for column, cells in columns.items()})
    return _corpus_of(pick_columns(texts, name, source), source, name)


def _columns_in(texts: Texts) -> list[str]:
    """Return the names of the columns of a dataset or data frame, and none of a list of texts."""
    names = texts if isinstance(texts, Mapping) else getattr(texts, "column_names", getattr(texts, "columns", None))
    return [] if names is None else list(names)


def _strings(cells: Iterable, column: str) -> list[str]:
    texts = []
    for index, cell in enumerate(cells):
        if not isinstance(cell, str):
            what = f"{one_line(repr(cell), 40)} ({type(cell).__name__})"
            raise InputError(f"train_dataset: index {index} of '{column}' is {what}, not a text; drop or convert it")
        texts.append(str(cell))  # a plain one of NumPy's
    return texts


def read_batches(rows: Dataset | IterableDataset, batch_size: int, name: str) -> Iterator[dict[str, list]]:
    """Yield `rows.iter(batch_size)` with the errors of `mirror.data.files.reading`."""
    with reading(name):
        yield from rows.iter(batch_size=batch_size)


def _check_pairs(source: CorpusSource) -> None:
    """Raise an `InputError` for kinds of pairs that texts without structure do not have."""
    if pair_kinds(source, []):
        fix = "leave it out, or name the columns of a table with --pair_columns"
        raise InputError(f"--pairs {' '.join(source.pairs)} needs documents; {fix}")


def _corpus_of(rows: Dataset | IterableDataset, source: CorpusSource, name: str) -> Corpus:
    _check_pairs(source)
    is_stream = isinstance(rows, IterableDataset)
    corpus = Corpus(rows.filter(_have_text, batched=True), source) if is_stream else clean(rows, source)
    with reading(name):
        if next(iter(corpus.rows), None) is None:
            raise InputError(f"{name}: no text in it")
    if is_stream and source.max_train_samples:
        corpus.rows = corpus.rows.take(source.max_train_samples)
    return corpus


def text_rows(source: CorpusSource, strip: bool = True, id_column: str | None = None) -> Dataset | IterableDataset:
    """Return all rows of files or of a dataset as strings, blank and repeated ones included, in their order.

    The rows are `text`, `text_pair` for pairs, and `id` with an `id_column`, whose ids must not be empty and must differ
    from row to row. A stream is not checked for that. `strip` takes white space off both ends of the texts.
    """
    if source.dataset_name:
        name, options = source.dataset_name, {"split": source.dataset_split, "streaming": source.streaming}
        failure = None if Path(name).exists() else hub_failure()
        with reading(f"--dataset_name {name}"):
            try:
                rows = load_dataset(name, source.dataset_config_name, **options)
            except ConnectionError as error:
                raise InputError(f"--dataset_name {name}: {failure or one_line(error)}; {INSTEAD}") from error
        rows = pick_columns(rows, name, source, strip, id_column)
    else:
        paths = expand_paths(source.train_file or ())
        parts = [_rows_of_one_file(path, source, strip, id_column) for path in paths]
        rows, name = concatenate_datasets(parts) if len(parts) > 1 else parts[0], str(paths[0])
    if id_column and isinstance(rows, Dataset):
        check_ids(rows, "id", source_name(source))
    return rows


class RowForm(NamedTuple):
    """The columns of a row that become its text or texts, and its id."""

    texts: tuple[str, ...]
    id_column: str | None
    strip: bool
    join: str | None  # separator of several texts that become one; None for pairs
    pair_separator: str | None

    @property
    def names(self) -> list[str]:
        is_pair = self.join is None or self.pair_separator
        return ["text", *(["text_pair"] if is_pair else []), *(["id"] if self.id_column else [])]

    def row(self, cells: list[str], name: str, number: int) -> list[str]:
        """Return the cells of a row of `names`, made of those of the columns. `name` and `number` are for messages."""
        count = len(self.texts)
        if self.strip or count > 1:
            cells[:count] = map(str.strip, cells[:count])
        if self.join is not None and count > 1:
            cells[:count] = [self.join.join(filter(None, cells[:count]))]
        if self.pair_separator:
            texts = [text.strip() for text in cells[0].split(self.pair_separator)] if cells[0].strip() else ["", ""]
            if len(texts) != 2:
                raise InputError(f"{name}, line {number}: {len(texts)} texts around '{self.pair_separator}', not 2")
            cells[:1] = texts
        return cells


def _form(source: CorpusSource, texts: Iterable[str], strip: bool, id_column: str | None) -> RowForm:
    join = None if source.pair_columns else source.text_separator
    return RowForm(tuple(texts), id_column, strip, join, source.pair_separator)


def _choose(source: CorpusSource) -> str:
    return f"choose with {'--pair_columns' if source.pair_columns else '--text_column'}"


def _rows_of_one_file(
    path: Path, source: CorpusSource, strip: bool, id_column: str | None
) -> Dataset | IterableDataset:
    wanted, is_only = source.pair_columns or source.text_column or ["text"], False
    if not source.pair_columns and not source.text_column and (columns := columns_of(path)) and "text" not in columns:
        # A name that is none may be a line with a separator that we do not know, or a text of a file without a header.
        is_name = ending_of(path) in ("json", "jsonl") or not re.search(r"[^\w\s./()\[\]-]", columns[0])
        is_only = len(columns) == 1 and is_name
        if not is_only:
            check_columns(str(path), wanted, columns, _choose(source))
        wanted = columns
    form = _form(source, wanted, strip, id_column)
    arguments = {"form": form, "choose": _choose(source), "is_only": is_only, "strict": source.strict}
    return rows_of_file(path, _texts_of_file, arguments, form.names, source.streaming)


def _texts_of_file(path: str, form: RowForm, **options) -> Iterator[list[str]]:
    for number, cells in read_rows(path, form.texts, [form.id_column] if form.id_column else (), **options):
        yield form.row(cells, path, number)


def pick_columns(
    part: Dataset | IterableDataset, name: str, source: CorpusSource, strip: bool = True, id_column: str | None = None
) -> Dataset | IterableDataset:
    """Return the rows of a dataset as strings, with the columns that `text_rows` returns.

    Raises an `InputError`, which begins with `name`, if a column does not exist or holds no text.
    """
    columns = part.column_names
    if not columns or (isinstance(part, Dataset) and not len(part)):
        with reading(name):
            row = next(iter(part), None)  # the columns of a stream are not known before
        if row is None:
            raise InputError(f"{name}: no rows in it")
        columns = list(row)
    wanted = _wanted_columns(columns, name, source)
    for column in wanted:
        feature = (part.features or {}).get(column)
        if feature is not None and not (isinstance(feature, Value) and re.match(AS_SPELLED, feature.dtype)):
            raise InputError(f"{name}: column '{column}' holds {one_line(feature)}, not text; choose one with text")
    form = _form(source, wanted, strip, id_column)
    values = [id_column] if id_column else []
    check_columns(name, values, columns, "choose with --id_column")
    used = list(dict.fromkeys([*wanted, *values]))
    options = {} if isinstance(part, IterableDataset) else {"desc": "Reading texts"}  # streams have no progress bar
    options |= {"batched": True, "with_indices": True, "remove_columns": used}
    options["features"] = Features({new: Value("string") for new in form.names})
    return map_rows(part.select_columns(used), _texts_of_batch, fn_kwargs={"form": form, "name": name}, **options)


def _wanted_columns(columns: list[str], name: str, source: CorpusSource) -> list[str]:
    """Return the columns with the text or texts, which are checked to exist."""
    wanted = source.pair_columns or source.text_column or (columns if len(columns) == 1 else ["text"])
    check_columns(name, wanted, columns, _choose(source))
    return list(wanted)


def _texts_of_batch(batch: dict[str, list], rows: list[int], form: RowForm, name: str) -> dict[str, list[str]]:
    columns = [*form.texts, *([form.id_column] if form.id_column else [])]
    cells = zip(rows, *(as_strings(batch[column], name) for column in columns), strict=True)
    formed = [form.row(list(row), name, number + 1) for number, *row in cells]
    return dict(zip(form.names, map(list, zip(*formed, strict=True)), strict=True))


def as_strings(values: Iterable, name: str) -> list[str]:
    """Return values of a column as text: None as an empty string, bytes decoded, whole numbers as they are printed.

    Raises an `InputError`, which begins with `name`, for anything else, and for bytes that are not UTF-8.
    """
    texts = []
    for value in values:
        # Only of a stream: the types of its columns are not known before they are read.
        if not isinstance(value, str | bytes | int | None):
            raise InputError(f"{name}: a row holds {one_line(value, 80)}, not text; choose a column with text")
        try:
            value = value.decode("utf-8") if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            message = f"{name}: a column of bytes that are not UTF-8 ({error.reason}); choose one with text"
            raise InputError(message) from error
        texts.append("" if value is None else str(value))
    return texts


def _have_text(batch: dict[str, list[str]]) -> list[bool]:
    return [all(text.strip() for text in row) for row in zip(*batch.values(), strict=True)]

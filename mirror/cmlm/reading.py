"""Reading of documents, translations and labeled pairs, and splitting of documents into pairs of segments."""

from __future__ import annotations

import glob
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, groupby
from pathlib import Path

import sentencex
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from mirror.cmlm.model import NLI_LABELS
from mirror.cmlm.options import DOCUMENT_STAGES, CMLMDataArguments
from mirror.common.errors import InputError
from mirror.data.cache import map_rows
from mirror.data.cleaning import clean
from mirror.data.corpus import load_corpus, text_rows
from mirror.data.documents import PLAIN_TEXT, are_documents
from mirror.data.files import check_text_file, expand_paths, lines_of
from mirror.data.source import CorpusSource
from mirror.data.tables import check_columns, columns_of, read_table, rows_of_file


logger = logging.getLogger(__name__)

Ids = list[int]
Parts = list[Dataset | IterableDataset]  # one for each file, which keeps languages apart
NO_GOLD_LABEL = ("-", "-1")  # SNLI and MultiNLI, where the annotators did not agree


def read_stage_data(stage: str, args: CMLMDataArguments) -> tuple[Parts, list[Dataset] | None]:
    """Read what a stage trains on: documents or pairs, and for `cmlm_bitext` documents with the translations beside."""
    reads = {"train_file": DOCUMENT_STAGES, "bitext_file": ("cmlm_bitext", "bitext"), "nli_file": ("nli",)}
    if unread := [f"--{name}" for name, stages in reads.items() if getattr(args, name) and stage not in stages]:
        logger.warning("%s: not read in the stage %s", " and ".join(unread), stage)
    if stage == "nli":
        return read_labeled_pairs(args.nli_file, args.pair_columns, args.label_column), None
    pairs = read_pairs("--bitext_file", args.bitext_file, args.pair_columns) if "bitext" in stage else None
    if stage == "bitext":
        return pairs, None
    return read_documents(args.source(), args.line_is_document), pairs


def read_documents(source: CorpusSource, line_is_document: bool = False) -> Parts:
    """Read one dataset with the column `text` for each file, or one for the Hub dataset.

    Each row of a table is a document. In a txt file, documents are separated by empty lines, or with `line_is_document`
    each line is one.
    """
    if source.dataset_name:
        return [load_corpus(source).rows]
    if are_documents(source.train_file):
        what = " ".join(source.train_file)
        raise InputError(f"{what}: CMLM reads running text; give txt files with an empty line between documents")
    parts = []
    for path in expand_paths(source.train_file):
        if line_is_document or not path.name.removesuffix(".gz").endswith(".txt"):
            parts.append(load_corpus(replace(source, train_file=(str(path),))).rows)
            continue
        check_text_file(path)
        documents = rows_of_file(path, paragraphs, {}, ["text"], source.streaming)
        if source.max_train_samples:
            documents = documents.take(source.max_train_samples)
        if not source.streaming and len(documents) == 1:
            reason = f"{path.name} has no empty line, so it is one document"
            logger.warning("%s; if each line is a document, pass --line_is_document", reason)
        parts.append(documents)
    return parts


def paragraphs(path: str) -> Iterator[list[str]]:
    """Yield the parts of a txt file between its empty lines, each as a row of one text."""
    for is_empty, lines in groupby(lines_of(Path(path)), key=lambda line: not line.strip()):
        if not is_empty:
            yield ["\n".join(lines)]


def read_pairs(flag: str, names: Sequence[str], columns: Sequence[str] | None) -> list[Dataset]:
    """Read one dataset of `text` and `text_pair` for each file that a flag names, without blank and repeated pairs.

    The default of `columns` are the first two that contain text, `label` apart.
    """
    parts = []
    for path in _paths(flag, names):
        source = CorpusSource(train_file=[glob.escape(str(path))], pair_columns=_text_columns(path, columns))
        rows = clean(text_rows(source)).rows
        if not len(rows):
            raise InputError(f"{path}: no pair of texts in it")
        parts.append(rows)
    return parts


def read_labeled_pairs(names: Sequence[str], columns: Sequence[str] | None, label: str = "label") -> list[Dataset]:
    """Read one dataset of `text`, `text_pair` and `label` (0, 1, 2) for each file, without rows that have an empty text or no gold label."""
    parts, known = [], {name: number for number, name in enumerate(NLI_LABELS)} | {"0": 0, "1": 1, "2": 2}
    known |= dict.fromkeys(NO_GOLD_LABEL)
    for path in _paths("--nli_file", names):
        first, second = _text_columns(path, columns, label)
        table = read_table(path, [first, second], [label], choose="choose with --label_column and --pair_columns")
        for row, name in enumerate(table[label], start=1):
            if name.strip().lower() not in known:
                expected = f"{', '.join(NLI_LABELS)}, or 0, 1, 2 in that order"
                raise InputError(f"{path}, row {row}: label '{name}'; expected {expected}")
        texts = {"text": table[first][:], "text_pair": table[second][:]}
        rows = Dataset.from_dict(texts | {"label": [known[name.strip().lower()] for name in table[label]]})
        rows = rows.filter(lambda row: row["label"] is not None and row["text"].strip() and row["text_pair"].strip())
        if not len(rows):
            raise InputError(f"{path}: no labeled pair in it")
        loaded, left_out = f"{len(rows):,}", f"{len(table) - len(rows):,}"
        logger.info("Loaded %s labeled pairs from %s, not %s without text or gold label", loaded, path.name, left_out)
        parts.append(rows)
    return parts


def _paths(flag: str, names: Sequence[str]) -> list[Path]:
    try:
        return expand_paths(names)
    except InputError as error:
        raise InputError(f"{flag} {error}") from None


def _text_columns(path: Path, given: Sequence[str] | None, label: str = "label") -> list[str]:
    """Return the names of the two given columns, or of the first two columns of texts that are not the label."""
    if given:
        check_columns(str(path), given, columns_of(path), "choose two with --pair_columns")
        return list(given)
    found = [name for name in columns_of(path, only_texts=True) if name != label][:2]
    if len(found) < 2:
        raise InputError(f"{path}: two columns of text expected, found {', '.join(found) or 'none'}")
    return found


def split_sentences(document: str, language: str) -> list[str]:
    """Split a text into sentences, line by line. Each keeps one leading space if white space precedes it on its line."""
    sentences = []
    for line in document.splitlines():
        space = ""
        for piece in sentencex.segment(language, line):
            if text := piece.strip():
                sentences.append(space + text)
                # Byte-level tokenizers such as RoBERTa's encode the space as part of the word.
                space = " " if piece[-1].isspace() else ""
    return sentences


def segment_pairs(sentences: list[Ids], max_tokens: int) -> list[tuple[Ids, Ids]]:
    """Join the sentences of a document to segments of at most `max_tokens` tokens, and pair the segments two by two.

    A longer sentence is split. Segments are filled greedily, but the last pair is split as evenly as its sentences allow. A
    last sentence without a neighbor is dropped.

        >>> segment_pairs([[1, 2], [3], [4, 5], [6]], max_tokens=3)
        [([1, 2, 3], [4, 5, 6])]
    """
    pieces = [ids[start : start + max_tokens] for ids in sentences for start in range(0, len(ids), max_tokens)]
    ends = [0, *accumulate(len(piece) for piece in pieces)]  # ends[i]: tokens before piece i

    def first_beyond(start: int) -> int:
        """Return the first piece that does not fit into a segment from `start` on."""
        return bisect_right(ends, ends[start] + max_tokens) - 1

    pairs, start = [], 0
    while start < len(pieces) - 1:
        middle = first_beyond(start)
        end = first_beyond(middle)
        if end == len(pieces):  # the last pair: greedy filling could leave its second segment tiny or empty
            lengths = {cut: (ends[cut] - ends[start], ends[end] - ends[cut]) for cut in range(start + 1, end)}
            middle = min((abs(a - b), cut) for cut, (a, b) in lengths.items() if max(a, b) <= max_tokens)[1]
        pairs.append(tuple(list(chain.from_iterable(part)) for part in (pieces[start:middle], pieces[middle:end])))
        start = end
    return pairs


def documents_to_pairs(
    batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, language: str, max_tokens: int
) -> dict[str, list[Ids]]:
    """Map documents (`text`) to pairs (`first`, `second`: ids without special tokens), none across two documents."""
    pairs = []
    for document in batch["text"]:
        if sentences := split_sentences(document, language):
            pairs += segment_pairs(tokenizer(sentences, **PLAIN_TEXT)["input_ids"], max_tokens)
    return {"first": [first for first, _ in pairs], "second": [second for _, second in pairs]}


def segment_documents(
    documents: Parts, tokenizer: PreTrainedTokenizerBase, languages: Sequence[str], max_tokens: int, num_proc=None
) -> Parts:
    """Return the pairs of neighboring segments, `first` and `second`, of each dataset of documents; cached on disk.

    `languages` are one code for all datasets, or one for each. `max_tokens` excludes special tokens.
    """
    if len(languages) not in (1, len(documents)):
        got = f"got {len(languages)}: {' '.join(languages)}"
        raise InputError(f"--language: one for all files or one for each of {len(documents)}, {got}")
    parts = []
    for number, part in enumerate(documents):
        options = {} if isinstance(part, IterableDataset) else {"num_proc": num_proc, "desc": "Pairs of segments"}
        options |= {"batched": True, "remove_columns": part.column_names or ["text"]}
        to_ids = {"tokenizer": tokenizer, "language": languages[number % len(languages)], "max_tokens": max_tokens}
        pairs = map_rows(part, documents_to_pairs, fn_kwargs=to_ids, **options)
        if isinstance(pairs, Dataset) and not len(pairs):
            raise InputError(f"corpus file {number + 1} has no document of two sentences, so no pair to learn from")
        parts.append(pairs)
    return parts

"""Documents as a corpus to train on: pairs from their structure, and passages without a pair, which get noisy views."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from datasets import Dataset

from mirror.assets import EMBEDDED_MODEL
from mirror.common.errors import InputError
from mirror.data.cleaning import Corpus
from mirror.data.docstrings import Docstring, search_pairs, training_texts
from mirror.data.documents import read_documents
from mirror.data.source import AUTO_PAIRS, CorpusSource
from mirror.data.structure_pairs import describe_pairs, structure_pairs


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

FEW_DOCUMENTS = 10  # are split by chapter instead
MAX_TOKENS = 128  # of a passage, where nobody says


def document_corpus(
    source: CorpusSource, tokenizer: PreTrainedTokenizerBase | None = None, max_tokens: int = MAX_TOKENS
) -> Corpus:
    """Return pairs and passages of the documents of `source`, as rows of `text`, `text_pair` and `document`.

    `text_pair` is empty for a passage without a pair. `document` numbers the documents, or the chapters of few
    documents, which are held out as a whole.

    Args:
        tokenizer: counts the tokens of a passage. Default: that of the embedded model.
        max_tokens: number of tokens of a passage, special ones included.

    Raises:
        InputError: no text in the documents, or a flag for tables.
    """
    for name in ("pair_columns", "pair_separator", "text_column", "streaming"):
        if getattr(source, name):
            raise InputError(f"--{name} does not apply to documents; leave it out, or name files of texts")
    if source.near_duplicates == "drop":
        raise InputError("--near_duplicates drop compares rows of texts; leave it out for documents")
    if tokenizer is None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    documents = read_documents(source.train_file, tokenizer, max_tokens)
    numbers: dict[tuple, int] = {}

    def number(file: str, heading: str) -> int:
        chapter = heading.split(" > ")[:2] if len(documents) < FEW_DOCUMENTS else ()
        return numbers.setdefault((file, *chapter), len(numbers))

    passages = [passage for document in documents for section in document.sections for passage in section.prose]
    texts: dict[str, int] = {}
    for passage in passages:
        texts.setdefault(passage.text, number(passage.file, passage.heading))
    pairs = []
    if kinds := pair_kinds(source, ["auto"]):
        found = structure_pairs(documents, kinds)
        logger.info(describe_pairs(found))
        pairs = [(pair.anchor, pair.positive, number(pair.file, pair.heading)) for pair in found.pairs]
    return mixture(pairs, texts, source, len(passages) - len(texts))


def docstring_pairs(entries: Iterable[Docstring], source: CorpusSource) -> Corpus:
    """Return the training part of docstrings as a corpus: pairs of name and summary, and texts without a pair."""
    entries = list(entries)
    pairs = [(*pair, number) for number, pair in enumerate(search_pairs(entries, "train"))]
    return mixture(pairs, {text: len(pairs) + at for at, text in enumerate(training_texts(entries))}, source)


def pair_kinds(source: CorpusSource, default: list[str]) -> list[str]:
    """Return the kinds of pairs that `--pairs` names, none for none."""
    kinds = source.pairs or default
    return list(AUTO_PAIRS) if "auto" in kinds else [kind for kind in kinds if kind != "none"]


def mixture(
    pairs: list[tuple[str, str, int]], texts: Mapping[str, int], source: CorpusSource, duplicates: int = 0
) -> Corpus:
    """Return pairs, and texts that are in none, as one corpus in a fixed random order.

    Args:
        pairs: anchor, positive and number of the document.
        texts: numbers of the documents by text.
        duplicates: number of repeated texts that are not among them.
    """
    paired = {text for pair in pairs for text in pair[:2]}
    single = [text for text in texts if text not in paired]
    if source.pair_share is not None and pairs:
        single += [text for text in texts if text in paired]
        single = single[: round(len(pairs) * (1 - source.pair_share) / source.pair_share)]
    rows = pairs + [(text, "", texts[text]) for text in single]
    random.Random(0).shuffle(rows)  # so that --max_train_samples takes some of every document
    rows = rows[: source.max_train_samples]
    first, second, document = map(list, zip(*rows, strict=True))
    columns = {"text": first, "text_pair": second, "document": document}
    if not pairs:
        del columns["text_pair"]
    return Corpus(Dataset.from_dict(columns), source, duplicate_rows=duplicates, read_rows=len(rows) + duplicates)

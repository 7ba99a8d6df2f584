"""From documents to pairs of neighbouring segments, and from a pair to a training row. Pure functions of token ids.

A pair never crosses a document boundary. Everything random (the order of a pair, the masked tokens) comes from a generator
that the caller creates from (seed, epoch, row).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import sentencex
from transformers import PreTrainedTokenizerBase

from mirror.cmlm.model import IGNORED
from mirror.common.errors import InputError


Ids = list[int]


def split_sentences(document: str, language: str) -> list[str]:
    """Sentences of a text, line by line; each keeps one leading space if there was white space before it on its line.

    Args:
        language: an ISO 639 code; for unknown codes sentencex uses rules that fit most scripts.
    """
    sentences = []
    for line in document.splitlines():
        space = ""
        for piece in sentencex.segment(language, line):
            if text := piece.strip():
                sentences.append(space + text)
                space = " " if piece[-1].isspace() else ""
    return sentences


def segment_pairs(sentences: list[Ids], max_tokens: int) -> list[tuple[Ids, Ids]]:
    """Consecutive segments of whole sentences, two by two, each of at most `max_tokens` tokens.

    A longer sentence is split. Segments are filled greedily; the last pair of a document is split as evenly as its sentences
    allow. A last sentence without a neighbour is dropped.

        >>> segment_pairs([[1, 2], [3], [4, 5], [6]], max_tokens=3)
        [([1, 2, 3], [4, 5, 6])]
    """
    pieces = [ids[start : start + max_tokens] for ids in sentences for start in range(0, len(ids), max_tokens)]
    ends = [0, *accumulate(len(piece) for piece in pieces)]  # ends[i]: tokens before piece i
    pairs, start = [], 0
    while start < len(pieces) - 1:
        middle = _fill(ends, start, max_tokens)
        end = _fill(ends, middle, max_tokens)
        if end == len(pieces):
            middle = _even_split(ends, start, max_tokens)
        pairs.append((_join(pieces[start:middle]), _join(pieces[middle:end])))
        start = end
    return pairs


def _fill(ends: list[int], start: int, max_tokens: int) -> int:
    """Index of the first piece that does not fit in a segment that begins with piece `start`."""
    stop = start
    while stop < len(ends) - 1 and ends[stop + 1] - ends[start] <= max_tokens:
        stop += 1
    return stop


def _even_split(ends: list[int], start: int, max_tokens: int) -> int:
    fitting = [
        middle
        for middle in range(start + 1, len(ends) - 1)
        if ends[middle] - ends[start] <= max_tokens and ends[-1] - ends[middle] <= max_tokens
    ]
    return min(fitting, key=lambda middle: abs((ends[middle] - ends[start]) - (ends[-1] - ends[middle])))


def _join(pieces: list[Ids]) -> Ids:
    return list(chain.from_iterable(pieces))


@dataclass(frozen=True)
class Masking:
    """BERT's rule: of the selected tokens 80% become the mask token, 10% a random token, 10% are unchanged."""

    rate: float  # share of s2's own tokens to predict; the paper masks 80 of 256
    mask_token_id: int
    random_ids: np.ndarray  # candidates for a random token: all but the special ones

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, rate: float) -> Masking:
        """Raises InputError where the tokenizer has no mask token."""
        if tokenizer.mask_token_id is None:
            raise InputError(f"the tokenizer of {tokenizer.name_or_path} has no mask token; give a masked LM")
        ordinary = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
        return cls(rate, tokenizer.mask_token_id, ordinary)

    def __call__(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """The masked ids, and the labels: the original token where it is to be predicted, -100 elsewhere."""
        count = max(1, round(self.rate * len(ids)))
        chosen = rng.permutation(len(ids))[:count]
        fate = rng.random(count)
        masked, labels = np.array(ids), np.full(len(ids), IGNORED)
        labels[chosen] = masked[chosen]
        masked[chosen[fate < 0.8]] = self.mask_token_id
        random = chosen[(fate >= 0.8) & (fate < 0.9)]
        masked[random] = rng.choice(self.random_ids, len(random))
        return masked.tolist(), labels.tolist()


@dataclass(frozen=True)
class MLMExampleBuilder:
    """Makes a training example of a pair of segments: possibly swapped, the second one masked, both with special tokens."""

    masking: Masking
    swap_probability: float
    special_tokens: tuple[Ids, Ids]  # special tokens before and after a text

    def __call__(self, first: Ids, second: Ids, rng: np.random.Generator) -> dict[str, Ids]:
        if rng.random() < self.swap_probability:
            first, second = second, first
        masked, labels = self.masking(second, rng)
        before, after = self.special_tokens
        return {
            "first_ids": before + list(first) + after,
            "second_ids": before + masked + after,
            "labels": [IGNORED] * len(before) + labels + [IGNORED] * len(after),
        }


@dataclass(frozen=True)
class SegmentPairBuilder:
    """Makes a training example of a pair of segments for QuickThought: both with special tokens, nothing masked."""

    special_tokens: tuple[Ids, Ids]  # special tokens before and after a text

    def __call__(self, first: Ids, second: Ids, rng: np.random.Generator) -> dict[str, Ids]:
        before, after = self.special_tokens
        return {"first_ids": before + list(first) + after, "second_ids": before + list(second) + after}


def documents_to_pairs(
    batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, language: str, max_tokens: int
) -> dict[str, list[Ids]]:
    """The mapped function: rows of `text` (documents) to rows of `first` and `second` (ids without special tokens)."""
    pairs = chain.from_iterable(
        segment_pairs(ids, max_tokens) for ids in _sentence_ids(batch["text"], tokenizer, language)
    )
    firsts, seconds = [], []
    for first, second in pairs:
        firsts.append(first)
        seconds.append(second)
    return {"first": firsts, "second": seconds}


def _sentence_ids(documents: list[str], tokenizer: PreTrainedTokenizerBase, language: str) -> Iterator[list[Ids]]:
    for document in documents:
        sentences = split_sentences(document, language)
        if sentences:
            yield tokenizer(sentences, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]

"""Noise on texts: functions of a text and a random generator. Knows nothing of tokenizers or models.

A built-in function returns a view: a list of segments with a mask token between consecutive ones. One segment has no mask.

    >>> span_mask("the quick brown fox", 5, min_chars=10, rng=view_rng(seed=1, epoch=0, row=7))
    ['the quick b', 'fox']

A rate is the share of words or tokens that the noise changes. At least one is always kept. `words` defines a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise

import numpy as np


View = list[str]
UserNoise = Callable[[str, np.random.Generator], str]  # noise of a user: a text and `view_rng` to a text

# Thai and Lao, Myanmar, Khmer, kana, Han: scripts without spaces between words.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
WORD = re.compile(f"[{UNSPACED}]|[^\\s{UNSPACED}]+")


def view_rng(seed: int, epoch: int, row: int) -> np.random.Generator:
    """Return the random generator of one row of one epoch: the same in any process, in any worker and after a resume."""
    return np.random.default_rng([seed, epoch, row])


def words(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word: split at white space, and every character of a script without spaces is a word.

    Combining marks stay with the character before them, punctuation with the word that it is attached to.

        >>> [text[start:end] for text in ["I love 東京."] for start, end in words(text)]
        ['I', 'love', '東', '京', '.']
    """
    spans: list[tuple[int, int]] = []
    for match in WORD.finditer(text):
        start, end = match.span()
        if spans and start == spans[-1][1] and unicodedata.category(text[start]).startswith("M"):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def bernoulli_mask(count: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Return (count,) booleans, each true with probability `rate`. At least one position stays false."""
    mask = rng.random(count) < rate
    if count and mask.all():
        mask[rng.integers(count)] = False
    return mask


def span_mask(text: str, length: int, min_chars: int, rng: np.random.Generator) -> View:
    """Replace `length` consecutive characters at a uniformly drawn position by the mask (Mirror-BERT, section 2).

    A text that is shorter than `min_chars`, or not longer than the span, is not masked. A length of 0 masks nothing.
    """
    if not is_maskable(text, length, min_chars):
        return [text]
    start = int(rng.integers(len(text) - length + 1))
    return [text[:start].rstrip(), text[start + length :].lstrip()]


def is_maskable(text: str, length: int, min_chars: int) -> bool:
    """Return whether `span_mask` changes this text."""
    return 0 < length < len(text) and len(text) >= min_chars


def unchanged(text: str, rate: float, rng: np.random.Generator) -> View:
    """Return the text without noise. The noise `token` is added later, to the token ids (`mask_tokens`)."""
    return [text]


def mask_words(text: str, rate: float, rng: np.random.Generator) -> View:
    """Mask each word with probability `rate`."""
    spans = words(text)
    cuts = [span for span, masked in zip(spans, bernoulli_mask(len(spans), rate, rng), strict=True) if masked]
    starts, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)] if cuts else [text]


def reorder(text: str, rate: float, rng: np.random.Generator) -> View:
    """Select each word with probability `rate` and permute the selected ones cyclically, so that each of them moves."""
    spans = words(text)
    picked = rng.permutation(np.flatnonzero(rng.random(len(spans)) < rate))
    source = np.arange(len(spans))
    source[picked] = np.roll(picked, 1)
    order = [spans[index] for index in source]
    gaps = [text[end:start] for (_, end), (start, _) in pairwise(spans)] + [""]
    return ["".join(text[start:end] + gap for (start, end), gap in zip(order, gaps, strict=True)) or text]


def delete(text: str, rate: float, rng: np.random.Generator) -> View:
    """Delete each word, with the space before it, with probability `rate`. At least one word stays."""
    spans = words(text)
    return _kept(text, spans, ~bernoulli_mask(len(spans), rate, rng))


def query(text: str, rate: float, rng: np.random.Generator) -> View:
    """Keep 2 to 5 words in their order, as a search query has them. A word of twice the letters is drawn twice as often."""
    spans = words(text)
    lengths, count = np.array([end - start for start, end in spans], float), min(len(spans), int(rng.integers(2, 6)))
    chosen = rng.choice(len(spans), count, replace=False, p=lengths / lengths.sum()) if spans else []
    return _kept(text, spans, np.isin(np.arange(len(spans)), chosen))


def _kept(text: str, spans: list[tuple[int, int]], kept: np.ndarray) -> View:
    before = [0, *(end for _, end in spans[:-1])]
    parts = [text[start:end] for start, (_, end), keep in zip(before, spans, kept, strict=False) if keep]
    return ["".join(parts).strip() or text]


def crop(text: str, rate: float, rng: np.random.Generator) -> View:
    """Keep consecutive words, a share `1 - rate` of all (rounded, at least one), from a uniformly drawn start."""
    spans = words(text)
    if not spans:
        return [text]
    keep = max(1, round(len(spans) * (1 - rate)))
    first = int(rng.integers(len(spans) - keep + 1))
    return [text[spans[first][0] : spans[first + keep - 1][1]]]


def repeat(text: str, rate: float, rng: np.random.Generator) -> View:
    """Duplicate some words, each copy right after its word (ESimCSE, Wu et al. 2022, section 3.1).

    Of N words, 0 to max(2, rate N) are repeated, each number equally likely.
    """
    spans = words(text)
    count = min(int(rng.integers(max(2, int(rate * len(spans))) + 1)), len(spans))
    # From the end, because an insertion moves everything after it.
    for index in sorted(rng.permutation(len(spans))[:count], reverse=True):
        start, end = spans[index]
        gap = "" if re.match(f"[{UNSPACED}]", text[start]) else " "
        text = text[:end] + gap + text[start:end] + text[end:]
    return [text]


def mask_tokens(ids: list[int], mask_id: int, rate: float, rng: np.random.Generator) -> list[int]:
    """Replace each token by the mask token with probability `rate`. At least one stays."""
    masks = bernoulli_mask(len(ids), rate, rng)
    return [mask_id if masked else token for token, masked in zip(ids, masks, strict=True)]


# Functions of a text, a rate and a generator; `span_mask` has a length instead.
AUGMENTATIONS: dict[str, Callable[..., View]] = {
    "span": span_mask,
    "token": unchanged,
    "whole_word": mask_words,
    "reorder": reorder,
    "delete": delete,
    "query": query,
    "crop": crop,
    "repeat": repeat,
    "none": unchanged,
}
# Share of words or tokens changed: masks as in BERT's pretraining, repetition as in ESimCSE, everything else less.
DEFAULT_RATES = {"token": 0.15, "whole_word": 0.15, "reorder": 0.1, "delete": 0.1, "crop": 0.1, "repeat": 0.32}


def augmentation_name(augmentation: str | UserNoise) -> str:
    """Return the name of an augmentation for records: of a user's function, its own or that of its class."""
    if isinstance(augmentation, str):
        return augmentation
    return getattr(augmentation, "__name__", type(augmentation).__name__)

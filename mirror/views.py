"""Input-space augmentation: pure functions of a text and a random generator. Knows nothing of tokens or models.

A view is a list of segments: the mask token stands between consecutive ones. One segment means nothing was masked.

    >>> span_mask("the quick brown fox", 5, min_chars=10, rng=view_rng(seed=1, epoch=0, row=7))
    ['the quick b', 'fox']
"""

from __future__ import annotations

import numpy as np


View = list[str]


def view_rng(seed: int, epoch: int, row: int) -> np.random.Generator:
    """The generator of one row of one epoch: the same in any process, in any worker and after a resume."""
    return np.random.default_rng([seed, epoch, row])


def span_mask(text: str, length: int, min_chars: int, rng: np.random.Generator) -> View:
    """Replace `length` consecutive characters at a uniformly drawn position by the mask (Mirror-BERT, section 2).

    Args:
        text: the text; one shorter than `min_chars`, or no longer than the span, stays whole.
        length: characters to mask; 0 turns masking off.
    """
    if not is_maskable(text, length, min_chars):
        return [text]
    start = int(rng.integers(len(text) - length + 1))
    return [text[:start].rstrip(), text[start + length :].lstrip()]


def is_maskable(text: str, length: int, min_chars: int) -> bool:
    """Whether `span_mask` touches this text."""
    return 0 < length < len(text) and len(text) >= min_chars

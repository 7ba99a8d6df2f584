"""BM25 as the baseline of every search: by bm25s, with tokens that fit any language."""

from __future__ import annotations

import logging
import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np

from mirror.data.augmentation import UNSPACED


logging.getLogger("bm25s").setLevel(logging.WARNING)


class BM25:
    """BM25 of N documents, as Lucene computes it (k1 = 1.5, b = 0.75: the defaults of bm25s).

    No stemming and no stop words, because both depend on the language (`tokens`).
    """

    def __init__(self, documents: Sequence[str]):
        import bm25s  # late, because every evaluation imports this module

        self.size, self.vocabulary = len(documents), {}
        ids = [[self.vocabulary.setdefault(t, len(self.vocabulary)) for t in tokens(text)] for text in documents]
        self.index = bm25s.BM25(backend="numpy")
        if self.vocabulary:  # documents of nothing but punctuation have none
            self.index.index((ids, dict(self.vocabulary)), show_progress=False)

    def scores(self, query: str) -> np.ndarray:
        """Compute the score of each document for a query, (N,) float32, 0 if they share no word."""
        ids = [self.vocabulary[token] for token in tokens(query) if token in self.vocabulary]
        return self.index.get_scores_from_ids(ids) if ids else np.zeros(self.size, np.float32)

    def search(self, queries: Sequence[str], k: int) -> list[list[int]]:
        """Return the rows of the best `k` documents with a word of each query, best first. Ties: by lowest row."""
        found = []
        for query in queries:
            scores = self.scores(query)
            least = np.partition(scores, -k)[-k] if k < len(scores) else 0
            rows = np.flatnonzero((scores > 0) & (scores >= least))
            found.append(rows[np.argsort(-scores[rows], kind="stable")][:k].tolist())
        return found


def tokens(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation. A character of an unspaced script is a word.

    >>> tokens("Read_csv(path), 東京!")
    ['read_csv', 'path', '東', '京']
    """
    return _pattern().findall(text.lower())


@cache
def _pattern() -> re.Pattern[str]:
    # \w has no combining marks, which are vowels in Hindi, Arabic or Hebrew: without them words would fall apart.
    marks = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c)[0] == "M")
    return re.compile(f"[{UNSPACED}]|(?:(?![{UNSPACED}])[\\w{marks}])+")

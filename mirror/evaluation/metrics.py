"""Metrics of pairs and of ranked documents, bootstrap intervals, BM25 as a baseline, and fusion.

The measures of each query are those of trec_eval: linear gains, a relevance above 0 is a hit, and a query without a hit counts as 0.
Ties follow it too: of equal scores the higher id ranks first, compared as strings. `ranked_ids` orders a run that way.
A search that ranks equal scores by position does the same if the documents are sorted by falling id.
"""

from __future__ import annotations

import logging
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mirror.data.augmentation import UNSPACED


if TYPE_CHECKING:
    from mirror.modeling.encoder import Encode

MAIN = "ndcg@10"
MEASURES = (MAIN, "mrr@10", "recall@10", "recall@100", "accuracy@1")
DEPTH = 100  # of the longest measure
FUSION_K = 60  # of reciprocal rank fusion (Cormack et al. 2009)
RESAMPLES = 1000


def paired_cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute the cosine of row n of `left` (N, D) with row n of `right` (N, D), (N,) float64, 0 for a zero vector.

    Rounded to seven decimals, the precision of float32: pairs of identical texts are tied in a ranking.
    """
    left, right = left.astype(np.float64), right.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return ((left * right).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)).round(7)


def cosines_of_pairs(encode: Encode, left: list[str], right: list[str]) -> np.ndarray:
    """Compute the cosine of N pairs of texts alike, (N,). One call, so a text that is on both sides is encoded once."""
    return paired_cosines(*np.split(encode(left + right), 2))


def ranked_ids(run: Mapping[str, float]) -> list[str]:
    """Return the ids of a run {document: score}, best first, as trec_eval orders them."""
    return sorted(run, key=lambda id: (run[id], id), reverse=True)


def measure(ranked: Sequence[Sequence[str]], qrels: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Compute nDCG@10, MRR@10, recall@10, recall@100 and accuracy@1 of Q queries, (Q,) float64 for each of `MEASURES`.

    `ranked` has the ids of the documents that each query found, best first, 100 if there are so many. `qrels` has the relevance
    of the judged documents by id. Others are not relevant.
    """
    gains = np.zeros((len(ranked), DEPTH))
    ideal = np.zeros((len(ranked), 10))
    relevant = np.zeros(len(ranked))
    for row, (ids, judged) in enumerate(zip(ranked, qrels, strict=True)):
        found = [max(0.0, judged.get(id, 0)) for id in ids[:DEPTH]]
        gains[row, : len(found)] = found
        best = sorted((value for value in judged.values() if value > 0), reverse=True)
        ideal[row, : len(best)], relevant[row] = best[:10], len(best)
    discounts = 1 / np.log2(np.arange(10) + 2)
    hits = gains > 0
    first = np.where(hits[:, :10].any(axis=1), hits[:, :10].argmax(axis=1), np.inf)  # from 0
    at_least_one = np.maximum(relevant, 1)
    dcg, best_dcg = gains[:, :10] @ discounts, ideal @ discounts
    values = (
        np.divide(dcg, best_dcg, out=np.zeros(len(ranked)), where=best_dcg > 0),
        1 / (first + 1),
        hits[:, :10].sum(axis=1) / at_least_one,
        hits.sum(axis=1) / at_least_one,
        hits[:, 0].astype(float),
    )
    return dict(zip(MEASURES, values, strict=True))


def fuse(*runs: Sequence[Sequence[str]], k: int = FUSION_K) -> list[list[str]]:
    """Merge the ranked ids of several runs, Q queries each, by the sum of 1 / (k + rank). Ties: by the higher id."""
    fused = []
    for lists in zip(*runs, strict=True):
        scores: dict[str, float] = {}
        for ids in lists:
            for rank, id in enumerate(ids, start=1):
                scores[id] = scores.get(id, 0) + 1 / (k + rank)
        fused.append(ranked_ids(scores))
    return fused


@dataclass(frozen=True)
class Sample:
    """The examples of a score, so that it can be computed of any of them."""

    size: int  # N
    score: Callable[[np.ndarray], float | np.ndarray]  # of rows, (n,) integers below N

    @classmethod
    def mean_of(cls, values: np.ndarray) -> Sample:
        """Return the sample of a score that is the mean of (N,) values, or the means of (N, M)."""
        return cls(len(values), lambda rows: values[rows].mean(axis=0))

    def draws(self, seed: int = 0) -> np.ndarray:
        """Compute the score of 1,000 resamples of the examples, (1000,). Those of two systems are paired."""
        rng = np.random.default_rng(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy and scikit-learn warn of resamples with one label or score
            return np.array([self.score(rng.integers(self.size, size=self.size)) for _ in range(RESAMPLES)])


def interval(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of the 95% percentile interval of (resamples,) or (resamples, M) draws."""
    low, high = np.nanpercentile(draws, (2.5, 97.5), axis=0)  # a resample with one label or score has none
    return low, high


def margin(draws: np.ndarray) -> float:
    """Return half the width of the 95% interval of (resamples,) draws."""
    low, high = interval(draws)
    return float(high - low) / 2


def summarize(values: Mapping[str, np.ndarray]) -> dict:
    """Return the mean of each measure of `measure`, and under `intervals` its 95% bootstrap interval [low, high]."""
    low, high = interval(Sample.mean_of(np.stack(list(values.values()), axis=1)).draws())
    means = {name: float(each.mean()) for name, each in values.items()}
    ends = zip(low.tolist(), high.tolist(), strict=True)
    return means | {"intervals": {name: list(pair) for name, pair in zip(values, ends, strict=True)}}


class BM25:
    """BM25 of N documents, as Lucene computes it (k1 = 1.5, b = 0.75), without stemming and stop words, which need a language."""

    def __init__(self, documents: Sequence[str]):
        import bm25s  # late, because every evaluation imports this module

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets DEBUG
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

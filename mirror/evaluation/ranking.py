"""Measures of ranked documents per query, and bootstrap intervals over the queries.

The measures are those of trec_eval: linear gains, a relevance above 0 is a hit, and a query without a hit counts as 0.
Ties follow it too: of equal scores the higher id ranks first, compared as strings. `ranked_ids` orders a run that way.
A search that ranks equal scores by position does the same if the documents are sorted by falling id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


MAIN = "ndcg@10"
MEASURES = (MAIN, "mrr@10", "recall@10", "recall@100", "accuracy@1")
DEPTH = 100  # of the longest measure
FUSION_K = 60  # of reciprocal rank fusion (Cormack et al. 2009)
RESAMPLES, SEED = 1000, 0


def ranked_ids(run: Mapping[str, float]) -> list[str]:
    """Return the ids of a run {document: score}, best first, as trec_eval orders them."""
    return sorted(run, key=lambda id: (run[id], id), reverse=True)


def measure(ranked: Sequence[Sequence[str]], qrels: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Compute nDCG@10, MRR@10, recall@10, recall@100 and accuracy@1 of Q queries.

    Args:
        ranked: for each query the ids of the documents found, best first, at least 100 of them if there are so many.
        qrels: for each query the relevance of the judged documents, by id. Other documents are not relevant.

    Returns:
        The values of the queries, (Q,) float64, for each name in `MEASURES`.
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
    """The examples of a score, so that it can be computed of any of them.

    Args:
        size: their number N.
        score: a function of rows, (n,) integers below N.
    """

    size: int
    score: Callable[[np.ndarray], float | np.ndarray]

    @classmethod
    def mean_of(cls, values: np.ndarray) -> Sample:
        """Return the sample of a score that is the mean of (N,) values, or the means of (N, M)."""
        return cls(len(values), lambda rows: values[rows].mean(axis=0))

    def draws(self, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
        """Compute the score of resamples of the examples, (resamples,). Those of two systems are paired."""
        rng = np.random.default_rng(seed)
        rows = (rng.integers(self.size, size=self.size) for _ in range(resamples))
        return np.array([self.score(each) for each in rows])


def interval(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high end of the 95% percentile interval of (resamples,) or (resamples, M) draws."""
    low, high = np.percentile(draws, (2.5, 97.5), axis=0)
    return low, high


def summarize(values: Mapping[str, np.ndarray]) -> dict:
    """Return the mean of each measure of `measure`, and under `intervals` its 95% bootstrap interval [low, high]."""
    low, high = interval(Sample.mean_of(np.stack(list(values.values()), axis=1)).draws())
    means = {name: float(each.mean()) for name, each in values.items()}
    ends = zip(low.tolist(), high.tolist(), strict=True)
    return means | {"intervals": {name: list(pair) for name, pair in zip(values, ends, strict=True)}}

"""Accuracy at k and mean reciprocal rank of the right answer, as an `evaluate` metric that needs no Hub.

`evaluate.load("mirror/evaluation/metrics/retrieval")` loads it from this folder. Knows ranks only.
"""

from __future__ import annotations

import datasets
import evaluate
import numpy as np


_DESCRIPTION = "Share of queries whose right answer is among the first k (accuracy@k), and the mean of 1/rank (MRR)."
_CITATION = "Voorhees (1999): The TREC-8 Question Answering Track Report."
_INPUTS = "predictions: the rank, from 1, of each query's right answer."


class Retrieval(evaluate.Metric):
    """`compute(predictions=ranks, at=(1, 5))` gives `accuracy@1`, `accuracy@5` and `mrr`."""

    def _info(self) -> evaluate.MetricInfo:
        rank = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": rank}),
        )

    def _compute(self, predictions: list[int], at: tuple[int, ...] = (1, 5)) -> dict[str, float]:
        ranks = np.asarray(predictions)
        hits = {f"accuracy@{k}": float((ranks <= k).mean()) for k in at}
        return hits | {"mrr": float((1 / ranks).mean())}

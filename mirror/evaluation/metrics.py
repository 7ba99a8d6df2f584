"""Metrics as `evaluate.Metric` classes, defined here because `evaluate.load("spearmanr")` needs the Hub."""

from __future__ import annotations

import logging

import datasets
import evaluate
import numpy as np
from scipy.stats import pearsonr, spearmanr


logger = logging.getLogger(__name__)


class PairSimilarity(evaluate.Metric):
    """Spearman's and Pearson's correlation of similarities with human scores (Reimers, Beyer and Gurevych 2016).

    `compute(predictions=cosines, references=scores)` returns `{"spearman": float, "pearson": float}`. Ties get their
    mean rank. If one input is constant, both correlations are 0 and a warning is logged.
    """

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="Spearman's rho and Pearson's r between predicted similarities and gold scores.",
            citation="",
            inputs_description="predictions: cosines of N pairs; references: gold scores of the pairs, on any scale.",
            features=datasets.Features({"predictions": number, "references": number}),
        )

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        if np.ptp(predictions) == 0 or np.ptp(references) == 0:
            logger.warning(
                "all %d similarities or gold scores are equal: a correlation is undefined and reported as 0",
                len(predictions),
            )
            return {"spearman": 0.0, "pearson": 0.0}
        return {
            "spearman": float(spearmanr(predictions, references).statistic),
            "pearson": float(pearsonr(predictions, references).statistic),
        }


class Retrieval(evaluate.Metric):
    """Accuracy@k and mean reciprocal rank (MRR) of the correct answer.

    `compute(predictions=ranks, at=(1, 5))` returns `accuracy@1`, `accuracy@5` and `mrr`; ranks start at 1.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Fraction of queries whose correct answer is among the top k, and the mean of 1/rank.",
            citation="",
            inputs_description="predictions: the rank of each query's correct answer, starting at 1.",
            features=datasets.Features({"predictions": datasets.Value("int64")}),
        )

    def _compute(self, predictions: list[int], at: tuple[int, ...] = (1, 5)) -> dict[str, float]:
        ranks = np.asarray(predictions)
        hits = {f"accuracy@{k}": float((ranks <= k).mean()) for k in at}
        return hits | {"mrr": float((1 / ranks).mean())}

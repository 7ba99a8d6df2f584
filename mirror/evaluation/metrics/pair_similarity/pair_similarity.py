"""Rank and linear correlation of cosines with people's scores, as an `evaluate` metric that needs no Hub.

`evaluate.load("mirror/evaluation/metrics/pair_similarity")` loads it from this folder. Knows numbers only.
"""

from __future__ import annotations

import logging

import datasets
import evaluate
import numpy as np
from scipy.stats import pearsonr, spearmanr


logger = logging.getLogger(__name__)

_DESCRIPTION = (
    "Spearman's rho and Pearson's r between predicted similarities and gold scores; ties share their mean rank."
)
_CITATION = "Reimers, Beyer and Gurevych (2016): Task-Oriented Intrinsic Evaluation of Semantic Textual Similarity."
_INPUTS = "predictions: cosines of N pairs; references: the gold score of each pair, on any scale."


class PairSimilarity(evaluate.Metric):
    """`compute(predictions=cosines, references=scores)` gives `{"spearman": float, "pearson": float}`."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": number, "references": number}),
        )

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        if np.ptp(predictions) == 0 or np.ptp(references) == 0:
            logger.warning(
                "all %d similarities are the same: a correlation is undefined and counts as 0", len(predictions)
            )
            return {"spearman": 0.0, "pearson": 0.0}
        return {
            "spearman": float(spearmanr(predictions, references).statistic),
            "pearson": float(pearsonr(predictions, references).statistic),
        }

"""Metrics as `evaluate.Metric` classes, defined here because `evaluate.load("spearmanr")` needs the Hub."""

from __future__ import annotations

import logging

import datasets
import evaluate
import numpy as np
from scipy.stats import pearsonr, spearmanr

from mirror.modeling.encoder import Encode


logger = logging.getLogger(__name__)


class InMemoryMetric(evaluate.Metric):
    """Metric that needs no folder. Create it with `keep_in_memory=True`."""

    def _build_data_dir(self) -> str:
        return ""  # `evaluate` creates a folder in the home, which a container may not have, even if it stays empty


class PairSimilarity(InMemoryMetric):
    """Spearman's and Pearson's correlation of similarities with human scores (Reimers, Beyer and Gurevych 2016).

    Ties get their mean rank. If one input is constant, both correlations are 0 and a warning is logged.
    """

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("float64")))
        return evaluate.MetricInfo("Spearman's rho and Pearson's r of similarities and gold scores.", "", features)

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        if np.ptp(predictions) == 0 or np.ptp(references) == 0:
            equal = "All %d similarities or gold scores are equal: a correlation is undefined and reported as 0"
            logger.warning(equal, len(predictions))
            return {"spearman": 0.0, "pearson": 0.0}
        measures = {"spearman": spearmanr, "pearson": pearsonr}
        return {name: float(measure(predictions, references).statistic) for name, measure in measures.items()}


class Retrieval(InMemoryMetric):
    """Accuracy@1, accuracy@5 and mean reciprocal rank (MRR) of the correct answers, by their ranks from 1."""

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Value("int64")})
        return evaluate.MetricInfo(
            "Share of queries with the answer among the top k, and mean of 1/rank.", "", features
        )

    def _compute(self, predictions: list[int]) -> dict[str, float]:
        ranks = np.asarray(predictions)
        hits = {f"accuracy@{k}": float((ranks <= k).mean()) for k in (1, 5)}
        return hits | {"mrr": float((1 / ranks).mean())}


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

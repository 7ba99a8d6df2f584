"""`qnli`: predict whether a sentence answers a question from their cosine, without training (Mirror-BERT Figure 4).

Uses the GLUE dev set. The score is the area under the ROC curve; the curve is part of the result and drawn by
`plots.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from mirror.common.errors import InputError
from mirror.evaluation.sts import paired_cosines
from mirror.evaluation.task import DataFile, Task
from mirror.modeling.encoder import Encode


DEV = DataFile("qnli/dev.tsv", ("question", "sentence", "label"), (5463,))
CURVE_POINTS = 200


def tasks(data_dir: Path) -> list[Task]:
    """Return the only task of this family."""
    return [
        Task(
            name="qnli",
            metric="roc_auc",
            protocol="GLUE dev, cosine of question and sentence against entailment, no training",
            files=(DEV,),
            score=score,
            published="Mirror-BERT Figure 4",
        )
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """Compute the AUC over the dev pairs, and the ROC curve, subsampled to at most 200 points."""
    columns = DEV.read(data_dir)
    positive = _entailed(columns["label"], data_dir / DEV.path)  # (N,)
    vectors = encode(columns["question"] + columns["sentence"])  # (2N, D)
    cosines = paired_cosines(vectors[: len(positive)], vectors[len(positive) :])
    return {
        "main_score": float(roc_auc_score(positive, cosines)),
        "num_examples": len(positive),
        "positive": int(positive.sum()),
        "roc_curve": thinned_roc_curve(positive, cosines),
    }


def thinned_roc_curve(positive: np.ndarray, scores: np.ndarray, points: int = CURVE_POINTS) -> dict[str, list[float]]:
    """Compute false and true positive rates, from (0, 0) to (1, 1), at no more than `points` thresholds.

    Args:
        positive: (N,) bool.
        scores: (N,), higher for a positive pair.
    """
    false_rate, true_rate, _ = roc_curve(positive, scores)
    kept = np.unique(np.linspace(0, len(false_rate) - 1, points).round().astype(int))
    return {
        "false_positive_rate": false_rate[kept].round(5).tolist(),
        "true_positive_rate": true_rate[kept].round(5).tolist(),
    }


def _entailed(labels: list[str], path: Path) -> np.ndarray:
    for number, label in enumerate(labels, start=2):
        if label not in ("entailment", "not_entailment"):
            raise InputError(f"{path}, line {number}: label {label!r}, expected 'entailment' or 'not_entailment'")
    return np.array([label == "entailment" for label in labels])

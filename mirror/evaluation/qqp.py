"""`qqp_cosine`: how well the cosine separates paraphrases from other pairs (Mirror-BERT Figure 7).

Accepts any file of question pairs with labels 0 and 1 and scores a fixed sample of 1,000 pairs. The histograms are
part of the result, so a plot of before and after training needs only the two results.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from mirror.common.errors import InputError
from mirror.evaluation.sts import paired_cosines
from mirror.evaluation.task import DataFile, Task
from mirror.modeling.encoder import Encode


QQP = DataFile("qqp/qqp.tsv", ("question1", "question2", "label"))
SAMPLE, SEED = 1000, 0
BIN_EDGES = np.linspace(-1, 1, 81)  # (81,): bins of 0.025


def tasks(data_dir: Path) -> list[Task]:
    """Return the only task of this family."""
    return [
        Task(
            name="qqp_cosine",
            metric="roc_auc",
            protocol=f"{SAMPLE:,} pairs drawn with seed {SEED}, cosine against the label, no training",
            files=(QQP,),
            score=score,
            published="Mirror-BERT Figure 7 (a plot without numbers)",
        )
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """Compute the AUC of the cosine, and the mean cosines of both classes, their gap and their histograms.

    The main score is the AUC because the gap depends on the spread of the cosines, not only on the overlap.
    """
    columns = QQP.read(data_dir)
    rows = sample_rows(len(columns["label"]))
    positive = _labels(columns["label"], data_dir / QQP.path)[rows]
    left, right = ([columns[name][row] for row in rows] for name in ("question1", "question2"))
    vectors = encode(left + right)  # (2N, D)
    return compare(paired_cosines(vectors[: len(rows)], vectors[len(rows) :]), positive)


def sample_rows(available: int, size: int = SAMPLE, seed: int = SEED) -> np.ndarray:
    """Draw `size` distinct row indices below `available`, in ascending order; all of them if there are fewer."""
    return np.sort(np.random.default_rng(seed).permutation(available)[:size])


def compare(cosines: np.ndarray, positive: np.ndarray) -> dict:
    """Compute the fields of the result from cosines (N,) and labels (N,) bool, True for a positive pair."""
    kinds = {"positive": cosines[positive], "negative": cosines[~positive]}
    means = {kind: float(values.mean()) for kind, values in kinds.items()}
    histogram = {kind: np.histogram(values.clip(-1, 1), BIN_EDGES)[0].tolist() for kind, values in kinds.items()}
    return {
        "main_score": float(roc_auc_score(positive, cosines)),
        "num_examples": len(cosines),
        "mean_cosine": means,
        "gap": means["positive"] - means["negative"],
        "histogram": {"bin_edges": BIN_EDGES.round(4).tolist(), **histogram},
    }


def _labels(labels: list[str], path: Path) -> np.ndarray:
    """Convert the labels to (N,) bool.

    Raises:
        InputError: a label is neither 0 nor 1, or all labels are the same.
    """
    for number, label in enumerate(labels, start=2):
        if label not in ("0", "1"):
            raise InputError(f"{path}, line {number}: label {label!r}, expected 0 or 1")
    if len(set(labels)) < 2:
        raise InputError(f"{path}: every label is {labels[0]}; both paraphrases (1) and other pairs (0) are needed")
    return np.array([label == "1" for label in labels])

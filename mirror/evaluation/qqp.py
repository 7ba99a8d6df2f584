"""`qqp_cosine`: how far apart are the cosines of paraphrases and of other pairs? (Mirror-BERT Figure 7.)

Any file of question pairs with a 0/1 label will do; a fixed sample of 1,000 pairs is scored. The histograms go into
the result, so that a picture before and after training needs only the two results.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from mirror.errors import InputError
from mirror.evaluation.sts import paired_cosines
from mirror.evaluation.task import DataFile, Encode, Task


QQP = DataFile("qqp/qqp.tsv", ("question1", "question2", "label"))
SAMPLE, SEED = 1000, 0
BIN_EDGES = np.linspace(-1, 1, 81)  # (81,): bins of 0.025


def tasks(data_dir: Path) -> list[Task]:
    """The one task of this family."""
    return [
        Task(
            name="qqp_cosine",
            metric="roc_auc",
            protocol=f"{SAMPLE:,} pairs drawn with seed {SEED}, cosine against the label, no training",
            files=(QQP,),
            score=score,
            published="Mirror-BERT Figure 7 (a picture; it prints no number)",
        )
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """AUC of cosine against label; the mean cosine of both kinds, their gap and their histograms beside it.

    AUC is the main score because a gap grows with the spread of the cosines, which says nothing about the overlap.
    """
    columns = QQP.read(data_dir)
    rows = sample_rows(len(columns["label"]))
    positive = _labels(columns["label"], data_dir / QQP.path)[rows]
    left, right = ([columns[name][row] for row in rows] for name in ("question1", "question2"))
    vectors = encode(left + right)  # (2N, D)
    return compare(paired_cosines(vectors[: len(rows)], vectors[len(rows) :]), positive)


def sample_rows(available: int, size: int = SAMPLE, seed: int = SEED) -> np.ndarray:
    """`size` distinct row numbers below `available`, ascending; all of them if there are no more."""
    return np.sort(np.random.default_rng(seed).permutation(available)[:size])


def compare(cosines: np.ndarray, positive: np.ndarray) -> dict:
    """The fields of the result, from (N,) cosines and (N,) bool."""
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
    """(N,) bool.

    Raises:
        InputError: a label other than 0 and 1, or only one of the two.
    """
    for number, label in enumerate(labels, start=2):
        if label not in ("0", "1"):
            raise InputError(f"{path}, line {number}: label {label!r}, expected 0 or 1")
    if len(set(labels)) < 2:
        raise InputError(f"{path}: every label is {labels[0]}; paraphrases (1) and other pairs (0) are needed")
    return np.array([label == "1" for label in labels])

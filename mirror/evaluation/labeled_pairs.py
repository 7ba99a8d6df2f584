"""Pairs with a binary label, told apart by their cosine without training: `qnli` and `qqp_cosine`.

`qnli` (Mirror-BERT Figure 4): does a sentence of GLUE's dev set answer the question? `qqp_cosine` (Figure 7): are two
questions paraphrases? It accepts any file of question pairs and scores a fixed sample of 1,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from mirror.common.errors import InputError
from mirror.evaluation import plots
from mirror.evaluation.metrics import cosines_of_pairs, paired_cosines
from mirror.evaluation.task import Columns, DataFile, Options, Task
from mirror.modeling.encoder import Encode, encode_sides


QNLI = DataFile("qnli/dev.tsv", ("question", "sentence", "label"), (5463,))
QQP = DataFile("qqp/qqp.tsv", ("question1", "question2", "label"))
SAMPLE, SEED = 1000, 0
BIN_EDGES = np.linspace(-1, 1, 81)  # (81,): bins of 0.025


def tasks(data_dir: Path, options: Options) -> list[Task]:
    """Return the two tasks of this family."""
    protocol = "GLUE dev, cosine of question and sentence against entailment, no training"
    qnli = {
        "dataset": "QNLI (dev)",
        "hub": ("nyu-mll/glue", "qnli", "validation"),
        "published": "Mirror-BERT Figure 4",
    }
    qnli["plot"] = lambda results, folder: plots.roc_curves(folder / "qnli_roc", results, "QNLI dev, unsupervised")
    sampled = f"{SAMPLE:,} pairs drawn with seed {SEED}, cosine against the label, no training"
    qqp = {"dataset": "Quora Question Pairs", "hub": ("nyu-mll/glue", "qqp", "validation")}
    qqp |= {
        "published": "Mirror-BERT Figure 7 (a plot without numbers)",
        "plot": partial(plot_histograms, "qqp_cosine"),
    }
    return [
        Task("qnli", "roc_auc", protocol, (QNLI,), score_qnli, **qnli),
        Task("qqp_cosine", "roc_auc", sampled, (QQP,), score_qqp, **qqp),
    ]


def score_qnli(encode: Encode, data_dir: Path) -> dict:
    """Compute the AUC over the dev pairs, and the ROC curve, subsampled to at most 200 points."""
    columns = QNLI.read(data_dir)
    # In GLUE's own numbering 0 means entailment, so numbers are refused: they could be misread.
    positive = _labels(columns, data_dir / QNLI.path, "entailment", "not_entailment")
    cosines = paired_cosines(*encode_sides(encode, columns["question"], columns["sentence"]))
    fields = {"main_score": float(roc_auc_score(positive, cosines)), "num_examples": len(positive)}
    return fields | {"positive": int(positive.sum()), "roc_curve": thinned_roc_curve(positive, cosines)}


def score_qqp(encode: Encode, data_dir: Path) -> dict:
    """Compute the AUC of the cosine, and the mean cosines of both classes, their gap, which depends on the spread, and histograms."""
    columns, path = QQP.read(data_dir), data_dir / QQP.path
    positive = _labels(columns, path, "1", "0")
    if positive.all() or not positive.any():
        label = columns["label"][0]
        raise InputError(f"{path}: every label is {label}; both paraphrases (1) and other pairs (0) are needed")
    rows = sample_rows(len(positive))
    left, right = ([columns[name][row] for row in rows] for name in ("question1", "question2"))
    return compare(cosines_of_pairs(encode, left, right), positive[rows])


def thinned_roc_curve(positive: np.ndarray, scores: np.ndarray, points: int = 200) -> dict[str, list[float]]:
    """Compute false and true positive rates of (N,) bool and (N,) scores, from (0, 0) to (1, 1), at `points` thresholds."""
    false_rate, true_rate, _ = roc_curve(positive, scores)
    kept = np.unique(np.linspace(0, len(false_rate) - 1, points).round().astype(int))
    rates = {"false_positive_rate": false_rate, "true_positive_rate": true_rate}
    return {name: rate[kept].round(5).tolist() for name, rate in rates.items()}


def sample_rows(available: int, size: int = SAMPLE, seed: int = SEED) -> np.ndarray:
    """Draw `size` distinct row indices below `available`, in ascending order; all of them if there are fewer."""
    return np.sort(np.random.default_rng(seed).permutation(available)[:size])


def compare(cosines: np.ndarray, positive: np.ndarray) -> dict:
    """Compute the fields of a result from cosines (N,) and labels (N,) bool, True for a positive pair."""
    kinds = {"positive": cosines[positive], "negative": cosines[~positive]}
    means = {kind: float(values.mean()) for kind, values in kinds.items()}
    # Rounding can make a cosine slightly larger than 1, which np.histogram would leave out.
    histogram = {kind: np.histogram(values.clip(-1, 1), BIN_EDGES)[0].tolist() for kind, values in kinds.items()}
    return {
        "main_score": float(roc_auc_score(positive, cosines)),
        "num_examples": len(cosines),
        "mean_cosine": means,
        "gap": means["positive"] - means["negative"],
        "histogram": {"bin_edges": BIN_EDGES.round(4).tolist(), **histogram},
    }


def plot_histograms(task: str, results: Mapping[str, dict], folder: Path) -> list[Path]:
    """Draw the histograms of cosines of a task, one panel per model (see `Task.plot`)."""
    histograms = {model: entry["histogram"] for model, entry in results.items()}
    return plots.cosine_histograms(folder / f"{task.removesuffix('_cosine')}_cosines", histograms, task)


def _labels(columns: Columns, path: Path, positive: str, negative: str) -> np.ndarray:
    """Convert the column `label` to (N,) bool. A label that is neither of the two is an `InputError`."""
    for number, label in enumerate(columns["label"], start=2):
        if label not in (positive, negative):
            raise InputError(f"{path}, line {number}: label {label!r}, expected {positive!r} or {negative!r}")
    return np.array(columns["label"]) == positive

"""Tasks on a user's own tables: pairs with a score or a label, triplets, and texts with a class."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, v_measure_score
from sklearn.model_selection import StratifiedKFold

from mirror.common.errors import InputError, one_line
from mirror.common.vectors import unit_length
from mirror.data.files import place
from mirror.data.tables import columns_of, read_rows
from mirror.evaluation.metrics import Sample, cosines_of_pairs, paired_cosines
from mirror.evaluation.task import TRIPLET, Task, file_task, parse_number, stem
from mirror.evaluation.transfer import MAX_ITERATIONS, fit, scaled
from mirror.modeling.encoder import Encode


logger = logging.getLogger(__name__)

NOT_TEXTS = "score label id _id idx index split subset label_text".split()
FOLDS = 10


def table_task(path: Path) -> Task:
    """Return the task of a table, named by the file's stem. Its columns say what the task is.

    | columns | main score |
    | --- | --- |
    | `anchor`, `positive`, `negative` | accuracy: the positive is nearer than the negative |
    | two texts and `score` | Spearman of cosine and score |
    | two texts and `label`, 0 or 1 | average precision of the cosine |
    | `text` and `label` | accuracy of a linear probe |

    Other columns, or a wrong row, are an `InputError`.
    """
    path = path.resolve()
    known = columns_of(path)
    texts = [name for name in known if name not in NOT_TEXTS]
    if set(TRIPLET) <= set(known):
        protocol = "cosine of anchor and positive above that of anchor and negative"
        return _task(path, TRIPLET, score_triplets, "accuracy", protocol)
    if "score" in known and len(texts) >= 2:
        protocol = "all pairs, one Spearman rho between cosine and score"
        return _task(path, (*_first_two(path, texts), "score"), score_graded, "spearman_cosine", protocol)
    if "label" in known and len(texts) >= 2 and "text" not in texts:
        protocol = "cosine of the pair against the label, no training"
        return _task(path, (*_first_two(path, texts), "label"), score_labeled, "average_precision", protocol)
    if "label" in known and len(texts) == 1:
        protocol = f"frozen vectors, logistic regression (C = 1), stratified {FOLDS}-fold cross-validation, seed 0"
        return _task(path, (texts[0], "label"), score_classes, "accuracy", protocol)
    if "label" in known and "text" in texts:
        fix = "keep text and label for classes, or give the texts of pairs two other names than 'text'"
        raise InputError(f"{path}: columns {', '.join(known)} can be classes or pairs; {fix}")
    needs = "two columns of texts and score or label; anchor, positive and negative; or text and label"
    raise InputError(f"{path} has columns {', '.join(known)}; a task needs {needs}")


def _first_two(path: Path, texts: list[str]) -> list[str]:
    if len(texts) > 2:
        logger.warning("%s: the pairs are '%s' and '%s'; %s not used", path, *texts[:2], ", ".join(texts[2:]))
    return texts[:2]


def _task(path: Path, columns: tuple[str, ...], score, metric: str, protocol: str) -> Task:
    return file_task(stem(path), metric, protocol, path.name, read_columns, (path, columns), score)


def read_columns(path: Path, columns: tuple[str, ...]) -> list[list[str]]:
    """Read and check columns of a table. An empty text or a wrong value is an `InputError` with the file and the row."""
    is_value = {name: name in ("score", "label") for name in columns}
    values = [name for name in columns if is_value[name]]
    rows = []
    for number, cells in read_rows(str(path), [name for name in columns if not is_value[name]], values):
        for name, cell in zip(columns, cells, strict=True):
            if not cell.strip():
                raise InputError(f"{place(path, number)}: '{name}' is empty; fill it or remove the row")
            if name == "score":
                parse_number(cell, f"{place(path, number)}: the score")
            if name == "label" and len(columns) == 3 and cell not in ("0", "1", "0.0", "1.0"):
                raise InputError(f"{place(path, number)}: label {one_line(repr(cell), 80)}, expected 0 or 1")
        rows.append(cells)
    if not rows:
        raise InputError(f"{path}: no rows in it")
    table = list(map(list, zip(*rows, strict=True)))
    if columns[-1] == "label":
        counts = Counter(map(float, table[-1]) if len(columns) == 3 else table[-1])
        if len(counts) < 2:
            raise InputError(f"{path}: every label is {one_line(table[-1][0], 80)}; at least two are needed")
        least = min(counts, key=counts.get)
        if len(columns) == 2 and counts[least] < 2:
            needs = "each needs two, to train and to test on"
            raise InputError(f"{path}: label '{one_line(least, 80)}' has one row; {needs}")
    elif columns[-1] == "score" and len(set(map(float, table[-1]))) < 2:
        raise InputError(f"{path}: every score is {table[-1][0]}; a correlation needs different ones")
    return table


def score_graded(table: list[list[str]], encode: Encode) -> dict:
    """Compute Spearman and Pearson of cosines and scores."""
    left, right, scores = table
    gold, cosines = np.array(scores, dtype=float), cosines_of_pairs(encode, left, right)
    spearman, pearson = (float(of(cosines, gold).statistic) for of in (spearmanr, pearsonr))
    sample = Sample(len(gold), lambda rows: spearmanr(cosines[rows], gold[rows]).statistic)
    fields = {"main_score": spearman, "num_examples": len(gold), "pearson_cosine": pearson}
    return fields | {"samples": {"encoder": sample}}


def score_labeled(table: list[list[str]], encode: Encode) -> dict:
    """Compute average precision and AUC of cosines, and the cosine from which on "1" has the best F1."""
    left, right, labels = table
    positive, cosines = np.array(labels, dtype=float) == 1, cosines_of_pairs(encode, left, right)
    precision, recall, thresholds = precision_recall_curve(positive, cosines)
    f1 = 2 * precision * recall / np.maximum(precision + recall, np.finfo(float).tiny)
    best = int(f1[:-1].argmax())  # the last point has no threshold
    # Without a positive, a resample has no score: 0 / 0.
    sample = Sample(len(positive), lambda at: average_precision_score(positive[at], cosines[at]) / positive[at].any())
    fields = {"main_score": float(average_precision_score(positive, cosines)), "num_examples": len(positive)}
    fields |= {"roc_auc": float(roc_auc_score(positive, cosines)), "positive": int(positive.sum())}
    fields |= {"best_f1": float(f1[best]), "best_f1_threshold": float(thresholds[best])}
    return fields | {"samples": {"encoder": sample}}


def score_triplets(table: list[list[str]], encode: Encode) -> dict:
    """Compute the share of anchors that are nearer to the positive than to the negative. A tie is an error."""
    anchors, positives, negatives = table
    of_anchors, of_positives, of_negatives = np.split(encode([*anchors, *positives, *negatives]), 3)
    right = paired_cosines(of_anchors, of_positives) > paired_cosines(of_anchors, of_negatives)
    fields = {"main_score": float(right.mean()), "num_examples": len(right)}
    return fields | {"samples": {"encoder": Sample.mean_of(right)}}


def score_classes(table: list[list[str]], encode: Encode) -> dict:
    """Compute the accuracy of a linear probe, each row predicted from other rows, and the v-measure of k-means."""
    texts, labels = table
    vectors, classes = encode(texts), np.array(labels)
    features, folds = scaled(vectors), min(FOLDS, min(Counter(labels).values()))
    right = np.zeros(len(classes))
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=0).split(features, classes):
        probe = fit(LogisticRegression(max_iter=MAX_ITERATIONS), features[train], classes[train])
        right[test] = probe.predict(features[test]) == classes[test]
    clusters = fit(KMeans(len(set(labels)), n_init=10, random_state=0), unit_length(vectors)).labels_
    return {
        "main_score": float(right.mean()),
        "num_examples": len(classes),
        "classes": len(set(labels)),
        "folds": folds,
        "majority": max(Counter(labels).values()) / len(labels),
        "v_measure": float(v_measure_score(classes, clusters)),
        "samples": {"encoder": Sample.mean_of(right)},
    }

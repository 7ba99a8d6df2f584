"""SentEval's transfer tasks: accuracy of a linear probe on frozen embeddings (CMLM Table 1).

Logistic regression by scikit-learn on the splits of Conneau and Kiela (2018). Knows features and labels; embeddings
come from `encode`. Differences from SentEval's code are documented in `probe`, `scaled` and `fit_relatedness`.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from threadpoolctl import threadpool_limits

from mirror.common.errors import InputError
from mirror.evaluation.task import Columns, DataFile, Task
from mirror.modeling.encoder import Encode


# For features with a mean square of 1 (see `scaled`). SentEval's six or seven values are closer together.
C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
OUTER_FOLDS, INNER_FOLDS, SEED = 10, 5, 1111
MAX_ITERATIONS = 1000

# name, accepted numbers of rows
CROSS_VALIDATED = (("mr", (10662,)), ("cr", (3771, 3775)), ("subj", (10000,)), ("mpqa", (10603, 10606)))
SST2_ROWS, TREC_ROWS, MRPC_ROWS = (70042,), (5952,), (5801,)
SICK_PARTS = (("train", 4500), ("trial", 500), ("test", 4927))
SICK_COLUMNS = ("sentence1", "sentence2", "score", "entailment")

_LABELS = ("split", "text", "label")
_PAIRS = ("split", "sentence1", "sentence2", "label")
_NESTED = "accuracy, mean of 10 stratified folds; C by 5-fold cross-validation inside each"
_ON_TRAIN = "accuracy on test; C by 10-fold cross-validation on train"
_ON_DEV = "accuracy on test; C by accuracy on dev"


def tasks(data_dir: Path, senteval_dir: str | Path | None = None) -> list[Task]:
    """Return the nine tasks of SentEval's tables.

    Args:
        senteval_dir: a folder with the same files in another language (`mr.tsv` ..., `sickr_train.tsv` ...). It
            replaces `senteval/` and `sts/sickr_*` of the data folder, and its files may have any number of rows.
    """
    if senteval_dir is None:
        return tasks_in("senteval", "sts")
    folder = str(Path(senteval_dir).resolve())
    return tasks_in(folder, folder, any_rows=True)


def tasks_in(folder: str, sick_folder: str, any_rows: bool = False) -> list[Task]:
    """Return the nine tasks on the files of two folders, relative to the data folder or absolute.

    Args:
        sick_folder: folder of `sickr_train.tsv`, `sickr_trial.tsv` and `sickr_test.tsv`.
        any_rows: accept files with any number of rows.
    """

    def file(name: str, columns: tuple[str, ...], rows: tuple[int, ...]) -> DataFile:
        return DataFile(f"{folder}/{name}.tsv", columns, () if any_rows else rows)

    sick = tuple(
        DataFile(f"{sick_folder}/sickr_{part}.tsv", SICK_COLUMNS, () if any_rows else (rows,), (1, 5))
        for part, rows in SICK_PARTS
    )
    return [
        *(_task(name, "accuracy", _NESTED, score_nested, file(name, _LABELS, rows)) for name, rows in CROSS_VALIDATED),
        _task("sst2", "accuracy", _ON_DEV, score_dev_chosen, file("sst2", _LABELS, SST2_ROWS)),
        _task("trec", "accuracy", _ON_TRAIN, score_trec, file("trec", _LABELS, TREC_ROWS)),
        _task("mrpc", "accuracy", f"|u-v|, u*v; {_ON_TRAIN}", score_mrpc, file("mrpc", _PAIRS, MRPC_ROWS)),
        _task("sicke", "accuracy", f"|u-v|, u*v; {_ON_DEV}", score_entailment, *sick),
        _task(
            "sickr",
            "pearson",
            "|u-v|, u*v; expected score of a softmax over 1 to 5 fitted to soft targets; C by Pearson on trial",
            score_relatedness,
            *sick,
        ),
    ]


def score_nested(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score MR, CR, SUBJ or MPQA by nested cross-validation."""
    columns = files[0].read(data_dir)
    accuracies = nested_accuracies(scaled(encode(columns["text"])), np.array(columns["label"]))
    return _result(float(accuracies.mean()), len(columns["text"]), std_of_folds=float(accuracies.std()))


def score_dev_chosen(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score SST-2. The training rows are phrases, as distributed by SentEval."""
    columns = files[0].read(data_dir)
    features, labels = scaled(encode(columns["text"])), np.array(columns["label"])
    parts = [_rows_of_split(files[0], columns, split) for split in ("train", "dev", "test")]
    return dev_chosen([(features[rows], labels[rows]) for rows in parts])


def score_trec(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score TREC with its six coarse classes."""
    columns = files[0].read(data_dir)
    return _train_test(files[0], columns, scaled(encode(columns["text"])))[0]


def score_mrpc(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score MRPC: accuracy, and F1 of the paraphrases."""
    columns = files[0].read(data_dir)
    fields, gold, predicted = _train_test(files[0], columns, pair_features(encode, columns))
    return fields | {"f1": float(f1_score(gold == "1", predicted == "1"))}


def score_entailment(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score SICK-E with its three classes."""
    parts = [file.read(data_dir) for file in files]
    features = _split_features(encode, parts)
    return dev_chosen([(x, np.array(part["entailment"])) for x, part in zip(features, parts, strict=True)])


def score_relatedness(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score SICK-R as a supervised task: Pearson's r, and Spearman's rho."""
    parts = [file.read(data_dir) for file in files]
    train, dev, test = _split_features(encode, parts)
    gold = [np.array([float(score) for score in part["score"]]) for part in parts]
    models = {c: fit_relatedness(train, gold[0], c) for c in C_GRID}
    on_dev = {c: pearsonr(expected_score(model, dev), gold[1]).statistic for c, model in models.items()}
    best = max(on_dev, key=on_dev.get)
    predicted = expected_score(models[best], test)
    pearson = float(pearsonr(predicted, gold[2]).statistic)
    return _result(pearson, len(test), spearman=float(spearmanr(predicted, gold[2]).statistic), chosen_c=best)


def probe(c: float = 1.0) -> LogisticRegression:
    """Return the linear probe: L2-regularised logistic regression, fitted by L-BFGS.

    SentEval provides the same model in scikit-learn and in PyTorch with early stopping; most published scores use the
    latter.
    """
    return LogisticRegression(C=c, max_iter=MAX_ITERATIONS)


def scaled(vectors: np.ndarray) -> np.ndarray:
    """Divide (N, D) vectors by their root mean square, so that the mean square of all values is 1.

    SentEval does not do this. It allows one grid of C for both BERT, whose vectors have a norm of about 15, and
    encoders with normalised embeddings. A common factor has no other effect.
    """
    return vectors / root_mean_square(vectors)


def root_mean_square(vectors: np.ndarray) -> float:
    """Compute the root mean square of all values of an array; at least the smallest positive float32."""
    return max(float(np.sqrt(np.mean(np.square(vectors, dtype=np.float64)))), float(np.finfo(np.float32).tiny))


def pair_features(encode: Encode, columns: Columns) -> np.ndarray:
    """Compute the features |u - v| and u * v of `sentence1` and `sentence2`, as (N, 2D)."""
    vectors = scaled(encode(columns["sentence1"] + columns["sentence2"]))  # (2N, D)
    left, right = np.split(vectors, 2)
    return np.hstack([np.abs(left - right), left * right])


def nested_accuracies(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Compute the test accuracy of each outer fold, with C selected within its training part.

    Args:
        features: (N, F).
        labels: (N,).

    Returns:
        (10,) accuracies.

    Raises:
        InputError: a class has too few rows for the folds.
    """
    _check_folds(labels)
    outer = StratifiedKFold(OUTER_FOLDS, shuffle=True, random_state=SEED)
    return np.array(
        [
            cross_validated_probe(features[train], labels[train], INNER_FOLDS).score(features[test], labels[test])
            for train, test in outer.split(features, labels)
        ]
    )


def cross_validated_probe(features: np.ndarray, labels: np.ndarray, folds: int) -> GridSearchCV:
    """Fit a probe to all rows of (N, F), with the C that has the highest accuracy in stratified cross-validation."""
    _check_folds(labels)
    inner = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    return _fit(GridSearchCV(probe(), {"C": C_GRID}, scoring="accuracy", cv=inner), features, labels)


def dev_chosen(parts: list[tuple[np.ndarray, np.ndarray]]) -> dict:
    """Compute the test accuracy of a probe fitted to train, with the C that has the highest accuracy on dev.

    Args:
        parts: features (N, F) and labels (N,) of train, dev and test.
    """
    train, dev, (test, test_labels) = parts
    model, c = dev_selected_probe(train, dev)
    return _result(float(model.score(test, test_labels)), len(test), chosen_c=c)


def dev_selected_probe(
    train: tuple[np.ndarray, np.ndarray], dev: tuple[np.ndarray, np.ndarray]
) -> tuple[LogisticRegression, float]:
    """Fit a probe to train, features (N, F) and labels (N,); return it and its C, the one with the best accuracy on dev."""
    models = {c: _fit(probe(c), *train) for c in C_GRID}
    on_dev = {c: model.score(*dev) for c, model in models.items()}
    best = max(on_dev, key=on_dev.get)
    return models[best], best


def soft_targets(scores: np.ndarray) -> np.ndarray:
    """Convert scores (N,) to distributions (N, 5) over 1 to 5 with that mean (Tai et al. 2015).

    For example, 3.2 becomes a probability of .8 for 3 and .2 for 4.
    """
    return np.maximum(0, 1 - np.abs(scores[:, None] - np.arange(1, 6)))


def fit_relatedness(features: np.ndarray, scores: np.ndarray, c: float) -> LogisticRegression:
    """Fit softmax regression to soft targets by repeating each row for its one or two classes with their weights.

    The weighted log-likelihood is the cross-entropy to the soft targets, which is equal to Tai et al.'s KL divergence
    up to a constant. SentEval's code minimises the squared error of the probabilities with Adam and early stopping.
    This loss is convex, so the result does not depend on a seed.

    Args:
        features: (N, F).
        scores: (N,) from 1 to 5.
    """
    targets = soft_targets(scores)
    rows, classes = np.nonzero(targets)
    return _fit(probe(c), features[rows], classes + 1, sample_weight=targets[rows, classes])


def expected_score(model: LogisticRegression, features: np.ndarray) -> np.ndarray:
    """Compute the mean of the predicted distribution over the classes of the training set, as (N,)."""
    return model.predict_proba(features) @ model.classes_


def _fit(estimator, *arguments, **options):
    """Call `estimator.fit` without warnings that a weak penalty has not converged after 1,000 iterations.

    The result is deterministic all the same, and the selection of C rejects it if it generalises badly. BLAS has one thread:
    an iteration is two products of a matrix and a vector, too short to share, and two threads took up to nine times as long.
    """
    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(*arguments, **options)


def _task(name: str, metric: str, protocol: str, score, *files: DataFile) -> Task:
    return Task(
        name=f"transfer_{name}",
        metric=metric,
        protocol=f"frozen vectors, logistic regression; {protocol}",
        files=files,
        score=partial(score, files),
        groups=("transfer",),
        published="CMLM Table 1",
    )


def _train_test(file: DataFile, columns: Columns, features: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray]:
    """Fit a probe with C selected by 10-fold cross-validation on train; return result, gold labels and predictions."""
    labels = np.array(columns["label"])
    train, test = (_rows_of_split(file, columns, split) for split in ("train", "test"))
    search = cross_validated_probe(features[train], labels[train], OUTER_FOLDS)
    predicted = search.predict(features[test])
    accuracy = float((predicted == labels[test]).mean())
    return _result(accuracy, len(test), chosen_c=search.best_params_["C"]), labels[test], predicted


def _split_features(encode: Encode, parts: list[Columns]) -> list[np.ndarray]:
    """Compute the pair features of several files, encoded and scaled together."""
    joined = {name: [text for part in parts for text in part[name]] for name in ("sentence1", "sentence2")}
    ends = np.cumsum([len(part["sentence1"]) for part in parts])
    return np.split(pair_features(encode, joined), ends[:-1])


def _rows_of_split(file: DataFile, columns: Columns, split: str) -> np.ndarray:
    rows = np.flatnonzero(np.array(columns["split"]) == split)
    if not len(rows):
        raise InputError(f"{file.path}: no row has split '{split}'; it has {', '.join(sorted(set(columns['split'])))}")
    return rows


def _check_folds(labels: np.ndarray) -> None:
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2 or counts.min() < OUTER_FOLDS:
        found = dict(zip(classes.tolist(), counts.tolist(), strict=True))
        raise InputError(
            f"labels {found}: each class needs {OUTER_FOLDS} rows, and there must be at least two classes"
        )


def _result(main_score: float, num_examples: int, **fields: float) -> dict:
    return {"main_score": main_score, "num_examples": num_examples, **fields}

"""SentEval's transfer tasks: accuracy of a linear probe on frozen embeddings (CMLM Table 1), also in other languages.

L2-regularized logistic regression by scikit-learn on the splits of Conneau and Kiela (2018). Most published scores use
SentEval's other classifier, the same model in PyTorch with early stopping. See also `scaled` and `fit_relatedness`.

`xeval_ar` ... are the nine tasks in a language of CMLM's XEVAL (Tables 2 and 3), SentEval translated by machine, which was
not released: a user fills `xeval/<language>/` of the data folder. English is SentEval itself, from its own place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
from mirror.evaluation.task import Columns, DataFile, Options, Task
from mirror.modeling.encoder import Encode


# For features with a mean square of 1 (see `scaled`). SentEval's six or seven values are closer together.
C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
OUTER_FOLDS, INNER_FOLDS, SEED = 10, 5, 1111
MAX_ITERATIONS = 1000
CROSS_VALIDATED = {"mr": (10662,), "cr": (3771, 3775), "subj": (10000,), "mpqa": (10603, 10606)}  # accepted rows
SICK_PARTS = (("train", 4500), ("trial", 500), ("test", 4927))
SICK_COLUMNS = ("sentence1", "sentence2", "score", "entailment")


def tasks(data_dir: Path, options: Options) -> list[Task]:
    """Return the nine tasks of SentEval's tables, and one task for each language of XEVAL.

    `senteval_dir` is a folder with the same files in another language and any number of rows.
    """
    folder = options.senteval_dir and str(Path(options.senteval_dir).resolve())
    found = tasks_in(folder, folder, any_rows=True) if folder else tasks_in("senteval", "sts")
    how = "accuracy, and Pearson's r for SICK-R; as the tasks transfer_*"
    fields = {"groups": ("xeval",), "published": "CMLM Tables 2 and 3"}
    for language in "ar bg de el en es fr hi ru sw th tr ur vi zh".split():
        folders = ("senteval", "sts") if language == "en" else (f"xeval/{language}",) * 2
        members = tasks_in(*folders, any_rows=language != "en")
        protocol = f"mean of SentEval's nine tasks in '{language}': {how}"
        files = tuple(dict.fromkeys(file for task in members for file in task.files))
        scored, dataset = partial(score_language, members), f"XEVAL ({language})"
        found.append(Task(f"xeval_{language}", "accuracy", protocol, files, scored, dataset=dataset, **fields))
    return found


def tasks_in(folder: str, sick_folder: str, any_rows: bool = False) -> list[Task]:
    """Return the nine tasks on the files of a folder and those of SICK, with any numbers of rows if `any_rows`."""

    def task(dataset: str, metric: str, protocol: str, score: Callable, *files: DataFile) -> Task:
        name, protocol = dataset.replace("-", "").lower(), f"frozen vectors, logistic regression; {protocol}"
        fields = {"groups": ("transfer",), "dataset": f"SentEval {dataset}", "published": "CMLM Table 1"}
        return Task(f"transfer_{name}", metric, protocol, files, partial(score, files), **fields)

    def file(name: str, columns: tuple[str, ...], *rows: int) -> DataFile:
        return DataFile(f"{folder}/{name}.tsv", columns, () if any_rows else rows)

    labels, pairs = ("split", "text", "label"), ("split", "sentence1", "sentence2", "label")
    sized = {f"{sick_folder}/sickr_{part}.tsv": () if any_rows else (rows,) for part, rows in SICK_PARTS}
    sick = tuple(DataFile(path, SICK_COLUMNS, rows, (1, 5)) for path, rows in sized.items())
    nested = "accuracy, mean of 10 stratified folds; C by 5-fold cross-validation inside each"
    on_train = "accuracy on test; C by 10-fold cross-validation on train"
    on_dev = "accuracy on test; C by accuracy on dev"
    relatedness = "expected score of a softmax over 1 to 5 fitted to soft targets; C by Pearson on trial"
    on_label, on_entailment = (partial(score_dev_chosen, column) for column in ("label", "entailment"))
    return [
        *(
            task(name.upper(), "accuracy", nested, score_nested, file(name, labels, *n))
            for name, n in CROSS_VALIDATED.items()
        ),
        task("SST-2", "accuracy", on_dev, on_label, file("sst2", labels, 70042)),
        task("TREC", "accuracy", on_train, score_train_test, file("trec", labels, 5952)),
        task("MRPC", "accuracy", f"|u-v|, u*v; {on_train}", score_train_test, file("mrpc", pairs, 5801)),
        task("SICK-E", "accuracy", f"|u-v|, u*v; {on_dev}", on_entailment, *sick),
        task("SICK-R", "pearson", f"|u-v|, u*v; {relatedness}", score_relatedness, *sick),
    ]


def score_language(members: list[Task], encode: Encode, data_dir: Path) -> dict:
    """Score the nine tasks of SentEval in one language. The main score is their mean."""
    results = {task.name.removeprefix("transfer_"): task.score(encode, data_dir) for task in members}
    scores = {name: result["main_score"] for name, result in results.items()}
    examples = sum(result["num_examples"] for result in results.values())
    return {"main_score": float(np.mean(list(scores.values()))), "num_examples": examples, "scores": scores}


def score_nested(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score MR, CR, SUBJ or MPQA by nested cross-validation."""
    columns, features = _features(files, encode, data_dir)
    accuracies = nested_accuracies(features, np.array(columns["label"]))
    spread = float(accuracies.std())
    return {"main_score": float(accuracies.mean()), "num_examples": len(features), "std_of_folds": spread}


def score_dev_chosen(label: str, files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score SST-2, whose training rows are phrases, as distributed by SentEval, or SICK-E. `label` is a column."""
    columns, features = _features(files, encode, data_dir)
    labels = np.array(columns[label])
    train, dev, test = _rows(files, columns, "train", "dev", "test")
    model, c = dev_selected_probe((features[train], labels[train]), (features[dev], labels[dev]))
    accuracy = float(model.score(features[test], labels[test]))
    return {"main_score": accuracy, "num_examples": len(test), "chosen_c": c}


def score_train_test(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score TREC with its six coarse classes, or MRPC, with the F1 of the paraphrases too."""
    columns, features = _features(files, encode, data_dir)
    labels = np.array(columns["label"])
    train, test = _rows(files, columns, "train", "test")
    search = cross_validated_probe(features[train], labels[train], OUTER_FOLDS)
    predicted = search.predict(features[test])
    f1 = {} if "text" in columns else {"f1": float(f1_score(labels[test] == "1", predicted == "1"))}
    fields = {"main_score": float((predicted == labels[test]).mean()), "num_examples": len(test)}
    return fields | {"chosen_c": search.best_params_["C"]} | f1


def score_relatedness(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> dict:
    """Score SICK-R as a supervised task: Pearson's r, and Spearman's rho."""
    columns, features = _features(files, encode, data_dir)
    scores = np.array([float(score) for score in columns["score"]])
    train, dev, test = _rows(files, columns, "train", "dev", "test")
    models = {c: fit_relatedness(features[train], scores[train], c) for c in C_GRID}
    on_dev = {c: pearsonr(expected_score(model, features[dev]), scores[dev]).statistic for c, model in models.items()}
    best = max(on_dev, key=on_dev.get)
    predicted = expected_score(models[best], features[test])
    pearson, spearman = (float(measure(predicted, scores[test]).statistic) for measure in (pearsonr, spearmanr))
    return {"main_score": pearson, "num_examples": len(test), "spearman": spearman, "chosen_c": best}


def scaled(vectors: np.ndarray) -> np.ndarray:
    """Divide (N, D) vectors by their root mean square, unlike SentEval, so that one grid of C fits all encoders' norms."""
    return vectors / root_mean_square(vectors)


def root_mean_square(vectors: np.ndarray) -> float:
    """Compute the root mean square of all values of an array, at least the smallest positive float32."""
    return max(float(np.sqrt(np.mean(np.square(vectors, dtype=np.float64)))), float(np.finfo(np.float32).tiny))


def pair_features(encode: Encode, columns: Columns) -> np.ndarray:
    """Compute the features |u - v| and u * v of `sentence1` and `sentence2`, as (N, 2D)."""
    left, right = np.split(scaled(encode(columns["sentence1"] + columns["sentence2"])), 2)  # (N, D) each
    return np.hstack([np.abs(left - right), left * right])


def nested_accuracies(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Compute the test accuracies, (10,), of the outer folds of (N, F) and (N,), with C selected within each training part."""
    _check_folds(labels)
    folds = StratifiedKFold(OUTER_FOLDS, shuffle=True, random_state=SEED).split(features, labels)
    probes = ((cross_validated_probe(features[train], labels[train], INNER_FOLDS), test) for train, test in folds)
    return np.array([fitted.score(features[test], labels[test]) for fitted, test in probes])


def cross_validated_probe(features: np.ndarray, labels: np.ndarray, folds: int) -> GridSearchCV:
    """Fit a probe to all rows of (N, F), with the C that has the highest accuracy in stratified cross-validation."""
    _check_folds(labels)
    inner = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    search = GridSearchCV(LogisticRegression(max_iter=MAX_ITERATIONS), {"C": C_GRID}, scoring="accuracy", cv=inner)
    return fit(search, features, labels)


def dev_selected_probe(
    train: tuple[np.ndarray, np.ndarray], dev: tuple[np.ndarray, np.ndarray]
) -> tuple[LogisticRegression, float]:
    """Fit a probe to train, features (N, F) and labels (N,), and return it and its C, the best by accuracy on dev."""
    models = {c: fit(LogisticRegression(C=c, max_iter=MAX_ITERATIONS), *train) for c in C_GRID}
    on_dev = {c: model.score(*dev) for c, model in models.items()}
    best = max(on_dev, key=on_dev.get)
    return models[best], best


def soft_targets(scores: np.ndarray) -> np.ndarray:
    """Convert scores (N,) to distributions (N, 5) over 1 to 5 with that mean, 3.2 to .8 for 3 and .2 for 4 (Tai et al. 2015)."""
    return np.maximum(0, 1 - np.abs(scores[:, None] - np.arange(1, 6)))


def fit_relatedness(features: np.ndarray, scores: np.ndarray, c: float) -> LogisticRegression:
    """Fit softmax regression to soft targets by repeating each row for its one or two classes with their weights.

    This is the cross-entropy to the soft targets: Tai et al.'s KL divergence up to a constant, convex and so without a seed,
    unlike SentEval's squared error.
    """
    targets = soft_targets(scores)
    rows, classes = np.nonzero(targets)
    model = LogisticRegression(C=c, max_iter=MAX_ITERATIONS)
    return fit(model, features[rows], classes + 1, sample_weight=targets[rows, classes])


def expected_score(model: LogisticRegression, features: np.ndarray) -> np.ndarray:
    """Compute the mean of the predicted distribution over the classes of the training set, as (N,)."""
    return model.predict_proba(features) @ model.classes_


def fit(estimator, *arguments, **options):
    """Call `estimator.fit` without warnings that a weak penalty has not converged after 1,000 iterations.

    BLAS has one thread: an iteration is too short to share, and two threads took up to nine times as long.
    """
    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(*arguments, **options)


def _features(files: tuple[DataFile, ...], encode: Encode, data_dir: Path) -> tuple[Columns, np.ndarray]:
    """Read a task's files, those of SICK together with a column `split`, and compute (N, F) features of its texts or pairs."""
    parts = [file.read(data_dir) for file in files]
    columns = parts[0]
    if len(parts) > 1:
        columns = {name: [value for part in parts for value in part[name]] for name in SICK_COLUMNS}
        splits = zip(("train", "dev", "test"), parts, strict=True)
        columns["split"] = [split for split, part in splits for _ in part["score"]]
    return columns, scaled(encode(columns["text"])) if "text" in columns else pair_features(encode, columns)


def _rows(files: tuple[DataFile, ...], columns: Columns, *splits: str) -> list[np.ndarray]:
    """Return the row numbers of each split."""
    found = np.array(columns["split"])
    rows = [np.flatnonzero(found == split) for split in splits]
    if missing := [split for split, its in zip(splits, rows, strict=True) if not len(its)]:
        present = ", ".join(sorted(set(columns["split"])))
        raise InputError(f"{files[0].path}: no row has split '{missing[0]}'; it has {present}")
    return rows


def _check_folds(labels: np.ndarray) -> None:
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2 or counts.min() < OUTER_FOLDS:
        found = dict(zip(classes.tolist(), counts.tolist(), strict=True))
        needed = f"each class needs {OUTER_FOLDS} rows, and there must be at least two classes"
        raise InputError(f"labels {found}: {needed}")

"""Amazon reviews: a sentiment classifier trained on English reviews, tested on English, German, French and Japanese ones.

Upper half of CMLM Table 4: the encoder is frozen. The lower half, which trains the encoder together with the
classifier, is in amazon_tuned.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from mirror.common.errors import InputError
from mirror.evaluation.task import Columns, DataFile, Task
from mirror.evaluation.transfer import SEED, cross_validated_probe, dev_selected_probe, root_mean_square
from mirror.modeling.encoder import Encode


TARGETS = ("de", "fr", "jp")
LANGUAGES = ("en", *TARGETS)
DOMAINS = ("books", "dvd", "music")
ROWS = (2000,)
POSITIVE_ABOVE = 3  # stars
DEV_SHARE = 0.1  # of the English training reviews (CMLM section 4.5.2)
FOLDS = 5


def _file(language: str, domain: str, split: str) -> DataFile:
    return DataFile(f"amazon_cls10/{language}_{domain}_{split}.tsv", ("rating", "summary", "text"), ROWS)


TRAIN = {domain: _file("en", domain, "train") for domain in DOMAINS}
TEST = {(language, domain): _file(language, domain, "test") for language in LANGUAGES for domain in DOMAINS}


def tasks(data_dir: Path) -> list[Task]:
    """Return the two tasks of this family: the paper's protocol, and one classifier for each domain."""
    files = (*TRAIN.values(), *TEST.values())
    return [
        Task(
            name="amazon_zero_shot",
            metric="accuracy",
            protocol="frozen vectors, [u, v, |u-v|, u*v] of summary and text; one logistic regression on 5,400 of the 6,000 "
            "English reviews of three domains, C by accuracy on the other 600; 6,000 test reviews in each language; mean of "
            "de, fr, jp",
            files=files,
            score=score,
            published="CMLM Table 4, frozen",
        ),
        Task(
            name="amazon_by_domain",
            metric="accuracy",
            protocol="frozen vectors, [u, v, |u-v|, u*v] of summary and text; one logistic regression per domain on "
            "2,000 English reviews, C by 5-fold cross-validation on them; mean of three domains, then of de, fr, jp",
            files=files,
            score=score_by_domain,
        ),
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """Compute the accuracy for each language, by the paper's protocol.

    English, the training language, is not in the main score.
    """
    vectors, labels = _encoded(TRAIN.values(), encode, data_dir)
    scale = root_mean_square(vectors)  # of English, used for all languages: nothing is fitted to a test language
    features = review_features(*vectors / scale)
    train, dev = train_dev_rows(labels)
    probe, c = dev_selected_probe((features[train], labels[train]), (features[dev], labels[dev]))
    accuracy = {}
    for language in LANGUAGES:
        vectors, labels = _encoded(tests_of(language), encode, data_dir)
        accuracy[language] = float(probe.score(review_features(*vectors / scale), labels))
    return summary(accuracy) | {"chosen_c": c}


def score_by_domain(encode: Encode, data_dir: Path) -> dict:
    """Compute the accuracy for each language and domain, with a classifier for each domain."""
    by_domain: dict[str, dict[str, float]] = {language: {} for language in LANGUAGES}
    for domain in DOMAINS:
        vectors, labels = _encoded([TRAIN[domain]], encode, data_dir)
        scale = root_mean_square(vectors)
        probe = cross_validated_probe(review_features(*vectors / scale), labels, FOLDS)
        for language in LANGUAGES:
            vectors, labels = _encoded([TEST[language, domain]], encode, data_dir)
            by_domain[language][domain] = float(probe.score(review_features(*vectors / scale), labels))
    accuracy = {language: float(np.mean(list(domains.values()))) for language, domains in by_domain.items()}
    return summary(accuracy) | {"accuracy_by_domain": by_domain}


def summary(accuracy: dict[str, float]) -> dict:
    """Return the fields of a result that every protocol has; `accuracy` maps each language to its accuracy."""
    return {
        "main_score": float(np.mean([accuracy[language] for language in TARGETS])),
        "num_examples": len(TARGETS) * len(DOMAINS) * ROWS[0],
        "accuracy": accuracy,
    } | {f"accuracy_{language}": accuracy[language] for language in LANGUAGES}


def tests_of(language: str) -> list[DataFile]:
    return [TEST[language, domain] for domain in DOMAINS]


def train_dev_rows(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into 90% for training and 10% for development, with equal shares of both labels; the same every time."""
    train, dev = train_test_split(np.arange(len(labels)), test_size=DEV_SHARE, stratify=labels, random_state=SEED)
    return train, dev


def review_features(summary: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Concatenate u, v, |u - v| and u * v for the vectors u (N, D) of summaries and v (N, D) of texts, as (N, 4D)."""
    return np.hstack([summary, text, np.abs(summary - text), summary * text])


def read_reviews(files: Iterable[DataFile], data_dir: Path) -> tuple[Columns, np.ndarray]:
    """Read N reviews of several files, one after the other: the columns `summary` and `text`, and (N,) labels."""
    files = list(files)
    parts = [file.read(data_dir) for file in files]
    columns = {name: [value for part in parts for value in part[name]] for name in ("summary", "text")}
    return columns, np.concatenate([is_positive(file, data_dir) for file in files])


def _encoded(files: Iterable[DataFile], encode: Encode, data_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Encode the reviews of files of one language in one call of `encode`: vectors (2, N, D) and (N,) labels."""
    columns, labels = read_reviews(files, data_dir)
    return np.stack(np.split(encode(columns["summary"] + columns["text"]), 2)), labels


def is_positive(file: DataFile, data_dir: Path) -> np.ndarray:
    """Return the labels of N reviews as (N,) bool: True for more than three stars.

    Raises:
        InputError: a rating is not 1 to 5; the message names the line.
    """
    ratings = file.read(data_dir)["rating"]
    for number, rating in enumerate(ratings, start=2):
        if rating not in ("1", "2", "3", "4", "5"):
            raise InputError(f"{file.path}, line {number}: rating {rating!r}, expected 1 to 5 stars")
    return np.array([int(rating) > POSITIVE_ABOVE for rating in ratings])

"""`amazon_zero_shot`: a sentiment classifier trained on English reviews, tested on German, French and Japanese ones.

Upper half of CMLM Table 4: the encoder is frozen. The lower half, which trains the encoder together with the
classifier, is in amazon_tuned.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mirror.common.errors import InputError
from mirror.evaluation.task import DataFile, Task
from mirror.evaluation.transfer import cross_validated_probe, root_mean_square
from mirror.modeling.encoder import Encode


TARGETS = ("de", "fr", "jp")
LANGUAGES = ("en", *TARGETS)
DOMAINS = ("books", "dvd", "music")
ROWS = (2000,)
POSITIVE_ABOVE = 3  # stars
FOLDS = 5


def _file(language: str, domain: str, split: str) -> DataFile:
    return DataFile(f"amazon_cls10/{language}_{domain}_{split}.tsv", ("rating", "summary", "text"), ROWS)


TRAIN = {domain: _file("en", domain, "train") for domain in DOMAINS}
TEST = {(language, domain): _file(language, domain, "test") for language in LANGUAGES for domain in DOMAINS}


def tasks(data_dir: Path) -> list[Task]:
    """Return the only task of this family."""
    return [
        Task(
            name="amazon_zero_shot",
            metric="accuracy",
            protocol="frozen vectors, [u, v, |u-v|, u*v] of summary and text; one logistic regression per domain on "
            "2,000 English reviews, C by 5-fold cross-validation on them; mean of three domains, then of de, fr, jp",
            files=(*TRAIN.values(), *TEST.values()),
            score=score,
            published="CMLM Table 4, frozen",
        )
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """Compute the accuracy for each language and domain. English, the training language, is not in the main score."""
    by_domain: dict[str, dict[str, float]] = {language: {} for language in LANGUAGES}
    for domain in DOMAINS:
        train = _vectors(TRAIN[domain], encode, data_dir)  # (2, N, D)
        scale = root_mean_square(train)  # of English, used for all languages: nothing is fitted to a test language
        probe = cross_validated_probe(review_features(*train / scale), is_positive(TRAIN[domain], data_dir), FOLDS)
        for language in LANGUAGES:
            file = TEST[language, domain]
            features = review_features(*_vectors(file, encode, data_dir) / scale)
            by_domain[language][domain] = float(probe.score(features, is_positive(file, data_dir)))
    accuracy = {language: float(np.mean(list(domains.values()))) for language, domains in by_domain.items()}
    return {
        "main_score": float(np.mean([accuracy[language] for language in TARGETS])),
        "num_examples": len(TARGETS) * len(DOMAINS) * ROWS[0],
        "accuracy": accuracy,
        "accuracy_by_domain": by_domain,
    }


def review_features(summary: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Concatenate u, v, |u - v| and u * v for the vectors u (N, D) of summaries and v (N, D) of texts, as (N, 4D)."""
    return np.hstack([summary, text, np.abs(summary - text), summary * text])


def _vectors(file: DataFile, encode: Encode, data_dir: Path) -> np.ndarray:
    """Encode the summaries and texts of one file as (2, N, D). A file has one language, so `encode` is called once."""
    columns = file.read(data_dir)
    return np.stack(np.split(encode(columns["summary"] + columns["text"]), 2))


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

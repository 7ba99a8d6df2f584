from __future__ import annotations

import numpy as np
import pytest

from mirror.evaluation import language_bias
from tests.evaluation.folder import write_tsv


def test_matrix_counts_languages_of_entries():
    """Two languages with four rows: entries 0-3 are in the first language, 4-7 in the second."""
    nearest = np.array([[4, 5, 6, 1], [5, 5, 7, 6]])
    np.testing.assert_array_equal(language_bias.language_matrix(nearest), [[0.25, 0.75], [0, 1]])


@pytest.mark.parametrize(
    ("row", "neutrality"),
    [
        ([0, 1 / 3, 1 / 3, 1 / 3], 1),
        ([1, 0, 0, 0], 0),
        ([0, 1, 0, 0], 1 / 3),
        ([0.25, 0.25, 0.25, 0.25], 0.75),
        ([0.5, 1 / 6, 1 / 6, 1 / 6], 0.5),
    ],
)
def test_neutrality_is_one_minus_the_distance_from_uniform_over_the_others(row, neutrality):
    matrix = np.stack([np.roll(row, shift) for shift in range(4)])
    assert language_bias.language_neutrality(matrix) == pytest.approx(neutrality)


def test_rows_with_a_duplicate_text_are_dropped():
    assert language_bias.distinct_rows([["a", "b", "a", "c"], ["x", "y", "z", "y"]]) == [0, 1]
    assert language_bias.distinct_rows([["a", "b", "c"], ["x", "y", "z"]]) == [0, 1, 2]


def test_the_nearest_is_never_the_query_itself():
    angles = np.radians([[0.0, 50.0], [2.0, 120.0]])  # (2 languages, 2 rows)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=2).astype(np.float32)
    np.testing.assert_array_equal(language_bias.nearest_others(vectors), [[2, 2], [0, 1]])


def folder(tmp_path):
    for language in language_bias.LANGUAGES:
        rows = [(f"{language} {n}", "", 0) for n in range(2000)]
        write_tsv(tmp_path / f"pawsx/test_{language}.tsv", ("sentence1", "sentence2", "label"), rows)
    return tmp_path


def encoder(language_weight: float):
    """Return a fake encoder: a random vector per row, and a one-hot vector of the language with the given norm."""
    meanings = np.random.default_rng(0).normal(size=(2000, 24)) / np.sqrt(24)

    def encode(texts):
        split = [text.split() for text in texts]
        noise = np.random.default_rng([len(texts), *split[0][0].encode()]).normal(size=(len(texts), 24)) * 0.02
        one_hot = language_weight * np.eye(7)[[language_bias.LANGUAGES.index(name) for name, _ in split]]
        return np.hstack([meanings[[int(row) for _, row in split]] + noise, one_hot]).astype(np.float32)

    return encode


def test_a_language_direction_reduces_neutrality(tmp_path):
    [task] = language_bias.tasks(folder(tmp_path))
    task.check(tmp_path)
    neutral, biased = (task.score(encoder(weight), tmp_path) for weight in (0.0, 3.0))
    assert neutral["accuracy"] == 1
    assert neutral["own_language"] == 0
    assert neutral["main_score"] > 0.9
    assert biased["own_language"] == pytest.approx(1)
    assert biased["main_score"] == pytest.approx(0)
    assert np.shape(neutral["matrix"]) == (7, 7)
    assert neutral["num_examples"] == 14000

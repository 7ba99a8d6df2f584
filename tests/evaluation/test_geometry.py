from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import geometry
from tests.evaluation.folder import task_named, write_tsv


def test_sets_by_hand_of_which_an_isotropic_one_scores_one():
    fields = geometry.describe(np.vstack([np.eye(6), -np.eye(6)]))
    assert fields["main_score"] == fields["isotropy_score"] == pytest.approx(1)
    assert (fields["mean_vector_norm"], fields["effective_rank"]) == (0, pytest.approx(6))
    # N vectors (3, 0): Z is N e^3 along the first axis and N along the second, so IS is e^-3.
    fields = geometry.describe(np.tile([3.0, 0.0], (5, 1)))
    assert fields["isotropy_score"] == pytest.approx(np.exp(-3))
    assert fields["mean_vector_norm"] == fields["mean_norm"] == 3
    assert fields["effective_rank"] == pytest.approx(1)
    with np.errstate(all="raise"):  # large norms neither overflow nor underflow
        assert geometry.isotropy_score(np.tile([400.0, 0], (4, 1)), np.eye(2)) == pytest.approx(np.exp(-400), rel=1e-9)
    expected = np.exp(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))  # singular values 3 and 1: p = 3/4, 1/4
    assert geometry.describe(np.array([[3.0, 0], [0, 1]]))["effective_rank"] == pytest.approx(expected)


def test_rows_and_neighbors_by_hand():
    assert geometry.distinct_rows([["a", "b", "a", "c"], ["x", "y", "z", "y"]]) == [0, 1]
    assert geometry.distinct_rows([["a", "b", "c"], ["x", "y", "z"]]) == [0, 1, 2]
    angles = np.radians([[0.0, 50.0], [2.0, 120.0]])  # (2 languages, 2 rows)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=2).astype(np.float32)
    np.testing.assert_array_equal(geometry.nearest_others(vectors)[..., 0], [[2, 2], [0, 1]])  # never the query itself
    np.testing.assert_array_equal(geometry.nearest_others(vectors, 2), [[[2, 1], [2, 0]], [[0, 1], [1, 2]]])
    copies = geometry.nearest_others(np.ones((2, 3, 4), np.float32), 2)  # six equal vectors
    assert not (copies == np.arange(6).reshape(2, 3, 1)).any()


def test_the_score_does_not_depend_on_the_sign_of_eigenvectors(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(50, 4)) + 1
    before, rows = geometry.isotropy_score(vectors, geometry.eigenvectors(vectors)), geometry.describe(vectors)
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda matrix: (eigh(matrix)[0], -eigh(matrix)[1]))
    assert geometry.isotropy_score(vectors, geometry.eigenvectors(vectors)) == before
    flipped = geometry.isotropy_score(vectors, -geometry.eigenvectors(vectors))
    assert flipped != pytest.approx(before, rel=1e-3)  # without the sign convention it would
    assert geometry.describe(vectors)["isotropy_score_rows"] == rows["isotropy_score_rows"]


def test_the_score_of_the_rows_is_a_mean_over_the_signs_of_eigenvectors():
    """All 2^4 signs in four dimensions. Twenty draws come close to their mean, which one draw need not."""
    vectors = np.random.default_rng(0).normal(size=(200, 4)) * [1, 2, 3, 4] + [0, 0, 1, 1]
    columns = np.linalg.eigh(vectors.T @ vectors)[1]
    scores = []
    for signs in itertools.product((-1, 1), repeat=4):
        sums = np.exp(vectors @ (columns * signs).T).sum(axis=0)  # the rows of the matrix of signed eigenvectors
        scores.append(sums.min() / sums.max())
    rows = geometry.describe(vectors)["isotropy_score_rows"]
    assert rows == pytest.approx(np.mean(scores), abs=3 * np.std(scores) / geometry.SIGNS**0.5)


def test_published_values_match_the_rows_of_the_eigenvector_matrix():
    """Mirror-BERT Table 14, BERT on words: mean-vector norm 13.79 and IS .043, in 768 dimensions."""
    generator = np.random.default_rng(0)
    mean = generator.normal(size=768)
    fields = geometry.describe(mean / np.linalg.norm(mean) * 13.79 + 0.2 * generator.normal(size=(1000, 768)))
    assert fields["isotropy_score"] < 1e-5
    assert fields["isotropy_score_rows"] == pytest.approx(0.043, abs=0.02)


def encode(texts):
    return np.stack([np.random.default_rng(list(text.encode())).normal(size=8) for text in texts]).astype(np.float32)


def test_sts_b_test_is_the_default_and_provides_the_positive_pairs(tmp_path):
    rows = [("s", f"left {n}", f"right {n}", 5.0 if n < 30 else 4.0) for n in range(1379)]
    write_tsv(tmp_path / "sts/stsb_test.tsv", ("subset", "sentence1", "sentence2", "score"), rows)
    task = task_named("isotropy", tmp_path)
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert (fields["num_examples"], fields["alignment_pairs"]) == (2 * 1379, 30)
    assert 0 < fields["main_score"] < 1 < fields["alignment"] < 3  # random vectors: about 2
    assert fields["effective_rank"] == pytest.approx(8, abs=0.1)


def test_any_text_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n\none\nthree\n", encoding="utf-8")
    task = task_named("isotropy", tmp_path / "no data folder", isotropy_texts=str(path))
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert fields["num_examples"] == 3 and "alignment" not in fields
    assert "lines.txt" in task.protocol and len(task.data_sha256(tmp_path)) == 64
    for content, message in (("one\none\n", "1 distinct line"), ("\n", "has 0 rows")):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            task.score(encode, tmp_path)


def test_neutrality_is_one_minus_the_distance_from_uniform_over_the_others():
    for row, neutrality in (([0, 1, 1, 1], 1), ([1, 0, 0, 0], 0), ([0, 1, 0, 0], 1 / 3), ([3, 1, 1, 1], 0.5)):
        matrix = np.stack([np.roll(row, shift) for shift in range(4)]) / sum(row)
        assert geometry.language_neutrality(matrix) == pytest.approx(neutrality)


def test_a_language_direction_reduces_neutrality(tmp_path, monkeypatch):
    """A random vector per row, and a one-hot vector of the language with a norm of 0 or 3."""
    monkeypatch.setattr(geometry, "PAWS", tuple(replace(file, rows=(500,)) for file in geometry.PAWS))
    for language in geometry.LANGUAGES:
        rows = [(f"{language} {n}", "", 0) for n in range(500)]
        write_tsv(tmp_path / f"pawsx/test_{language}.tsv", ("sentence1", "sentence2", "label"), rows)
    meanings = np.random.default_rng(0).normal(size=(500, 24)) / np.sqrt(24)

    def encoder(language_weight: float):
        def encode(texts):
            split = [text.split() for text in texts]
            noise = np.random.default_rng([len(texts), *split[0][0].encode()]).normal(size=(len(texts), 24)) * 0.02
            one_hot = language_weight * np.eye(7)[[geometry.LANGUAGES.index(name) for name, _ in split]]
            return np.hstack([meanings[[int(row) for _, row in split]] + noise, one_hot]).astype(np.float32)

        return encode

    task = task_named("language_bias", tmp_path)
    task.check(tmp_path)
    neutral, biased = (task.score(encoder(weight), tmp_path) for weight in (0.0, 3.0))
    assert (neutral["accuracy"], neutral["own_language"], neutral["num_examples"]) == (1, 0, 3500)
    assert neutral["main_score"] > 0.9
    # The six nearest are the six translations.
    assert (neutral["neutrality_ranked"], neutral["own_language_ranked"]) == (pytest.approx(1), 0)
    assert (biased["neutrality_ranked"], biased["own_language_ranked"]) == (pytest.approx(0), pytest.approx(1))
    assert (biased["own_language"], biased["main_score"]) == (pytest.approx(1), pytest.approx(0))
    np.testing.assert_allclose(np.array(neutral["matrix"]).sum(axis=1), [1] * 7, atol=1e-4)


def test_the_points_of_figure_3_are_the_first_two_principal_components(tmp_path):
    for code in geometry.PROJECTED:
        rows = [(f"s {n % 90}", f"e {n}") for n in range(1000)]
        write_tsv(tmp_path / f"tatoeba/{code}-eng.tsv", ("source", "english"), rows)
    task = task_named("tatoeba_projection", tmp_path)
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert task.groups == ()
    assert set(fields["points"]) == set(fields["mixed"]) == {"fra", "deu", "rus", "spa"}
    points = np.array(fields["points"]["rus"])
    np.testing.assert_allclose(points.reshape(600, 2).mean(axis=0), 0, atol=1e-3)
    assert points.shape == (2, 300, 2) and points[..., 0].std() >= points[..., 1].std()

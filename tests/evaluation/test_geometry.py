from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import geometry
from tests.evaluation.folder import write_tsv


def test_an_isotropic_set_scores_one():
    vectors = np.vstack([np.eye(6), -np.eye(6)])
    assert geometry.isotropy_score(vectors, geometry.eigenvectors(vectors)) == pytest.approx(1)
    assert geometry.mean_vector_norm(vectors) == 0
    assert geometry.effective_rank(vectors) == pytest.approx(6)


def test_a_set_of_rank_one_by_hand():
    """N vectors (3, 0): Z is N e^3 along the first axis and N along the second, so IS is e^-3."""
    vectors = np.tile([3.0, 0.0], (5, 1))
    assert geometry.isotropy_score(vectors, geometry.eigenvectors(vectors)) == pytest.approx(np.exp(-3))
    assert geometry.mean_vector_norm(vectors) == 3
    assert geometry.effective_rank(vectors) == pytest.approx(1)


def test_vectors_with_a_large_norm_neither_overflow_nor_underflow():
    vectors = np.tile([400.0, 0.0, 0.0], (4, 1))
    with np.errstate(all="raise"):
        score = geometry.isotropy_score(vectors, np.eye(3))
    assert score == pytest.approx(np.exp(-400), rel=1e-9)
    assert score > 0


def test_the_score_does_not_depend_on_the_sign_of_eigenvectors(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(50, 4)) + 1
    before = geometry.isotropy_score(vectors, geometry.eigenvectors(vectors))
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda matrix: (eigh(matrix)[0], -eigh(matrix)[1]))
    assert geometry.isotropy_score(vectors, geometry.eigenvectors(vectors)) == before
    flipped = geometry.isotropy_score(vectors, -geometry.eigenvectors(vectors))
    assert flipped != pytest.approx(before, rel=1e-3)  # without the sign convention it would


def test_published_values_match_the_rows_of_the_eigenvector_matrix():
    """Mirror-BERT Table 14, BERT on words: mean-vector norm 13.79 and IS .043, in 768 dimensions."""
    generator = np.random.default_rng(0)
    mean = generator.normal(size=768)
    vectors = mean / np.linalg.norm(mean) * 13.79 + 0.2 * generator.normal(size=(1000, 768))
    directions = geometry.eigenvectors(vectors)
    assert geometry.isotropy_score(vectors, directions) < 1e-5
    assert geometry.isotropy_score(vectors, directions.T) == pytest.approx(0.043, abs=0.02)


def test_effective_rank_of_unequal_directions():
    """Singular values 3 and 1: p = 3/4, 1/4."""
    expected = np.exp(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    assert geometry.effective_rank(np.array([[3.0, 0], [0, 1]])) == pytest.approx(expected)


def encode(texts):
    return np.stack([np.random.default_rng(list(text.encode())).normal(size=8) for text in texts]).astype(np.float32)


def test_sts_b_test_is_the_default_and_provides_the_positive_pairs(tmp_path):
    rows = [("s", f"left {n}", f"right {n}", 5.0 if n < 30 else 4.0) for n in range(1379)]
    write_tsv(tmp_path / "sts/stsb_test.tsv", ("subset", "sentence1", "sentence2", "score"), rows)
    [task] = geometry.tasks(tmp_path)
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert fields["num_examples"] == 2 * 1379
    assert fields["alignment_pairs"] == 30
    assert fields["main_score"] == fields["isotropy_score"]
    assert 0 < fields["main_score"] < 1
    assert 1 < fields["alignment"] < 3  # random vectors: about 2
    assert fields["effective_rank"] == pytest.approx(8, abs=0.1)


def test_any_text_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n\none\nthree\n", encoding="utf-8")
    [task] = geometry.tasks(tmp_path / "no data folder", texts_file=path)
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert fields["num_examples"] == 3
    assert "alignment" not in fields
    assert "lines.txt" in task.protocol
    assert len(task.data_sha256(tmp_path)) == 64


@pytest.mark.parametrize(("content", "message"), [("one\none\n", "1 distinct line"), ("\n", "has 0 rows")])
def test_too_few_lines(tmp_path, content, message):
    path = tmp_path / "lines.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        geometry.tasks(tmp_path, texts_file=path)[0].score(encode, tmp_path)

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from accelerate import PartialState
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

from mirror.common.distributed import exit_process
from mirror.common.errors import InputError
from mirror.evaluation import encoding
from mirror.evaluation.encoding import (
    EncodeSettings,
    describe,
    fit_components,
    fit_whitening,
    make_encode,
    remove_components,
    removing_components,
    whiten,
)
from mirror.modeling.encoder import Encoder
from tests.processes import run_two_processes


@pytest.fixture(scope="module")
def encoder(bert_folder) -> Encoder:
    return Encoder.from_pretrained(bert_folder, "mean")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"truncate_dim": 33}, "--truncate_dim 33: the vectors have 32 dimensions"),
        ({"remove_components": 1, "fit_on": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_settings_that_do_not_fit_are_an_error(encoder, settings, message):
    with pytest.raises(InputError, match=message):
        make_encode(encoder, EncodeSettings(**settings))


def test_components_of_a_file_are_removed_from_every_text(encoder, sentences, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences[:40]), encoding="utf-8")
    before = encoder.encode(sentences[:40])
    after = make_encode(encoder, EncodeSettings(remove_components=1, fit_on=str(texts)))(sentences[:40])
    first = np.linalg.svd(before, full_matrices=False)[2][0]
    assert np.abs(before @ first).min() > 0.01
    np.testing.assert_allclose(after @ first, 0, atol=1e-4)
    np.testing.assert_allclose(after, before - np.outer(before @ first, first), atol=1e-4)


def test_texts_of_components_are_known_by_their_content(encoder, tmp_path):
    texts, found = tmp_path / "texts.txt", []
    for content in ("a cat\na dog", "a tree\na house"):
        texts.write_text(content)
        found.append(describe("tiny", encoder, "float32", EncodeSettings(remove_components=1, fit_on=str(texts))))
    assert found[0]["fit_on"] == found[1]["fit_on"] and found[0] != found[1]


def test_the_shares_of_two_processes_are_put_back_in_order(monkeypatch):
    texts = [letter * length for length, letter in ((3, "a"), (1, "b"), (7, "c"), (2, "d"), (5, "e"))]
    gathered = []

    def gather(own: list) -> list:
        gathered.append(*own)
        return gathered if len(gathered) == 2 else own * 2

    def encode(texts) -> np.ndarray:
        return np.array([[len(text), ord(text[0])] for text in texts], dtype=np.float32)

    monkeypatch.setattr(encoding, "gather_object", gather)
    for rank in range(2):
        state = SimpleNamespace(num_processes=2, process_index=rank)
        monkeypatch.setattr(encoding, "PartialState", lambda state=state: state)
        share = encoding.shared_among_processes(encode)
        found = share(texts)  # of the first process without the other's share
    assert [len(part) for part in gathered] == [3, 2]
    assert found.tolist() == encode(texts).tolist()


@pytest.mark.slow
def test_two_processes_share_the_encoding_and_both_get_all_vectors(bert_folder, encoder, sentences, tmp_path):
    texts = sentences[:58] + sentences[:10]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    run_two_processes("-m", "tests.evaluation.test_encoding", bert_folder, str(tmp_path))
    expected = encoder.encode(texts)
    ranks = [np.load(tmp_path / f"rank{rank}.npz") for rank in range(2)]
    assert sorted(int(rank["encoded"]) for rank in ranks) == [29, 30]  # 58 distinct texts, then a single one
    for rank in ranks:
        np.testing.assert_allclose(rank["vectors"], expected, atol=1e-5)
        np.testing.assert_allclose(rank["single"], expected[:1], atol=1e-5)


def test_components_equal_those_of_an_svd_and_are_removed():
    vectors = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    components = fit_components(vectors, 3)
    _, _, right = np.linalg.svd(vectors, full_matrices=False)
    np.testing.assert_allclose(np.abs((components * right[:3]).sum(axis=1)), 1, atol=1e-4)
    assert np.abs(vectors @ components.T).max() > 1
    assert np.abs(remove_components(vectors, components) @ components.T).max() < 1e-5


def test_components_are_fitted_separately_for_each_call():
    """Language 0 is at +10 on the x axis, language 1 at +10 on the y axis; the meaning is on the z axis."""

    def encode(texts):
        return np.array([[10 * (t[0] == "0"), 10 * (t[0] == "1"), float(t[1:])] for t in texts], dtype=np.float32)

    own = removing_components(encode, 1)
    first, second = own(["0-1", "01"]), own(["1-1", "11"])
    np.testing.assert_allclose(first, second, atol=1e-5)
    np.testing.assert_allclose(np.abs(first), [[0, 0, 1], [0, 0, 1]], atol=1e-5)
    fixed = removing_components(encode, 1, np.array([[1, 0, 0]], dtype=np.float32))
    np.testing.assert_allclose(fixed(["01", "11"]), [[0, 0, 1], [0, 10, 1]], atol=1e-5)


def anisotropic(rows: int = 500) -> np.ndarray:
    """Vectors of 6 dimensions with a mean and very different variances along turned axes."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    return (rng.normal(size=(rows, 6)) * [9, 5, 2, 1, 0.5, 0.3]) @ turn + [3, 0, 0, 1, 0, 0]


def test_whitened_vectors_are_centered_and_have_one_variance_in_all_directions():
    """Up to a turn that is scikit-learn's; without one, as the nearest map is symmetric."""
    vectors = anisotropic()
    mean, matrix = fit_whitening(vectors)
    white = whiten(vectors, mean, matrix)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-9)
    covariance = np.cov(white.T, bias=True)
    np.testing.assert_allclose(covariance, np.eye(6) * covariance[0, 0], atol=1e-9)
    np.testing.assert_allclose(np.trace(covariance), np.trace(np.cov(vectors.T, bias=True)))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    library = PCA(whiten=True).fit_transform(vectors)
    np.testing.assert_allclose(cosine_similarity(white), cosine_similarity(library), atol=1e-9)


def test_soft_whitening_scales_the_first_components_only():
    vectors = anisotropic()
    soft = whiten(vectors, *fit_whitening(vectors, 3))
    before, after = (np.linalg.eigvalsh(np.cov(each.T))[::-1] for each in (vectors, soft))
    constant = after[-1] / before[-1]
    np.testing.assert_allclose(after / constant, [before[2]] * 3 + before[3:].tolist())
    one = whiten(vectors, *fit_whitening(vectors, 1))
    np.testing.assert_allclose(one, vectors - vectors.mean(axis=0), atol=1e-9)  # one component has its own variance


def test_an_invalid_number_of_components_is_an_error():
    with pytest.raises(
        InputError, match="cannot fit 4 principal components to 3 vectors of 5 dimensions; give 1 to 3"
    ):
        fit_components(np.ones((3, 5), dtype=np.float32), 4)
    with pytest.raises(InputError, match="cannot whiten 6 components: the 5 vectors vary in 4 directions; give more"):
        fit_whitening(anisotropic(5))
    with pytest.raises(InputError, match="cannot whiten 9 components: the 500 vectors vary in 6 directions"):
        fit_whitening(anisotropic(), 9)


def main(model_folder: str, folder: str) -> None:
    """Encode as one of two processes and store the result."""
    state = PartialState(cpu=True)
    encoder = Encoder.from_pretrained(model_folder, "mean")
    encoded: list[str] = []
    original = encoder.encode
    encoder.encode = lambda texts, **options: encoded.extend(texts) or original(texts, **options)
    encode = make_encode(encoder, EncodeSettings())
    texts = (Path(folder) / "texts.txt").read_text().splitlines()
    vectors, single = encode(texts), encode(texts[:1])
    np.savez(Path(folder) / f"rank{state.process_index}.npz", vectors=vectors, single=single, encoded=len(encoded))
    state.wait_for_everyone()
    exit_process(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

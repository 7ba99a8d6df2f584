from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

from mirror.common.errors import InputError
from mirror.evaluation.components import fit_components, fit_whitening, remove_components, removing_components, whiten


def test_the_first_component_of_a_flat_cloud():
    vectors = np.array([[3, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]], dtype=np.float32)
    components = fit_components(vectors, 2)
    np.testing.assert_allclose(np.abs(components), [[1, 0, 0], [0, 1, 0]], atol=1e-6)
    np.testing.assert_allclose(
        remove_components(vectors, components[:1]), [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, -1, 0]], atol=1e-6
    )


def test_vectors_are_not_centred():
    vectors = np.array([[5, 1], [5, -1], [5, 0.5], [5, -0.5]], dtype=np.float32)
    np.testing.assert_allclose(np.abs(fit_components(vectors, 1)), [[1, 0]], atol=1e-6)


def test_components_equal_those_of_an_svd_and_are_removed():
    vectors = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    components = fit_components(vectors, 3)
    _, _, right = np.linalg.svd(vectors, full_matrices=False)
    np.testing.assert_allclose(np.abs((components * right[:3]).sum(axis=1)), 1, atol=1e-4)
    left_over = remove_components(vectors, components)
    assert np.abs(vectors @ components.T).max() > 1
    assert np.abs(left_over @ components.T).max() < 1e-5
    assert left_over.dtype == np.float32


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


@pytest.mark.parametrize("count", [0, 4])
def test_an_invalid_number_of_components_is_an_error(count):
    with pytest.raises(InputError, match=f"cannot fit {count} principal components to 3 vectors of 5 dimensions"):
        fit_components(np.ones((3, 5), dtype=np.float32), count)


def anisotropic(rows: int = 500) -> np.ndarray:
    """Vectors of 6 dimensions with a mean and very different variances along turned axes."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    return (rng.normal(size=(rows, 6)) * [9, 5, 2, 1, 0.5, 0.3]) @ turn + [3, 0, 0, 1, 0, 0]


def test_whitened_vectors_are_centred_and_have_one_variance_in_all_directions():
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


def test_whitening_needs_directions_to_whiten():
    with pytest.raises(InputError, match="cannot whiten 6 components: the 5 vectors vary in 4 directions; give more"):
        fit_whitening(anisotropic(5))
    with pytest.raises(InputError, match="cannot whiten 9 components: the 500 vectors vary in 6 directions"):
        fit_whitening(anisotropic(), 9)

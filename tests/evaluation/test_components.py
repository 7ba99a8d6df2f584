from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation.components import fit_components, remove_components, removing_components


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

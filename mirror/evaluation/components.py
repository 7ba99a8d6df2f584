"""Principal component removal: take out of the vectors the directions that say which language a text is in.

Arrays in, arrays out; `removing_components` wraps an `encode` function. Follows CMLM (Table 6) and Yang et al. (2021):
the components are those of the vectors as they are, not centred, so that the first is close to the mean vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirror.errors import InputError
from mirror.evaluation.task import Encode


def fit_components(vectors: np.ndarray, num_components: int) -> np.ndarray:
    """The first right singular vectors of (N, D), as (num_components, D) float32 with orthonormal rows.

    Raises:
        InputError: there are fewer vectors or dimensions than components.
    """
    if not 1 <= num_components <= min(vectors.shape):
        raise InputError(
            f"cannot fit {num_components} principal components to {len(vectors)} vectors of "
            f"{vectors.shape[1]} dimensions"
        )
    vectors = vectors.astype(np.float64)
    _, columns = np.linalg.eigh(vectors.T @ vectors)  # ascending; cheaper than an SVD when N is large
    return columns[:, : -num_components - 1 : -1].T.astype(np.float32)


def remove_components(vectors: np.ndarray, components: np.ndarray) -> np.ndarray:
    """(N, D) without its projections on the orthonormal rows of `components` (n, D)."""
    return vectors - (vectors @ components.T) @ components


def removing_components(encode: Encode, num_components: int, components: np.ndarray | None = None) -> Encode:
    """`encode`, followed by the removal of `components`, or of those of each call's own vectors.

    Without `components` every call is one language: Tatoeba, PAWS-X and the Amazon reviews encode each language in a
    call of its own. A call with fewer vectors than components raises `InputError`.
    """

    def encode_and_remove(texts: Sequence[str]) -> np.ndarray:
        vectors = encode(texts)
        own = fit_components(vectors, num_components) if components is None else components
        return remove_components(vectors, own)

    return encode_and_remove

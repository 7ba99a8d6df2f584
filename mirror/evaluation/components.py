"""Principal component removal: remove the directions of the embeddings that encode the language of a text.

Functions of arrays; `removing_components` wraps an `encode` function. Follows CMLM (Table 6) and Yang et al. (2021):
the vectors are not centred before the decomposition, so the first component is close to the mean vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encode


def fit_components(vectors: np.ndarray, num_components: int) -> np.ndarray:
    """Compute the first right singular vectors of (N, D) vectors.

    Returns:
        (num_components, D) float32 with orthonormal rows.

    Raises:
        InputError: `num_components` exceeds the number of vectors or dimensions.
    """
    if not 1 <= num_components <= min(vectors.shape):
        raise InputError(
            f"cannot fit {num_components} principal components to {len(vectors)} vectors of "
            f"{vectors.shape[1]} dimensions; give 1 to {min(vectors.shape)}"
        )
    vectors = vectors.astype(np.float64)
    _, columns = np.linalg.eigh(vectors.T @ vectors)  # ascending; cheaper than an SVD when N is large
    return columns[:, : -num_components - 1 : -1].T.astype(np.float32)


def remove_components(vectors: np.ndarray, components: np.ndarray) -> np.ndarray:
    """Subtract from (N, D) vectors their projections onto the orthonormal rows of `components` (n, D)."""
    return vectors - (vectors @ components.T) @ components


def removing_components(encode: Encode, num_components: int, components: np.ndarray | None = None) -> Encode:
    """Wrap `encode` so that principal components are removed from its vectors.

    Args:
        components: (num_components, D); None: the components of the vectors of each call. Each call then counts as one
            language: Tatoeba, PAWS-X and the Amazon reviews encode each language in a separate call. A call with fewer
            vectors than components raises `InputError`.
    """

    def encode_and_remove(texts: Sequence[str]) -> np.ndarray:
        vectors = encode(texts)
        own = fit_components(vectors, num_components) if components is None else components
        return remove_components(vectors, own)

    return encode_and_remove

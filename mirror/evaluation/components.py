"""Linear maps fitted on embeddings: removal of principal components, and whitening.

Functions of arrays; `removing_components` wraps an `encode` function. Removal follows CMLM (Table 6) and Yang et al. (2021):
the vectors are not centred before the decomposition, so the first component is close to the mean vector, which encodes the
language of a text. Whitening (Su et al. 2021; Huang et al. 2021) centres them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encode


SMALLEST_VARIANCE = 1e-9  # of a direction, as a share of the largest; float32 vectors do not resolve less


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


def fit_whitening(vectors: np.ndarray, num_components: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Compute the map that gives the first principal components of (N, D) vectors the variance of the last one of them.

    With all components every direction has the same variance: whitening. With fewer only the directions that stand out are
    scaled down: soft whitening. The coordinates stay where they are (not those of the components), and the total variance is
    kept.

    Args:
        num_components: by default all in which the vectors vary. That may be D - 1: vectors after a layer norm lie in a plane.

    Returns:
        The mean, (D,), and the symmetric matrix, (D, D), float64, of `whiten`.

    Raises:
        InputError: the vectors do not vary in `num_components` directions, or there are no more of them than dimensions.
    """
    mean = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - mean
    variances, columns = np.linalg.eigh(centred.T @ centred / len(vectors))  # ascending
    variances, columns = variances[::-1], columns[:, ::-1]
    directions = min(len(vectors) - 1, int((variances > SMALLEST_VARIANCE * variances[0]).sum()))
    count = num_components or (directions if len(vectors) > len(variances) else len(variances))
    if not 1 <= count <= directions:
        raise InputError(
            f"cannot whiten {count} components: the {len(vectors):,} vectors vary in {directions} directions; give more texts, "
            f"or --whiten with at most {directions}"
        )
    scales = np.ones(len(variances))
    scales[:count] = np.sqrt(variances[count - 1] / variances[:count])
    scales *= np.sqrt(variances.sum() / (variances * scales**2).sum())
    return mean, (columns * scales) @ columns.T


def whiten(vectors: np.ndarray, mean: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Apply the map of `fit_whitening` to (N, D) vectors."""
    return (vectors - mean) @ matrix


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

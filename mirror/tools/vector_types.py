"""Smaller types for stored embeddings, and what they cost in search. Knows vectors; knows nothing of files or models."""

from __future__ import annotations

from typing import Literal

import numpy as np

from mirror.common.errors import InputError
from mirror.common.nearest_neighbors import top_k, unit_length


VectorType = Literal["float32", "float16", "int8", "binary"]
QUERIES, ENTRIES, NEIGHBORS = 200, 5000, 10  # of the recall that a run measures


def encode_vectors(vectors: np.ndarray, vector_type: VectorType) -> tuple[np.ndarray, np.ndarray | None]:
    """Vectors as they are stored.

    Args:
        vectors: (N, D) float32.

    Returns:
        The stored vectors, (N, D) or for `binary` (N, ceil(D / 8)), and for `int8` their scales, (N,) float32, else None.

    Raises:
        InputError: a value that float16 cannot hold.
    """
    if vector_type == "int8":
        return quantise(vectors)
    if vector_type == "binary":
        return np.packbits(vectors > 0, axis=1), None
    if vector_type == "float16":
        limit = np.finfo(np.float16).max
        if np.abs(vectors).max() > limit:
            raise InputError(
                f"a vector has a value beyond {limit:.0f}, the float16 maximum; use --vector_type float32"
            )
        return vectors.astype(np.float16), None
    return vectors, None


def quantise(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise to 8 bits: vector = int8 vector * scale, with an error of at most half the scale per dimension.

    Each vector has its own scale, its largest magnitude / 127. Shards are therefore independent of each other, and the
    cosine of two int8 vectors does not need the scales.

    Args:
        vectors: (N, D) float32.

    Returns:
        The int8 vectors, (N, D), and their float32 scales, (N,); the scale of a zero vector is 0.
    """
    scale = np.abs(vectors).max(axis=1) / 127  # (N,)
    steps = vectors / np.where(scale > 0, scale, 1)[:, None]
    return np.rint(steps).astype(np.int8), scale.astype(np.float32)


def recall(vectors: np.ndarray, vector_type: VectorType) -> tuple[float, int]:
    """Recall@10 of a search among vectors of this type, queries included, against cosine in float32.

    Of the first `ENTRIES` distinct vectors, at most `QUERIES` and at most a tenth are queries and the others are searched.

    Args:
        vectors: (N, D) float32.

    Returns:
        The share of the ten nearest in float32 that are among the ten nearest in this type (`binary`: by Hamming
        distance); nan where fewer than 10 vectors are searched. And how many are searched.
    """
    first = np.sort(np.unique(vectors[:ENTRIES], axis=0, return_index=True)[1])  # equal vectors would be ties
    vectors = vectors[first]
    queries = min(QUERIES, len(vectors) // 10)
    entries = len(vectors) - queries
    if not queries or entries < NEIGHBORS:
        return float("nan"), entries
    exact, stored = (
        top_k(unit[:queries], unit[queries:], NEIGHBORS)[1]
        for unit in map(unit_length, (vectors, _direction(vectors, vector_type)))
    )
    kept = [len(np.intersect1d(*rows)) for rows in zip(exact, stored, strict=True)]
    return float(np.mean(kept)) / NEIGHBORS, entries


def _direction(vectors: np.ndarray, vector_type: VectorType) -> np.ndarray:
    """(N, D) float32 whose cosines order texts as the stored vectors do: of signs, as the Hamming distance does."""
    if vector_type == "binary":
        return np.where(vectors > 0, 1, -1).astype(np.float32)
    return encode_vectors(vectors, vector_type)[0].astype(np.float32)

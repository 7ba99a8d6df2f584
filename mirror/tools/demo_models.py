"""One model on a list of texts: cosines, nearest texts and positions on a map. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import PCA

from mirror.common.errors import InputError
from mirror.common.nearest_neighbors import top_k, unit_length
from mirror.modeling.encoder import Encoder


NUM_PAIRS = 10_000  # random pairs of texts, whose cosines are the reference for any other cosine
PAIR_BINS = np.linspace(-1, 1, 81)


class ComparedModel:
    """One of the two models that are compared on the same texts.

    Args:
        name: the model's name on the page.
        texts: N distinct texts, at least two.

    Raises:
        InputError: an embedding is not finite, or there are fewer than two texts.
    """

    def __init__(self, name: str, encoder: Encoder, texts: Sequence[str]):
        if len(texts) < 2:
            raise InputError(f"{len(texts)} text(s): the map needs at least two texts")
        self.name, self.encoder, self.texts = name, encoder, texts
        self.vectors = self.encode(texts)  # (N, D)
        self.pca = PCA(2, random_state=0).fit(self.vectors)
        self.turn = np.eye(2)  # of the map
        self.points = self.place(self.vectors)  # (N, 2)
        self.random_cosines = np.sort(random_cosines(self.vectors))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings of the texts, (N, D) float32, normalised to unit length."""
        return unit_length(self.encoder.encode(texts))

    def place(self, vectors: np.ndarray) -> np.ndarray:
        """Positions on the map, (N, 2), of `vectors` (N, D)."""
        return self.pca.transform(vectors) @ self.turn

    def turn_to(self, other: ComparedModel) -> None:
        """Rotate and mirror the map so that the texts are as near as possible to their positions on the map of `other`.

        The axes of principal components have no meaning, and neither have their signs. Distances on the map stay.
        """
        self.turn = self.turn @ orthogonal_procrustes(self.points, other.points)[0]
        self.points = self.place(self.vectors)

    def describe(self, rows: Sequence[int]) -> dict:
        """The name, the map positions of the texts `rows`, and a histogram of the cosines of random pairs.

        A cosine alone says little: a plain masked LM gives any two texts a cosine of about 0.8.
        """
        total = float(self.vectors.var(axis=0).sum())
        shown = float(self.points.var(axis=0).sum())
        return {
            "name": self.name,
            "points": _rounded(self.points[list(rows)]),
            "variance": shown / total if total else 0.0,  # share explained by the two axes
            "pairs": np.histogram(self.random_cosines.clip(-1, 1), PAIR_BINS)[0].tolist(),
        }

    def cosine(self, first: str, second: str) -> dict:
        """The cosine of two texts, and the share of random pairs whose cosine is lower."""
        left, right = self.encode([first, second])
        cosine = float(left @ right)
        return {"cosine": cosine, "above": float(np.searchsorted(self.random_cosines, cosine) / NUM_PAIRS)}

    def search(self, query: str, k: int) -> dict:
        """The `k` nearest texts other than the query, best first, and the map positions of these and of the query."""
        vector = self.encode([query])  # (1, D)
        scores, rows = top_k(vector, self.vectors, k + 1)  # (1, k + 1) each; one of them may be the query
        matches = [
            {"cosine": float(score), "text": self.texts[row], "point": _rounded(self.points[row])}
            for score, row in zip(scores[0], rows[0], strict=True)
            if self.texts[row] != query
        ]
        return {"point": _rounded(self.place(vector))[0], "matches": matches[:k]}


def random_cosines(vectors: np.ndarray) -> np.ndarray:
    """Cosines of NUM_PAIRS random pairs of different rows, (NUM_PAIRS,); the pairs are the same on every call.

    Args:
        vectors: (N, D), unit length.
    """
    generator = np.random.default_rng(0)
    first = generator.integers(len(vectors), size=NUM_PAIRS)
    second = (first + generator.integers(1, len(vectors), size=NUM_PAIRS)) % len(vectors)
    return np.einsum("nd,nd->n", vectors[first], vectors[second])


def _rounded(points: np.ndarray) -> list:
    return points.astype(float).round(4).tolist()

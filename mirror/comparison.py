"""What one model makes of a list of texts: cosines, matches, and places on a map. Knows numbers; knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.decomposition import PCA

from mirror.encoder import Encoder
from mirror.errors import InputError
from mirror.evaluation.search import top_k, unit_length


NUM_PAIRS = 10_000  # of random texts: what a cosine is compared with
PAIR_BINS = np.linspace(-1, 1, 81)


class Side:
    """One of two models that are compared on the same texts.

    Args:
        name: how the model is called on the page.
        texts: N distinct ones, at least two.

    Raises:
        InputError: a text has no finite vector, or there is nothing to compare it with.
    """

    def __init__(self, name: str, encoder: Encoder, texts: Sequence[str]):
        if len(texts) < 2:
            raise InputError(f"{len(texts)} text: a map needs two texts or more")
        self.name, self.encoder, self.texts = name, encoder, texts
        self.vectors = self.encode(texts)  # (N, D)
        self.plane = PCA(2, random_state=0).fit(self.vectors)
        self.points = self.plane.transform(self.vectors)  # (N, 2)
        self.random_cosines = np.sort(random_cosines(self.vectors))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(N, D) float32 of length one."""
        return unit_length(self.encoder.encode(texts))

    def describe(self, rows: Sequence[int]) -> dict:
        """The model, the places of the texts `rows`, and how the cosines of random pairs are spread.

        A cosine says little on its own: a masked LM gives .8 to any two texts.
        """
        total = float(self.vectors.var(axis=0).sum())
        shown = float(self.points.var(axis=0).sum())
        return {
            "name": self.name,
            "points": _rounded(self.points[list(rows)]),
            "variance": shown / total if total else 0.0,  # the share of it that two axes hold
            "pairs": np.histogram(self.random_cosines.clip(-1, 1), PAIR_BINS)[0].tolist(),
        }

    def cosine(self, first: str, second: str) -> dict:
        """The cosine of two texts, and the share of random pairs whose cosine is lower."""
        left, right = self.encode([first, second])
        cosine = float(left @ right)
        return {"cosine": cosine, "above": float(np.searchsorted(self.random_cosines, cosine) / NUM_PAIRS)}

    def search(self, query: str, k: int) -> dict:
        """The `k` nearest texts, best first, and where they and the query are on the map."""
        vector = self.encode([query])  # (1, D)
        scores, rows = top_k(vector, self.vectors, k)  # (1, k) each
        return {
            "point": _rounded(self.plane.transform(vector))[0],
            "matches": [
                {"cosine": float(score), "text": self.texts[row], "point": _rounded(self.points[row])}
                for score, row in zip(scores[0], rows[0], strict=True)
            ],
        }


def random_cosines(vectors: np.ndarray) -> np.ndarray:
    """(NUM_PAIRS,) cosines of pairs of different rows of (N, D), the same pairs each time."""
    generator = np.random.default_rng(0)
    first = generator.integers(len(vectors), size=NUM_PAIRS)
    second = (first + generator.integers(1, len(vectors), size=NUM_PAIRS)) % len(vectors)
    return np.einsum("nd,nd->n", vectors[first], vectors[second])


def _rounded(points: np.ndarray) -> list:
    return points.astype(float).round(4).tolist()

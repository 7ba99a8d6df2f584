"""`language_bias`: the distribution of languages among retrieved sentences (CMLM §5.1, on PAWS-X).

Each sentence is a query among the same sentences in all seven languages, excluding itself. Six candidates are its
translations; a candidate in the query's own language is a different sentence. An encoder without language bias
retrieves each of the six other languages equally often and the language of the query never.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mirror.common.nearest_neighbors import top_k, unit_length
from mirror.evaluation.task import DataFile, Task
from mirror.modeling.encoder import Encode


LANGUAGES = ("de", "en", "es", "fr", "ja", "ko", "zh")
FILES = tuple(DataFile(f"pawsx/test_{language}.tsv", ("sentence1",), (2000,)) for language in LANGUAGES)


def tasks(data_dir: Path) -> list[Task]:
    """Return the only task of this family."""
    return [
        Task(
            name="language_bias",
            metric="language_neutrality",
            protocol="PAWS-X test: language of the nearest other sentence1 among all seven languages; 1 - total "
            "variation distance from uniform over the six other languages, mean of the query languages",
            files=FILES,
            score=score,
            published="CMLM Figure 2 (a plot without numbers)",
        )
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """Compute language neutrality and the language matrix.

    A neutrality near 1 is meaningful only if `accuracy`, the fraction of retrieved translations, is well above 0.
    """
    columns = [file.read(data_dir)["sentence1"] for file in FILES]
    rows = distinct_rows(columns)
    vectors = np.stack([unit_length(encode([texts[row] for row in rows])) for texts in columns])  # (L, N, D)
    nearest = nearest_others(vectors)
    matrix = language_matrix(nearest)
    return {
        "main_score": language_neutrality(matrix),
        "num_examples": nearest.size,
        "own_language": float(np.diag(matrix).mean()),
        "accuracy": float((nearest % len(rows) == np.arange(len(rows))).mean()),
        "languages": list(LANGUAGES),
        "matrix": matrix.round(5).tolist(),
    }


def distinct_rows(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return the rows without a sentence of an earlier row in any language; a duplicate would retrieve itself."""
    seen: list[set[str]] = [set() for _ in columns]
    rows = []
    for row, texts in enumerate(zip(*columns, strict=True)):
        if not any(text in known for text, known in zip(texts, seen, strict=True)):
            rows.append(row)
        for text, known in zip(texts, seen, strict=True):
            known.add(text)
    return rows


def nearest_others(vectors: np.ndarray) -> np.ndarray:
    """Return the index, in 0 ... L * N - 1, of the nearest other vector of each vector (L, N, D), as (L, N)."""
    entries = vectors.reshape(-1, vectors.shape[-1])  # (L * N, D)
    _, nearest = top_k(entries, entries, 2)
    own = np.arange(len(entries))
    return np.where(nearest[:, 0] == own, nearest[:, 1], nearest[:, 0]).reshape(vectors.shape[:2])


def language_matrix(nearest: np.ndarray) -> np.ndarray:
    """Compute the fraction of queries in language q whose nearest entry is in language r.

    Args:
        nearest: (L, N) indices into L blocks of N entries, one block per language.

    Returns:
        (L, L), row q, column r.
    """
    languages, rows = nearest.shape
    return np.stack([np.bincount(found // rows, minlength=languages) / rows for found in nearest])


def language_neutrality(matrix: np.ndarray) -> float:
    """1 minus the total variation distance of each row of (L, L) from uniform over the other languages, averaged.

    1: all other languages are retrieved equally often and the query's own never. 0: the own language is always
    retrieved. 1 / (L - 1): always the same other language.
    """
    languages = len(matrix)
    unbiased = (1 - np.eye(languages)) / (languages - 1)
    return float(1 - np.abs(matrix - unbiased).sum(axis=1).mean() / 2)

"""`language_bias`: does an encoder look for meaning, or for its own language? (CMLM §5.1, on PAWS-X.)

For each query language, the languages of what is retrieved. A sentence is looked up among the same sentences in all
seven languages, itself left out: six of them are its translations, and what is found in its own language is another
sentence. An encoder that ignores language finds each of the six others equally often and its own never.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mirror.evaluation.search import top_k, unit_length
from mirror.evaluation.task import DataFile, Encode, Task


LANGUAGES = ("de", "en", "es", "fr", "ja", "ko", "zh")
FILES = tuple(DataFile(f"pawsx/test_{language}.tsv", ("sentence1",), (2000,)) for language in LANGUAGES)


def tasks(data_dir: Path) -> list[Task]:
    """The one task of this family."""
    return [
        Task(
            name="language_bias",
            metric="language_neutrality",
            protocol="PAWS-X test: language of the nearest other sentence1 among all seven languages; 1 - total "
            "variation from uniform over the six other languages, mean of the query languages",
            files=FILES,
            score=score,
            published="CMLM Figure 2 (a picture; it prints no number)",
        )
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """Neutrality and the whole matrix; a number near 1 means something only where the accuracy is well above 0."""
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
    """Rows whose text no earlier row has, in any language: a repeated sentence would find itself."""
    seen: list[set[str]] = [set() for _ in columns]
    rows = []
    for row, texts in enumerate(zip(*columns, strict=True)):
        if not any(text in known for text, known in zip(texts, seen, strict=True)):
            rows.append(row)
        for text, known in zip(texts, seen, strict=True):
            known.add(text)
    return rows


def nearest_others(vectors: np.ndarray) -> np.ndarray:
    """(L, N): for each vector of (L, N, D) the number, in 0 ... L * N - 1, of the nearest one but itself."""
    entries = vectors.reshape(-1, vectors.shape[-1])  # (L * N, D)
    _, nearest = top_k(entries, entries, 2)
    own = np.arange(len(entries))
    return np.where(nearest[:, 0] == own, nearest[:, 1], nearest[:, 0]).reshape(vectors.shape[:2])


def language_matrix(nearest: np.ndarray) -> np.ndarray:
    """(L, L): row q, column r: the share of language q's queries whose nearest entry is in language r.

    Args:
        nearest: (L, N) numbers in a list of L blocks of N entries, one block a language.
    """
    languages, rows = nearest.shape
    return np.stack([np.bincount(found // rows, minlength=languages) / rows for found in nearest])


def language_neutrality(matrix: np.ndarray) -> float:
    """1 minus the total variation distance between each row of (L, L) and the uniform one over the others, averaged.

    1: every other language equally often, the own never. 0: always the own language. 1 / (L - 1): always one other.
    """
    languages = len(matrix)
    unbiased = (1 - np.eye(languages)) / (languages - 1)
    return float(1 - np.abs(matrix - unbiased).sum(axis=1).mean() / 2)

"""`language_bias`: does an encoder look for meaning, or for its own language? (CMLM §5.1, on PAWS-X.)

For each query language, the languages of what is retrieved. Every query `sentence1` meets the `sentence2` of all seven
languages at once, where its pair stands seven times, once in each language. An encoder that ignores language picks any
of them alike, and its distribution is uniform, its own language included.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.stats import entropy

from mirror.evaluation.search import top_k, unit_length
from mirror.evaluation.task import DataFile, Encode, Task


LANGUAGES = ("de", "en", "es", "fr", "ja", "ko", "zh")
FILES = tuple(DataFile(f"pawsx/test_{language}.tsv", ("sentence1", "sentence2"), (2000,)) for language in LANGUAGES)


def tasks(data_dir: Path) -> list[Task]:
    """The one task of this family."""
    return [
        Task(
            name="language_bias",
            metric="normalized_entropy",
            protocol="PAWS-X test: nearest sentence2 of all languages for each sentence1; entropy of its language, "
            "over log 7, mean of the query languages: 1 is no bias, 0 is always one language",
            files=FILES,
            score=score,
            published="CMLM Figure 2 (a picture; it prints no number)",
        )
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """Normalized entropy, the share that stays in the query's language, and the whole matrix."""
    columns = [file.read(data_dir) for file in FILES]
    queries = [unit_length(encode(language["sentence1"])) for language in columns]  # L of (N, D)
    entries = np.concatenate([unit_length(encode(language["sentence2"])) for language in columns])  # (L * N, D)
    nearest = np.stack([top_k(block, entries, 1)[1][:, 0] for block in queries])  # (L, N)
    matrix = language_matrix(nearest)
    return {
        "main_score": normalized_entropy(matrix),
        "num_examples": nearest.size,
        "own_language": float(np.diag(matrix).mean()),
        "accuracy": float((nearest % nearest.shape[1] == np.arange(nearest.shape[1])).mean()),
        "languages": list(LANGUAGES),
        "matrix": matrix.round(5).tolist(),
    }


def language_matrix(nearest: np.ndarray) -> np.ndarray:
    """(L, L): row q, column r: the share of language q's queries whose nearest entry is in language r.

    Args:
        nearest: (L, N) entry numbers in a list of L blocks of N, one block a language.
    """
    languages, rows = nearest.shape
    return np.stack([np.bincount(found // rows, minlength=languages) / rows for found in nearest])


def normalized_entropy(matrix: np.ndarray) -> float:
    """Mean over the rows of (L, L) of their entropy, in units of the largest possible: 1 uniform, 0 one language only."""
    return float(entropy(matrix, axis=1).mean() / np.log(matrix.shape[1]))

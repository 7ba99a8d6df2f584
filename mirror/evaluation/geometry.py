"""Geometry of embeddings: isotropy, mean-vector norm, alignment, uniformity, effective rank.

Knows arrays and, for the task `isotropy`, which texts to encode. Embeddings are not normalised: BERT's have a norm of
13 to 15, so sums of exponentials are computed in log space.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp
from scipy.stats import entropy

from mirror.common.alignment_uniformity import alignment, uniformity
from mirror.common.errors import InputError
from mirror.evaluation.lines import LineFile
from mirror.evaluation.task import DataFile, Task
from mirror.modeling.encoder import Encode


STSB_TEST = DataFile("sts/stsb_test.tsv", ("sentence1", "sentence2", "score"), (1379,), (0, 5))
PARAPHRASE_SCORE = 4  # STS-B pairs with a higher score are the positive pairs of alignment, as in SimCSE


def tasks(data_dir: Path, texts_file: str | Path | None = None) -> list[Task]:
    """Return the task `isotropy`, measured on the distinct sentences of STS-B test or the lines of `texts_file`."""
    if texts_file is None:
        files, score, texts = (STSB_TEST,), score_stsb, "the distinct sentences of STS-B test"
    else:
        file = LineFile(str(Path(texts_file).resolve()), ("text",))
        files, score, texts = (file,), partial(score_lines, file), f"the distinct lines of {Path(texts_file).name}"
    return [
        Task(
            name="isotropy",
            metric="isotropy_score",
            protocol=f"Mirror-BERT Eq. 2 on {texts}, vectors not normalised",
            files=files,
            score=score,
            published="Mirror-BERT Tables 9 and 14: compare `isotropy_score_rows` (see docs/evaluation.md)",
        )
    ]


def score_stsb(encode: Encode, data_dir: Path) -> dict:
    """Measure the geometry of the sentences of STS-B test, and the alignment of the pairs with a score above 4."""
    columns = STSB_TEST.read(data_dir)
    close = [row for row, score in enumerate(columns["score"]) if float(score) > PARAPHRASE_SCORE]
    sides = [encode([columns[name][row] for row in close]) for name in ("sentence1", "sentence2")]
    vectors = encode(list(dict.fromkeys(columns["sentence1"] + columns["sentence2"])))
    distance = alignment(*(torch.from_numpy(side.astype(np.float64)) for side in sides)).item()
    return describe(vectors) | {"alignment": distance, "alignment_pairs": len(close)}


def score_lines(file: DataFile, encode: Encode, data_dir: Path) -> dict:
    """Measure the geometry of the distinct texts of a file. Alignment needs pairs and is not measured.

    Raises:
        InputError: the file has fewer than two distinct texts.
    """
    texts = list(dict.fromkeys(file.read(data_dir)["text"]))
    if len(texts) < 2:
        raise InputError(f"{file.path} has only {len(texts)} distinct line; the task isotropy needs at least two")
    return describe(encode(texts))


def describe(vectors: np.ndarray) -> dict:
    """Compute every measure that needs no pairs on (N, D) vectors, as the fields of a result."""
    vectors = vectors.astype(np.float64)
    directions = eigenvectors(vectors)  # (D, D)
    score = isotropy_score(vectors, directions)
    return {
        "main_score": score,
        "num_examples": len(vectors),
        "isotropy_score": score,
        "isotropy_score_rows": isotropy_score(vectors, directions.T),
        "mean_vector_norm": mean_vector_norm(vectors),
        "mean_norm": float(np.linalg.norm(vectors, axis=1).mean()),
        "uniformity": uniformity(torch.from_numpy(vectors)).item(),
        "effective_rank": effective_rank(vectors),
    }


def eigenvectors(vectors: np.ndarray) -> np.ndarray:
    """Compute the eigenvectors of VᵀV for vectors V (N, D).

    The sign of an eigenvector is arbitrary but Z(c) depends on it, so the sign with a non-negative inner product with
    the mean vector is chosen.

    Returns:
        (D, D), one eigenvector per row.
    """
    _, columns = np.linalg.eigh(vectors.T @ vectors)
    sides = np.where(columns.T @ vectors.mean(axis=0) < 0, -1.0, 1.0)  # (D,)
    return columns.T * sides[:, None]


def isotropy_score(vectors: np.ndarray, directions: np.ndarray) -> float:
    """Isotropy score min Z(c) / max Z(c) over directions c, with Z(c) = sum over v of exp(cᵀv) (Mirror-BERT Eq. 2).

    1 is perfectly isotropic. The paper defines the directions as the eigenvectors of VᵀV. Its printed values, however,
    fit the *rows* of the matrix whose columns are the eigenvectors: with the eigenvectors themselves, vectors with a
    mean-vector norm of 13.8 score about e^-13.8, whereas Table 14 prints .043. Pass `eigenvectors(vectors)` to follow
    the equation, and its transpose to compare with the table.

    Args:
        vectors: (N, D).
        directions: (K, D), of unit length.
    """
    log_z = logsumexp(vectors @ directions.T, axis=0)  # (K,)
    return float(np.exp(log_z.min() - log_z.max()))


def mean_vector_norm(vectors: np.ndarray) -> float:
    """L2 norm of the mean of (N, D) vectors (Mirror-BERT Eq. 3)."""
    return float(np.linalg.norm(vectors.mean(axis=0)))


def effective_rank(vectors: np.ndarray) -> float:
    """Exponential of the entropy of the singular values of (N, D), scaled to sum to 1 (Roy and Vetterli 2007)."""
    return float(np.exp(entropy(np.linalg.svd(vectors, compute_uv=False))))

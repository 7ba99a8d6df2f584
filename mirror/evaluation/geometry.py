"""The shape of a cloud of vectors: isotropy, mean-vector norm, alignment, uniformity, effective rank.

Knows arrays and, for the task `isotropy`, which texts to encode. Vectors are used at their own length: BERT's are
13 to 15 long, so everything that exponentiates them stays in log space.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from scipy.special import logsumexp
from scipy.stats import entropy

from mirror.errors import InputError
from mirror.evaluation.lines import LineFile
from mirror.evaluation.search import unit_length
from mirror.evaluation.sts import paired_cosines
from mirror.evaluation.task import DataFile, Encode, Task


STSB_TEST = DataFile("sts/stsb_test.tsv", ("sentence1", "sentence2", "score"), (1379,), (0, 5))
PARAPHRASE_SCORE = 4  # STS-B pairs above it count as positives for alignment, as in SimCSE


def tasks(data_dir: Path, texts_file: str | Path | None = None) -> list[Task]:
    """The one task of this family: on the distinct sentences of STS-B test, or on the lines of `texts_file`."""
    if texts_file is None:
        files, score, of = (STSB_TEST,), score_stsb, "the distinct sentences of STS-B test"
    else:
        file = LineFile(str(Path(texts_file).resolve()), ("text",))
        files, score, of = (file,), partial(score_lines, file), f"the distinct lines of {Path(texts_file).name}"
    return [
        Task(
            name="isotropy",
            metric="isotropy_score",
            protocol=f"Mirror-BERT Eq. 2 on {of}, vectors at their own length",
            files=files,
            score=score,
            published="Mirror-BERT Tables 9 and 14: compare `isotropy_score_rows` (docs/evaluation.md says why)",
        )
    ]


def score_stsb(encode: Encode, data_dir: Path) -> dict:
    """Geometry of the sentences of STS-B test, with alignment over the pairs scored above 4."""
    columns = STSB_TEST.read(data_dir)
    close = [row for row, score in enumerate(columns["score"]) if float(score) > PARAPHRASE_SCORE]
    sides = [encode([columns[name][row] for row in close]) for name in ("sentence1", "sentence2")]
    vectors = encode(list(dict.fromkeys(columns["sentence1"] + columns["sentence2"])))
    return describe(vectors) | {"alignment": alignment(*sides), "alignment_pairs": len(close)}


def score_lines(file: DataFile, encode: Encode, data_dir: Path) -> dict:
    """Geometry of the distinct texts of a file; without pairs there is no alignment.

    Raises:
        InputError: there are fewer than two.
    """
    texts = list(dict.fromkeys(file.read(data_dir)["text"]))
    if len(texts) < 2:
        raise InputError(f"{file.path} has {len(texts)} distinct line of text; geometry needs at least two")
    return describe(encode(texts))


def describe(vectors: np.ndarray) -> dict:
    """Every measure that needs no pairs, of (N, D), as the fields of a result."""
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
        "uniformity": uniformity(vectors),
        "effective_rank": effective_rank(vectors),
    }


def eigenvectors(vectors: np.ndarray) -> np.ndarray:
    """(D, D): the eigenvectors of VᵀV, one a row, each on the side of the mean vector.

    An eigenvector's sign is arbitrary and Z depends on it, so one of the two has to be chosen.
    """
    _, columns = np.linalg.eigh(vectors.T @ vectors)
    sides = np.where(columns.T @ vectors.mean(axis=0) < 0, -1.0, 1.0)  # (D,)
    return columns.T * sides[:, None]


def isotropy_score(vectors: np.ndarray, directions: np.ndarray) -> float:
    """IS = min Z(c) / max Z(c) over directions c, Z(c) = sum over v of exp(cᵀv): 1 is isotropic (Mirror-BERT Eq. 2).

    The paper takes the eigenvectors of VᵀV as C. Its printed values, though, fit the *rows* of the matrix that holds
    the eigenvectors as columns: with the eigenvectors themselves a set of mean-vector norm 13.8 scores about
    e^-13.8, and Table 14 prints .043. Pass `eigenvectors(vectors)` for the equation, its transpose for the table.

    Args:
        vectors: (N, D).
        directions: (K, D), of length one.
    """
    log_z = logsumexp(vectors @ directions.T, axis=0)  # (K,)
    return float(np.exp(log_z.min() - log_z.max()))


def mean_vector_norm(vectors: np.ndarray) -> float:
    """Length of the mean of (N, D) (Mirror-BERT Eq. 3)."""
    return float(np.linalg.norm(vectors.mean(axis=0)))


def alignment(left: np.ndarray, right: np.ndarray) -> float:
    """Mean squared distance on the unit sphere of positive pairs, row n with row n of (N, D) (Wang and Isola 2020)."""
    return float((2 - 2 * paired_cosines(left, right)).mean())


def uniformity(vectors: np.ndarray, block_rows: int = 1024) -> float:
    """log of the mean of exp(-2 |x - y|²) over all pairs of (N, D) on the unit sphere (Wang and Isola 2020).

    0 if all vectors point the same way; about -4 for a uniform sphere of many dimensions.
    """
    unit = unit_length(vectors.astype(np.float64))
    blocks = range(0, len(unit), block_rows)
    # |x - y|² is 2 - 2 cos; a vector with itself adds exp(0) and is taken out again.
    total = sum(np.exp(4 * (unit[start : start + block_rows] @ unit.T) - 4).sum() for start in blocks)
    return float(np.log((total - len(unit)) / (len(unit) * (len(unit) - 1))))


def effective_rank(vectors: np.ndarray) -> float:
    """exp of the entropy of the singular values of (N, D), scaled to sum to one (Roy and Vetterli 2007)."""
    return float(np.exp(entropy(np.linalg.svd(vectors, compute_uv=False))))

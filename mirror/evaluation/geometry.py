"""Geometry of embeddings: `isotropy`, `language_bias` and `tatoeba_projection`.

`language_bias` (CMLM §5.1, on PAWS-X) is the distribution of languages among retrieved sentences. Each sentence is a
query among the same sentences in all seven languages, excluding itself. An encoder without language bias retrieves each
of the six other languages equally often and the language of the query, where all candidates are other sentences, never.

`tatoeba_projection` (CMLM Figure 3) is how far each of four languages and English mix, and their points in the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp
from scipy.stats import entropy
from sklearn.decomposition import PCA

from mirror.common.errors import InputError
from mirror.common.vectors import alignment, top_k, uniformity, unit_length
from mirror.evaluation.task import DataFile, LineFile, Options, Task
from mirror.modeling.encoder import Encode


STSB_TEST = DataFile("sts/stsb_test.tsv", ("sentence1", "sentence2", "score"), (1379,), (0, 5))
LANGUAGES = ("de", "en", "es", "fr", "ja", "ko", "zh")
PAWS = tuple(DataFile(f"pawsx/test_{language}.tsv", ("sentence1",), (2000,)) for language in LANGUAGES)
PROJECTED = ("fra", "deu", "rus", "spa")  # CMLM Figure 3
TATOEBA = tuple(DataFile(f"tatoeba/{code}-eng.tsv", ("source", "english"), (1000,)) for code in PROJECTED)
POINTS = 300  # of each language, for a legible plot
RANKED = len(LANGUAGES) - 1  # retrieved sentences: as many as a query has translations; the paper gives no number
SIGNS = 20  # draws of the arbitrary signs of eigenvectors


def tasks(data_dir: Path, options: Options) -> list[Task]:
    """Return the three tasks of this family. `isotropy` measures STS-B test, or the lines of `isotropy_texts`."""
    file, score, texts = STSB_TEST, score_stsb, "the distinct sentences of STS-B test"
    if options.isotropy_texts:
        path = Path(options.isotropy_texts).resolve()
        file, texts = LineFile(str(path), ("text",)), f"the distinct lines of {path.name}"
        score = partial(score_lines, file)
    protocol = f"Mirror-BERT Eq. 2 on {texts}, vectors not normalized"
    published = "Mirror-BERT Tables 9 and 14, whose values fit `isotropy_score_rows` (see docs/evaluation.md)"
    isotropy = {"dataset": "isotropy of sentence embeddings", "published": published}
    return [
        Task("isotropy", "isotropy_score", protocol, (file,), score, **isotropy),
        Task(
            name="language_bias",
            metric="language_neutrality",
            protocol="PAWS-X test: language of the nearest other sentence1 among all seven languages; 1 - total "
            "variation distance from uniform over the six other languages, mean of the query languages; `_ranked`: the same of "
            f"the {RANKED} nearest",
            files=PAWS,
            score=score_language_bias,
            dataset="PAWS-X",
            hub=("google-research-datasets/paws-x",),
            published="CMLM Figure 2 (a plot without numbers)",
        ),
        Task(
            name="tatoeba_projection",
            metric="other_language_nearest",
            protocol="share of sentences whose nearest other sentence, in English and one language, is in the other language; "
            f"mean of {', '.join(PROJECTED)}; `points`: the first {POINTS} of each in the plane of their first two principal "
            "components",
            files=TATOEBA,
            score=score_projection,
            dataset="Tatoeba (fra, deu, rus and spa with eng)",
            published="CMLM Figure 3 (a plot without numbers)",
        ),
    ]


def score_stsb(encode: Encode, data_dir: Path) -> dict:
    """Measure the geometry of the sentences of STS-B test, and the alignment of the pairs with a score above 4."""
    columns = STSB_TEST.read(data_dir)
    close = [row for row, score in enumerate(columns["score"]) if float(score) > 4]  # as in SimCSE
    sides = [encode([columns[name][row] for row in close]) for name in ("sentence1", "sentence2")]
    vectors = encode(list(dict.fromkeys(columns["sentence1"] + columns["sentence2"])))
    distance = alignment(*(torch.from_numpy(side.astype(np.float64)) for side in sides)).item()
    return describe(vectors) | {"alignment": distance, "alignment_pairs": len(close)}


def score_lines(file: DataFile, encode: Encode, data_dir: Path) -> dict:
    """Measure the geometry of the distinct texts of a file, without alignment, which needs pairs."""
    texts = list(dict.fromkeys(file.read(data_dir)["text"]))
    if len(texts) < 2:
        raise InputError(f"{file.path} has only {len(texts)} distinct line; the task isotropy needs at least two")
    return describe(encode(texts))


def describe(vectors: np.ndarray) -> dict:
    """Compute every measure that needs no pairs on (N, D) vectors, which are not normalized, as the fields of a result.

    `mean_vector_norm` is Mirror-BERT's Eq. 3. `effective_rank` is the exponential of the entropy of the singular values,
    scaled to sum to 1 (Roy and Vetterli 2007).
    """
    vectors = vectors.astype(np.float64)
    directions = eigenvectors(vectors)  # (D, D)
    score = isotropy_score(vectors, directions)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(SIGNS, len(directions)))
    return {
        "main_score": score,
        "num_examples": len(vectors),
        "isotropy_score": score,
        "isotropy_score_rows": float(np.mean([isotropy_score(vectors, (directions * s[:, None]).T) for s in signs])),
        "mean_vector_norm": float(np.linalg.norm(vectors.mean(axis=0))),
        "mean_norm": float(np.linalg.norm(vectors, axis=1).mean()),
        "uniformity": uniformity(torch.from_numpy(vectors)).item(),
        "effective_rank": float(np.exp(entropy(np.linalg.svd(vectors, compute_uv=False)))),
    }


def eigenvectors(vectors: np.ndarray) -> np.ndarray:
    """Compute the eigenvectors of VᵀV for vectors V (N, D), as the rows of (D, D)."""
    _, columns = np.linalg.eigh(vectors.T @ vectors)
    # The sign of an eigenvector is arbitrary, but Z(c) depends on it: its inner product with the mean vector is not negative.
    return columns.T * np.where(columns.T @ vectors.mean(axis=0) < 0, -1.0, 1.0)[:, None]


def isotropy_score(vectors: np.ndarray, directions: np.ndarray) -> float:
    """Compute min Z(c) / max Z(c) over directions c, with Z(c) = sum over v of exp(cᵀv) (Mirror-BERT Eq. 2).

    1 is perfectly isotropic. The paper defines the directions, (K, D) of unit length, as the eigenvectors of VᵀV for
    vectors V (N, D). Its printed values, however, fit the *rows* of the matrix whose columns are the eigenvectors: with the
    eigenvectors themselves, vectors with a mean-vector norm of 13.8 score about e^-13.8, whereas Table 14 prints .043.
    Pass `eigenvectors(vectors)` to follow the equation, and its transpose to compare with the table. What the transpose gives
    depends on the sign of each eigenvector, which is arbitrary, so `describe` averages it over random signs.
    """
    log_z = logsumexp(vectors @ directions.T, axis=0)  # (K,); BERT's vectors have norms of 13 to 15
    return float(np.exp(log_z.min() - log_z.max()))


def score_language_bias(encode: Encode, data_dir: Path) -> dict:
    """Compute language neutrality, meaningful only if `accuracy` is well above 0, and the language matrix."""
    columns = [file.read(data_dir)["sentence1"] for file in PAWS]
    rows = distinct_rows(columns)
    vectors = np.stack([unit_length(encode([texts[row] for row in rows])) for texts in columns])  # (L, N, D)
    nearest = nearest_others(vectors, RANKED)  # (L, N, K)
    # (L, K, L): fraction of queries in a language whose entry of a rank is in another language
    languages = np.eye(len(columns))[nearest // len(rows)].mean(axis=1)
    matrix, ranked = languages[:, 0], languages.mean(axis=1)  # (L, L)
    accuracy = float((nearest[..., 0] % len(rows) == np.arange(len(rows))).mean())
    fields = {"main_score": language_neutrality(matrix), "num_examples": nearest[..., 0].size}
    fields |= {"own_language": float(np.diag(matrix).mean()), "accuracy": accuracy}
    fields |= {"neutrality_ranked": language_neutrality(ranked), "own_language_ranked": float(np.diag(ranked).mean())}
    matrices = {"matrix": matrix.round(5).tolist(), "matrix_ranked": ranked.round(5).tolist()}
    return fields | {"languages": list(LANGUAGES)} | matrices


def distinct_rows(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return the rows without a sentence of an earlier row in any language. A duplicate would retrieve itself."""
    return [row for row in range(len(columns[0])) if all(texts.index(texts[row]) == row for texts in columns)]


def nearest_others(vectors: np.ndarray, count: int = 1) -> np.ndarray:
    """Return the indices, in 0 ... L * N - 1, of the `count` nearest others of each vector (L, N, D), as (L, N, count)."""
    entries = vectors.reshape(-1, vectors.shape[-1])  # (L * N, D)
    _, nearest = top_k(entries, entries, count + 1)
    # A query is left out of its own list. Where a duplicate kept it out of the list, the last one is.
    is_own = nearest == np.arange(len(entries))[:, None]
    is_own[~is_own.any(axis=1), -1] = True
    return nearest[~is_own].reshape(*vectors.shape[:2], count)


def language_neutrality(matrix: np.ndarray) -> float:
    """Compute 1 minus the total variation distance of each row of (L, L) from uniform over the other languages, averaged.

    1: all other languages equally often and the own never. 0: always the own. 1 / (L - 1): always the same other language.
    """
    unbiased = (1 - np.eye(len(matrix))) / (len(matrix) - 1)
    return float(1 - np.abs(matrix - unbiased).sum(axis=1).mean() / 2)


def score_projection(encode: Encode, data_dir: Path) -> dict:
    """Compute the share of texts whose nearest other is in the other language (CMLM section 5.1), and Figure 3's points."""
    mixed, points = {}, {}
    for language, file in zip(PROJECTED, TATOEBA, strict=True):
        columns = file.read(data_dir)
        pair = np.stack([unit_length(encode(columns[name])) for name in ("source", "english")])  # (2, N, D)
        mixed[language] = float((nearest_others(pair)[..., 0] // pair.shape[1] != np.arange(2)[:, None]).mean())
        shown = pair[:, :POINTS]
        plane = PCA(2, svd_solver="full").fit_transform(shown.reshape(-1, shown.shape[-1]))  # (2n, 2)
        points[language] = plane.reshape(*shown.shape[:2], 2).round(4).tolist()
    fields = {"main_score": float(np.mean(list(mixed.values()))), "num_examples": len(TATOEBA) * TATOEBA[0].rows[0]}
    return fields | {"mixed": mixed, "points": points}

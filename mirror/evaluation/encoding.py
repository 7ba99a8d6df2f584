"""From an encoder to the `encode` function of a scoring run, and linear maps fitted on embeddings.

`make_encode` wraps `encode` for several processes, a cache, truncation and the removal of principal components. Removal
follows CMLM (Table 6) and Yang et al. (2021): the vectors are not centered before the decomposition, so the first component
is close to the mean vector, which encodes the language of a text. Whitening (Su et al. 2021; Huang et al. 2021) centers
them.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object

from mirror.common.errors import InputError
from mirror.evaluation.task import LineFile
from mirror.modeling.embedding_cache import EmbeddingCache, fingerprint
from mirror.modeling.encoder import Encode, EncodeByRole, Encoder, deduplicated


PACKAGES = ("torch", "transformers", "tokenizers", "sentence-transformers", "numpy", "scipy", "scikit-learn")
SMALLEST_VARIANCE = 1e-9  # of a direction, as a share of the largest; float32 vectors do not resolve less


@dataclass(frozen=True)
class EncodeSettings:
    """How texts are encoded and how the embeddings are transformed, in the order of application."""

    batch_size: int = 64
    cache_dir: str | None = None
    truncate_dim: int | None = None
    remove_components: int | None = None
    fit_on: str = "per_language"  # or a file with one text per line


def make_encode(encoder: Encoder, settings: EncodeSettings, model_sha256: str | None = None) -> EncodeByRole:
    """Wrap the encoder's `encode` as requested by `settings`. `model_sha256` is `fingerprint(encoder)`, if it is known."""
    known = {encoder.prompt: model_sha256}
    return encoder.by_role(lambda each: _wrap(each, settings, known.get(each.prompt)))


def _wrap(encoder: Encoder, settings: EncodeSettings, model_sha256: str | None) -> Encode:
    encode: Encode = shared_among_processes(partial(encoder.encode, batch_size=settings.batch_size))
    if settings.cache_dir:  # inside the transformations, so that runs with other settings share it
        encode = EmbeddingCache(Path(settings.cache_dir) / (model_sha256 or fingerprint(encoder))[:16], encode)
    if settings.truncate_dim:
        if not 1 <= settings.truncate_dim <= encoder.dimension:
            has = f"the vectors have {encoder.dimension} dimensions; give at most {encoder.dimension}"
            raise InputError(f"--truncate_dim {settings.truncate_dim}: {has}")
        full = encode

        def encode(texts: Sequence[str]) -> np.ndarray:  # only the first dimensions stay, as for Matryoshka models
            return np.ascontiguousarray(full(texts)[:, : settings.truncate_dim])

    if settings.remove_components:
        components = None
        if settings.fit_on != "per_language":
            texts = LineFile(settings.fit_on, ("text",)).read(Path())["text"]
            components = fit_components(encode(list(dict.fromkeys(texts))), settings.remove_components)
        encode = removing_components(encode, settings.remove_components, components)
    return encode


def describe(name_or_path: str, encoder: Encoder, dtype: str, settings: EncodeSettings) -> dict:
    """Return the section of results.json that records how the texts were encoded."""
    described = {
        "model_name_or_path": name_or_path,
        "pooling": encoder.pooling,
        "max_seq_length": encoder.max_seq_length,
        "dtype": dtype,
        "device": encoder.model.device.type,
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
    }
    if encoder.prompt:
        described["prompt"] = encoder.prompt
    for role, prompt in encoder.role_prompts.items():
        if prompt != encoder.prompt:
            described[f"{role}_prompt"] = prompt
    if truncate_dim := settings.truncate_dim or encoder.truncate_dim:
        described["truncate_dim"] = truncate_dim
    if settings.remove_components:
        described |= {"remove_components": settings.remove_components, "fit_on": settings.fit_on}
    return described


def shared_among_processes(encode: Encode) -> Encode:
    """Split the texts among the processes of `accelerate launch`. Every process gets the embeddings of all texts."""
    state = PartialState()
    if state.num_processes == 1:
        return encode

    def encode_share(texts: Sequence[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # balances the shares by length
        shares = [order[rank :: state.num_processes] for rank in range(state.num_processes)]
        parts = gather_object([encode([texts[row] for row in shares[state.process_index]])])  # (n, D) of each process
        return np.concatenate(parts)[np.argsort(np.concatenate(shares))]

    return deduplicated(encode_share)


def removing_components(encode: Encode, num_components: int, components: np.ndarray | None = None) -> Encode:
    """Wrap `encode` so that `components`, or else the first ones of the vectors of each call, are removed.

    Tatoeba, PAWS-X and the Amazon reviews encode each language in a call of its own.
    """

    def encode_and_remove(texts: Sequence[str]) -> np.ndarray:
        vectors = encode(texts)
        fitted = fit_components(vectors, num_components) if components is None else components
        return remove_components(vectors, fitted)

    return encode_and_remove


def fit_components(vectors: np.ndarray, num_components: int) -> np.ndarray:
    """Compute the first right singular vectors of (N, D) vectors, as (num_components, D) float32."""
    if not 1 <= num_components <= min(vectors.shape):
        to = f"{len(vectors)} vectors of {vectors.shape[1]} dimensions; give 1 to {min(vectors.shape)}"
        raise InputError(f"cannot fit {num_components} principal components to {to}")
    vectors = vectors.astype(np.float64)
    _, columns = np.linalg.eigh(vectors.T @ vectors)  # ascending; cheaper than an SVD when N is large
    return columns[:, : -num_components - 1 : -1].T.astype(np.float32)


def remove_components(vectors: np.ndarray, components: np.ndarray) -> np.ndarray:
    """Subtract from (N, D) vectors their projections onto the orthonormal rows of `components` (n, D)."""
    return vectors - (vectors @ components.T) @ components


def fit_whitening(vectors: np.ndarray, num_components: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Compute the map that gives the first principal components of (N, D) vectors the variance of the last one of them.

    With all components every direction has the same variance: whitening. With fewer only the directions that stand out are
    scaled down: soft whitening. The axes and the total variance stay. The default is all components in which the vectors
    vary, which may be D - 1: vectors after a layer norm lie in a plane. More components than that are an `InputError`.

    Returns the mean, (D,), and the symmetric matrix, (D, D), float64, of `whiten`.
    """
    mean = vectors.mean(axis=0, dtype=np.float64)
    centered = vectors - mean
    variances, columns = np.linalg.eigh(centered.T @ centered / len(vectors))  # ascending
    variances, columns = variances[::-1], columns[:, ::-1]
    directions = min(len(vectors) - 1, int((variances > SMALLEST_VARIANCE * variances[0]).sum()))
    count = num_components or (directions if len(vectors) > len(variances) else len(variances))
    if not 1 <= count <= directions:
        vary = f"the {len(vectors):,} vectors vary in {directions} directions"
        fix = f"give more texts, or --whiten with at most {directions}"
        raise InputError(f"cannot whiten {count} components: {vary}; {fix}")
    scales = np.ones(len(variances))
    scales[:count] = np.sqrt(variances[count - 1] / variances[:count])
    scales *= np.sqrt(variances.sum() / (variances * scales**2).sum())
    return mean, (columns * scales) @ columns.T


def whiten(vectors: np.ndarray, mean: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Apply the map of `fit_whitening` to (N, D) vectors."""
    return (vectors - mean) @ matrix

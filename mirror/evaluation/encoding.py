"""Wrappers around an encoder's `encode`: several processes, cache, truncation, principal component removal.

Each wrapper takes an `encode` function and returns one. Knows texts and embeddings; knows nothing of tasks.
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
from mirror.evaluation.components import fit_components, removing_components
from mirror.evaluation.lines import LineFile
from mirror.modeling.embedding_cache import EmbeddingCache, fingerprint
from mirror.modeling.encoder import Encode, Encoder, deduplicated


PER_LANGUAGE = "per_language"
PACKAGES = ("torch", "transformers", "tokenizers", "sentence-transformers", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class EncodeSettings:
    """How texts are encoded and how the embeddings are transformed, in the order of application."""

    batch_size: int = 64
    cache_dir: str | None = None
    truncate_dim: int | None = None
    remove_components: int | None = None
    fit_on: str = PER_LANGUAGE  # or a file with one text per line


def make_encode(encoder: Encoder, settings: EncodeSettings, model_sha256: str | None = None) -> Encode:
    """Wrap the encoder's `encode` as requested by `settings`.

    Args:
        model_sha256: `fingerprint(encoder)`, if it is known.

    Raises:
        InputError: `truncate_dim` exceeds the dimension of the embeddings, or `fit_on` cannot be read or has too few
            texts for `remove_components`.
    """
    encode: Encode = shared_among_processes(partial(encoder.encode, batch_size=settings.batch_size))
    if settings.cache_dir:
        encode = EmbeddingCache(Path(settings.cache_dir) / (model_sha256 or fingerprint(encoder))[:16], encode)
    if settings.truncate_dim:
        if not 1 <= settings.truncate_dim <= encoder.dimension:
            raise InputError(
                f"--truncate_dim {settings.truncate_dim}: the vectors have {encoder.dimension} dimensions; "
                f"give at most {encoder.dimension}"
            )
        encode = truncated(encode, settings.truncate_dim)
    if settings.remove_components:
        encode = removing_components(encode, settings.remove_components, _fit_components(encode, settings))
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
    if truncate_dim := settings.truncate_dim or encoder.truncate_dim:
        described["truncate_dim"] = truncate_dim
    if settings.remove_components:
        described |= {"remove_components": settings.remove_components, "fit_on": settings.fit_on}
    return described


def truncated(encode: Encode, dimensions: int) -> Encode:
    """Keep only the first `dimensions` of each embedding, as for Matryoshka models."""
    return lambda texts: np.ascontiguousarray(encode(texts)[:, :dimensions])


def shared_among_processes(encode: Encode) -> Encode:
    """Split the texts among the processes of `accelerate launch`; every process gets the embeddings of all texts."""
    state = PartialState()
    if state.num_processes == 1:
        return encode

    def encode_share(texts: Sequence[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # balances the shares by length
        shares = [order[rank :: state.num_processes] for rank in range(state.num_processes)]
        parts = gather_object([encode([texts[row] for row in shares[state.process_index]])])  # (n, D) of each process
        return np.concatenate(parts)[np.argsort(np.concatenate(shares))]

    return deduplicated(encode_share)


def _fit_components(encode: Encode, settings: EncodeSettings) -> np.ndarray | None:
    if settings.fit_on == PER_LANGUAGE:
        return None
    texts = LineFile(settings.fit_on, ("text",)).read(Path())["text"]
    return fit_components(encode(list(dict.fromkeys(texts))), settings.remove_components)

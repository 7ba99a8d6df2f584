"""What stands between a model's `encode` and a task: several processes, the cache, shorter vectors, fewer components.

Each is an `encode` around an `encode`. Knows texts and vectors; knows no task.
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

from mirror.encoder import Encoder
from mirror.errors import InputError
from mirror.evaluation.cache import EmbeddingCache, fingerprint
from mirror.evaluation.components import fit_components, removing_components
from mirror.evaluation.lines import LineFile
from mirror.evaluation.task import Encode


PER_LANGUAGE = "per_language"
PACKAGES = ("torch", "transformers", "tokenizers", "sentence-transformers", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class EncodeSettings:
    """What is done with the vectors before a task sees them; in this order."""

    batch_size: int = 64
    cache_dir: str | None = None
    truncate_dim: int | None = None
    remove_components: int | None = None
    fit_on: str = PER_LANGUAGE  # or a file with one text a line


def make_encode(encoder: Encoder, settings: EncodeSettings) -> Encode:
    """The encoder's `encode` with all that `settings` ask for around it.

    Raises:
        InputError: vectors shorter than `truncate_dim`, or components that the texts of `fit_on` cannot give.
    """
    encode: Encode = shared_among_processes(partial(encoder.encode, batch_size=settings.batch_size))
    if settings.cache_dir:
        encode = EmbeddingCache(Path(settings.cache_dir) / fingerprint(encoder)[:16], encode)
    if settings.truncate_dim:
        if not 1 <= settings.truncate_dim <= encoder.dimension:
            raise InputError(
                f"--truncate_dim {settings.truncate_dim}: the vectors have {encoder.dimension} dimensions"
            )
        encode = truncated(encode, settings.truncate_dim)
    if settings.remove_components:
        encode = removing_components(encode, settings.remove_components, _components(encode, settings))
    return encode


def describe(name_or_path: str, encoder: Encoder, dtype: str, settings: EncodeSettings) -> dict:
    """The part of results.json that says how the vectors were made."""
    described = {
        "model_name_or_path": name_or_path,
        "pooling": encoder.pooling,
        "max_seq_length": encoder.max_seq_length,
        "dtype": dtype,
        "device": encoder.model.device.type,
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
    }
    if settings.truncate_dim:
        described["truncate_dim"] = settings.truncate_dim
    if settings.remove_components:
        described |= {"remove_components": settings.remove_components, "fit_on": settings.fit_on}
    return described


def truncated(encode: Encode, dimensions: int) -> Encode:
    """`encode`, of which only the first `dimensions` are kept (Matryoshka models are made for it)."""
    return lambda texts: np.ascontiguousarray(encode(texts)[:, :dimensions])


def shared_among_processes(encode: Encode) -> Encode:
    """`encode` with each process of `accelerate launch` doing its share; every one of them gets all the vectors."""
    state = PartialState()
    if state.num_processes == 1:
        return encode

    def encode_share(texts: Sequence[str]) -> np.ndarray:
        unique = sorted(dict.fromkeys(texts), key=len)  # by length, so that every process has as much to do
        shares = [unique[rank :: state.num_processes] for rank in range(state.num_processes)]
        parts = gather_object([encode(shares[state.process_index])])  # one (n, D) of each process, in their order
        row_of = {text: row for row, text in enumerate(text for share in shares for text in share)}
        return np.concatenate(parts)[[row_of[text] for text in texts]]

    return encode_share


def _components(encode: Encode, settings: EncodeSettings) -> np.ndarray | None:
    if settings.fit_on == PER_LANGUAGE:
        return None
    texts = LineFile(settings.fit_on, ("text",)).read(Path())["text"]
    return fit_components(encode(list(dict.fromkeys(texts))), settings.remove_components)

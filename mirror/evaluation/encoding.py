"""From an encoder to the `encode` function of a scoring run, a cache of embeddings, and linear maps fitted on them.

`make_encode` wraps `encode` for several processes, a cache, truncation and the removal of principal components (CMLM Table 6).
The vectors are not centered before the decomposition, which CMLM leaves open, so the first component is close to the mean
vector, which encodes the language of a text. Whitening (Su et al. 2021; Huang et al. 2021) centers them.

The cache is on disk: a text that a model has encoded is not encoded again, in this run or a later one. The folder of a
model is named by a hash of what was loaded (weights, configuration, tokenizer, modules after pooling), pooling and
length, so a changed checkpoint never gets the embeddings of the old one. A folder holds shards, written atomically: a
crash loses at most the current shard. A damaged shard is detected by its checksum, removed, and computed again.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from mirror.common.errors import InputError
from mirror.common.files import atomic_path, file_digest
from mirror.data.cache import tokenizer_state
from mirror.evaluation.task import LineFile
from mirror.modeling.encoder import Encode, EncodeByRole, Encoder, deduplicated


PACKAGES = ("torch", "transformers", "tokenizers", "sentence-transformers", "numpy", "scipy", "scikit-learn")
SMALLEST_VARIANCE = 1e-9  # of a direction, as a share of the largest; float32 vectors do not resolve less
logger = logging.getLogger(__name__)


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
    return encoder.by_role(lambda each: _wrap(each, settings, model_sha256 if each.prompt == encoder.prompt else None))


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
    described |= {"prompt": encoder.prompt} if encoder.prompt else {}
    prompts = {f"{role}_prompt": prompt for role, prompt in encoder.role_prompts.items()}
    described |= {name: prompt for name, prompt in prompts.items() if prompt != encoder.prompt}
    if truncate_dim := settings.truncate_dim or encoder.truncate_dim:
        described["truncate_dim"] = truncate_dim
    if settings.remove_components:
        described |= {"remove_components": settings.remove_components, "fit_on": settings.fit_on}
        described |= {"fit_on_sha256": file_digest(settings.fit_on)} if settings.fit_on != "per_language" else {}
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


def fingerprint(encoder: Encoder) -> str:
    """Return the hex digest of everything that an embedding depends on besides its text.

    Batch size and hardware are not included. They change a float32 embedding by some 1e-6, a bfloat16 one by 1e-2.
    """
    digest = hashlib.sha256()
    config = {key: value for key, value in encoder.model.config.to_dict().items() if not key.startswith("_")}
    described = (sorted(config.items(), key=str), encoder.head, encoder.pooling, encoder.max_seq_length)
    described += tuple(value for value in (encoder.prompt, encoder.truncate_dim) if value)
    described += () if encoder.include_prompt or not encoder.prompt else ("prompt left out",)
    digest.update(repr(described).encode())
    digest.update(tokenizer_state(encoder.tokenizer).encode())
    for part in (encoder.model, encoder.head):
        for name, tensor in sorted(part.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class EmbeddingCache:
    """Calls another `encode` only for texts that are not in its folder. An `InputError`: the folder cannot be created.

    >>> encode = EmbeddingCache(Path("out/embeddings") / fingerprint(encoder)[:16], encoder.encode)
    """

    def __init__(self, folder: Path, encode: Encode, shard_texts: int = 8192):
        self.folder, self.encode, self.shard_texts = folder, encode, shard_texts
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder} cannot be made: {error.strerror}; choose another --cache_dir") from error
        self.places: dict[bytes, tuple[Path, int]] = {}  # digest of a text -> shard and row
        for shard in sorted(folder.glob("*.npz")):
            if (digests := _read(shard, "digests")) is not None:
                self.places |= {digest.tobytes(): (shard, row) for row, digest in enumerate(digests)}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return (N, D) float32, as from the wrapped `encode`."""
        return deduplicated(self._encode_unique)(texts) if texts else self.encode(texts)

    def _encode_unique(self, texts: Sequence[str]) -> np.ndarray:
        unique = {hashlib.sha1(text.encode("utf-8", "surrogatepass")).digest(): text for text in texts}
        row_of = {key: row for row, key in enumerate(unique)}
        vectors: np.ndarray | None = None  # (U, D), filled in place, so that a large dictionary is in memory once
        for keys, found in self._stored_and_new(unique):
            if vectors is None:
                vectors = np.empty((len(unique), found.shape[1]), dtype=np.float32)
            vectors[[row_of[key] for key in keys]] = found
        return vectors

    def _stored_and_new(self, unique: dict[bytes, str]) -> Iterator[tuple[list[bytes], np.ndarray]]:
        """Yield digests and their vectors, shard by shard: first those on disk, then the rest, which is stored."""
        wanted: dict[Path, list[bytes]] = {}
        for key in unique.keys() & self.places.keys():
            wanted.setdefault(self.places[key][0], []).append(key)
        left = dict(unique)
        for shard, keys in wanted.items():
            stored = _read(shard, "vectors")
            if stored is not None:
                yield keys, stored[[self.places[key][1] for key in keys]]
                for key in keys:
                    del left[key]
        # By length, so that the batches of a shard have little padding.
        keys = sorted(left, key=lambda key: len(left[key]))
        for start in range(0, len(keys), self.shard_texts):
            chunk = keys[start : start + self.shard_texts]
            made = self.encode([left[key] for key in chunk])
            self._store(chunk, made)
            yield chunk, made

    def _store(self, keys: list[bytes], vectors: np.ndarray) -> None:
        digests = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1)  # (n, 20)
        shard = self.folder / f"{hashlib.sha1(digests.tobytes()).hexdigest()}.npz"
        try:
            with atomic_path(shard) as aside, aside.open("wb") as file:
                np.savez(file, digests=digests, vectors=vectors)
        except OSError as error:  # a full disk costs the next run time but does not stop this one
            logger.warning("%s cannot be written (%s); these embeddings are not cached", shard, error)
        else:
            self.places |= {digest: (shard, row) for row, digest in enumerate(keys)}


def _read(shard: Path, member: str) -> np.ndarray | None:
    """Return an array of a shard, verified by the checksum of the zip format. None if it cannot be read now, or is damaged.

    A damaged shard is removed. One that the file system does not give may be whole, and stays.
    """
    try:
        with np.load(shard) as arrays:
            return arrays[member]
    except OSError as error:
        logger.warning("%s cannot be read (%s); its texts are encoded again", shard, error)
        return None
    except (zipfile.BadZipFile, EOFError, KeyError, ValueError) as error:
        logger.warning("%s is damaged (%s); its texts are encoded again", shard, error)
        shard.unlink(missing_ok=True)
        return None

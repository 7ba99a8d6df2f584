"""Cache of embeddings on disk. A text that a model has encoded is not encoded again, in this run or a later one.

The folder of a model is named by a hash of what was loaded (weights, configuration, tokenizer, modules after pooling), pooling and
length, so a changed checkpoint never gets the embeddings of the old one. A folder holds shards, written atomically: a crash loses at
most the current shard. A damaged shard is detected by its checksum, removed, and computed again.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from mirror.common.errors import InputError
from mirror.common.files import atomic_path
from mirror.data.cache import tokenizer_state
from mirror.modeling.encoder import Encode, Encoder, deduplicated


logger = logging.getLogger(__name__)


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

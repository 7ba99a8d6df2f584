"""Embeddings on disk: a text that a model has encoded once is not encoded again, in this run or a later one.

The folder of a model is named by what was loaded (weights, configuration, tokenizer, modules after pooling), pooling and
length, so a changed checkpoint never meets the vectors of the old one. A folder holds shards, each written aside and
renamed, so a crash loses at most the shard in work; a damaged shard is noticed by its checksum, removed and made again.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from mirror.encoder import Encoder
from mirror.evaluation.task import Encode
from mirror.files import written_aside


logger = logging.getLogger(__name__)

SHARD_TEXTS = 8192
_DAMAGED = (zipfile.BadZipFile, EOFError, KeyError, ValueError, OSError)


def fingerprint(encoder: Encoder) -> str:
    """Hex digest of all that a vector depends on besides its text.

    Batch size and hardware are not in it: they move a float32 vector by some 1e-6, a bfloat16 one by 1e-2.
    """
    digest = hashlib.sha256()
    config = {key: value for key, value in encoder.model.config.to_dict().items() if not key.startswith("_")}
    described = (sorted(config.items(), key=str), encoder.head, encoder.pooling, encoder.max_seq_length)
    digest.update(repr(described).encode())
    digest.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    for part in (encoder.model, encoder.head):
        for name, tensor in sorted(part.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class EmbeddingCache:
    """An `encode` that asks another `encode` only for texts that its folder does not hold.

    >>> encode = EmbeddingCache(Path("out/embeddings") / fingerprint(encoder)[:16], encoder.encode)
    """

    def __init__(self, folder: Path, encode: Encode, shard_texts: int = SHARD_TEXTS):
        self.folder, self.encode, self.shard_texts = folder, encode, shard_texts
        folder.mkdir(parents=True, exist_ok=True)
        self.places: dict[bytes, tuple[Path, int]] = {}  # digest of a text -> shard and row
        for shard in sorted(folder.glob("*.npz")):
            digests = _read(shard, "digests")
            if digests is not None:
                self._remember(shard, digests)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """(N, D) float32, as from the wrapped `encode`."""
        if not texts:
            return self.encode(texts)
        unique = {_digest(text): text for text in texts}
        row_of = {key: row for row, key in enumerate(unique)}
        vectors: np.ndarray | None = None  # (U, D), filled in place: a large dictionary is in memory once
        for keys, found in self._stored_and_new(unique):
            if vectors is None:
                vectors = np.empty((len(unique), found.shape[1]), dtype=np.float32)
            vectors[[row_of[key] for key in keys]] = found
        return vectors if len(unique) == len(texts) else vectors[[row_of[_digest(text)] for text in texts]]

    def _stored_and_new(self, unique: dict[bytes, str]) -> Iterator[tuple[list[bytes], np.ndarray]]:
        """Digests and their vectors, shard by shard: first what is on disk, then the rest, stored as it is made."""
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
        keys = sorted(left, key=lambda key: len(left[key]))  # alike in length, so that a shard's batches pad little
        for start in range(0, len(keys), self.shard_texts):
            chunk = keys[start : start + self.shard_texts]
            made = self.encode([left[key] for key in chunk])
            self._store(chunk, made)
            yield chunk, made

    def _store(self, keys: list[bytes], vectors: np.ndarray) -> None:
        digests = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1)  # (n, 20)
        shard = self.folder / f"{hashlib.sha1(digests.tobytes()).hexdigest()}.npz"
        try:
            with written_aside(shard) as aside, aside.open("wb") as file:
                np.savez(file, digests=digests, vectors=vectors)
        except OSError as error:  # a full disk costs the next run time, and this one nothing
            logger.warning("%s cannot be written (%s); these vectors are not kept", shard, error)
            return
        self._remember(shard, digests)

    def _remember(self, shard: Path, digests: np.ndarray) -> None:
        for row, digest in enumerate(digests):
            self.places[digest.tobytes()] = (shard, row)


def _digest(text: str) -> bytes:
    return hashlib.sha1(text.encode("utf-8", "surrogatepass")).digest()


def _read(shard: Path, member: str) -> np.ndarray | None:
    """An array of a shard, its checksum verified by the zip format; a damaged shard is removed and gives None."""
    try:
        with np.load(shard) as arrays:
            return arrays[member]
    except _DAMAGED as error:
        logger.warning("%s is damaged (%s); its texts are encoded again", shard, error)
        shard.unlink(missing_ok=True)
        return None

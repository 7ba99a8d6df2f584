"""A folder of parquet shards with one vector for every row of the input. Knows rows and vectors; knows no model.

    OUT/_manifest.json          what all vectors of the folder have in common; counts, once it is whole
    OUT/shard-000000.parquet    row (int64), vector (a list of D numbers), scale (with int8), text (on request)
    OUT/shard-000001.parquet    the next `shard_rows` rows, and so on; only the last may be shorter

A shard is written aside and renamed, so it is whole or not there: after a crash the same command goes on where it stopped.
Names that start with an underscore are passed over by the engines that read a folder of parquet files.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, IterableDataset, concatenate_datasets
from tqdm.auto import tqdm

from mirror.data import DataSettings, open_parts, pick_columns
from mirror.errors import InputError
from mirror.files import write_whole, written_aside


logger = logging.getLogger(__name__)

VectorType = Literal["float32", "float16", "int8"]
MANIFEST = "_manifest.json"
DIGEST = b"mirror_texts_sha256"  # in the metadata of a shard: the texts that its vectors are of


@dataclass(frozen=True)
class ShardFolder:
    """The shards of one model's vectors of one input.

    Args:
        common: what all vectors share (model, pooling, precision, ...); a folder where any of it differs is refused.
        shard_rows: rows of a shard.
        vector_type: `float32`; `float16`, half the size; `int8`, a quarter (see `quantise`).
        keep_text: also write the column `text`.
    """

    path: Path
    common: dict[str, str | int]
    shard_rows: int
    vector_type: VectorType = "float32"
    keep_text: bool = False

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """What the manifest says of every vector."""
        shape = {"vector_type": self.vector_type, "shard_rows": self.shard_rows, "keep_text": self.keep_text}
        return self.common | shape

    def shard(self, number: int) -> Path:
        return self.path / f"shard-{number:06d}.parquet"

    def open(self) -> None:
        """Begin the folder, or check that what is in it was begun alike; clears what a crash left aside.

        Raises:
            InputError: the folder cannot be made, holds something else, or holds vectors of another kind.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--output_dir {self.path} cannot be a folder: {error.strerror}") from error
        if (self.path / MANIFEST).exists():
            self._check_manifest()
        elif any(self.path.iterdir()):
            raise InputError(f"--output_dir {self.path} holds other files; give a new or an empty folder")
        else:
            self._write_manifest({})
        for left_over in self.path.glob("_shard-*.tmp"):
            left_over.unlink()

    def holds(self, number: int, texts: Sequence[str]) -> bool:
        """Whether shard `number` is there. A damaged one is not: it will be written again.

        Raises:
            InputError: it holds vectors of other texts, so the input is not the one that the folder was begun with.
        """
        shard = self.shard(number)
        if not shard.exists():
            return False
        try:
            stored = pq.read_schema(shard).metadata[DIGEST]
        except (pa.ArrowException, OSError) as error:
            logger.warning("%s is damaged (%s); its rows are encoded again", shard, " ".join(str(error).split())[:120])
            return False
        if stored != _digest(texts):
            raise InputError(f"{shard} holds vectors of other texts: the input has changed; use another --output_dir")
        return True

    def write(self, number: int, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Write shard `number`: (N, D) float32 vectors of its N texts, in their order."""
        columns = {"row": pa.array(np.arange(len(texts)) + number * self.shard_rows, pa.int64())}
        columns |= _vector_columns(vectors, self.vector_type)
        if self.keep_text:
            columns["text"] = pa.array(texts, pa.string())
        table = pa.table(columns).replace_schema_metadata({DIGEST: _digest(texts)})
        with written_aside(self.shard(number)) as aside:
            pq.write_table(table, aside, use_dictionary=False)  # vectors hardly repeat

    def finish(self, num_rows: int) -> None:
        """Check that the shards are those of `num_rows` rows, none missing and none too many, and write the counts down.

        Raises:
            InputError: a shard is left over from a longer input.
            RuntimeError: a shard is missing or short.
        """
        expected = {
            self.shard(number): min(self.shard_rows, num_rows - start)
            for number, start in enumerate(range(0, num_rows, self.shard_rows))
        }
        found = {shard: pq.read_metadata(shard).num_rows for shard in self.path.glob("shard-*.parquet")}
        if extra := sorted(found.keys() - expected.keys()):
            raise InputError(f"{extra[0]} is beyond the {num_rows:,} rows of the input; use another --output_dir")
        if found != expected:
            wrong = min(shard for shard in expected if found.get(shard) != expected[shard])
            raise RuntimeError(f"{wrong} has {found.get(wrong, 0):,} rows, expected {expected[wrong]:,}")
        self._write_manifest({"num_rows": num_rows, "num_shards": len(expected)})

    def _check_manifest(self) -> None:
        stored = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        for key, value in self.settings.items():
            if stored.get(key) != value:
                raise InputError(
                    f"--output_dir {self.path} holds vectors of {key} {stored.get(key)}, not {value}; "
                    "use another folder, or remove it to start over"
                )

    def _write_manifest(self, counts: dict[str, int]) -> None:
        write_whole(self.path / MANIFEST, json.dumps(self.settings | counts, indent=2) + "\n")


def read_rows(settings: DataSettings) -> Dataset | IterableDataset:
    """All rows of the input as the column `text`, in their order, blank and repeated ones too.

    Raises:
        InputError: a file that is missing, empty, not text or without the column.
    """
    return concatenate_datasets([pick_columns(part, name, settings) for name, part in open_parts(settings)])


def fill(
    folder: ShardFolder,
    rows: Dataset | IterableDataset,
    encode: Callable[[Sequence[str]], np.ndarray],
    process: int = 0,
    num_processes: int = 1,
) -> int:
    """Encode the rows of every shard that is this process's and not there yet; one shard's vectors are in memory at once.

    Every process reads all rows, which costs little beside encoding them, and takes each `num_processes`-th shard.

    Args:
        rows: with the column `text`.

    Returns:
        The number of rows of the input.

    Raises:
        InputError: there is no row, or a shard holds other texts.
    """
    total = len(rows) if isinstance(rows, Dataset) else None
    num_rows = 0
    with tqdm(total=total, desc="rows", unit="row", unit_scale=True, disable=None if process == 0 else True) as bar:
        for number, batch in enumerate(rows.iter(batch_size=folder.shard_rows)):
            texts = batch["text"]
            if number % num_processes == process and not folder.holds(number, texts):
                folder.write(number, texts, encode(texts))
            num_rows += len(texts)
            bar.update(len(texts))
    if not num_rows:
        raise InputError("the input has no rows")
    return num_rows


def quantise(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight bits a number: vector = int8 vector * scale, to within half a scale in each dimension.

    The scale is each vector's own, its largest magnitude / 127, so shards need nothing in common, and the cosine of two
    int8 vectors needs no scale at all.

    Args:
        vectors: (N, D) float32

    Returns:
        (N, D) int8, and (N,) float32 scales, 0 for a vector of zeros.
    """
    scale = np.abs(vectors).max(axis=1) / 127  # (N,)
    steps = vectors / np.where(scale > 0, scale, 1)[:, None]
    return np.rint(steps).astype(np.int8), scale.astype(np.float32)


def _vector_columns(vectors: np.ndarray, vector_type: VectorType) -> dict[str, pa.Array]:
    columns = {}
    if vector_type == "int8":
        vectors, scale = quantise(vectors)
        columns["scale"] = pa.array(scale)
    elif vector_type == "float16":
        limit = np.finfo(np.float16).max
        if np.abs(vectors).max() > limit:
            raise InputError(f"a vector has a number beyond {limit:.0f}, float16's largest; use --vector_type float32")
        vectors = vectors.astype(np.float16)
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return {"vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])} | columns


def _digest(texts: Sequence[str]) -> bytes:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest().encode()

"""A folder of parquet shards with one embedding per row of the input. Knows rows and vectors; knows nothing of models.

    OUT/_manifest.json          settings that all vectors share; the numbers of rows and shards, once complete
    OUT/shard-000000.parquet    row (int64), vector (list of numbers), scale (with int8), text (with keep_text)
    OUT/shard-000001.parquet    the next `shard_rows` rows, and so on; only the last shard may be shorter

Shards are written atomically, so after a crash the same command continues with the missing shards. Programs that
read a folder of parquet files ignore names that start with an underscore.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, IterableDataset, concatenate_datasets
from tqdm.auto import tqdm

from mirror.common.atomic_files import atomic_path, atomic_write_text, make_output_folder
from mirror.common.errors import InputError, library_errors, one_line
from mirror.data.corpus import CorpusSource, open_parts, pick_columns, read_batches
from mirror.tools.vector_types import NEIGHBORS, VectorType, encode_vectors, recall


logger = logging.getLogger(__name__)

MANIFEST = "_manifest.json"
DIGEST = b"mirror_texts_sha256"  # key in the metadata of a shard: hash of its texts


@dataclass(frozen=True)
class ShardFolder:
    """The shards with one model's embeddings of one input.

    Args:
        path: the folder.
        common: settings that all vectors share (model, pooling, precision, ...); a folder with others is refused.
        shard_rows: rows per shard.
        vector_type: `float32`; `float16`, half the size; `int8`, a quarter (see `quantise`); or `binary`, a 32nd: the signs,
            eight to a byte (uint8), as in faiss's binary indexes and the `ubinary` of sentence-transformers.
        keep_text: also write the column `text`.
    """

    path: Path
    common: dict[str, str | int]
    shard_rows: int
    vector_type: VectorType = "float32"
    keep_text: bool = False

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """The settings in the manifest, which hold for every vector."""
        shape = {"vector_type": self.vector_type, "shard_rows": self.shard_rows, "keep_text": self.keep_text}
        return self.common | shape

    def shard(self, number: int) -> Path:
        return self.path / f"shard-{number:06d}.parquet"

    def open(self) -> None:
        """Create the folder, or check that it was created with the same settings; delete temporary files of a crash.

        Raises:
            InputError: the folder cannot be created, contains other files, or vectors with other settings.
        """
        make_output_folder(self.path)
        left = {*self.path.glob("_shard-*.tmp"), *self.path.glob(f"_{MANIFEST}.*.tmp")}  # by a crash
        if (self.path / MANIFEST).exists():
            self._check_manifest()
        elif set(self.path.iterdir()) - left:
            raise InputError(f"--output_dir {self.path} contains other files; give a new or an empty folder")
        else:
            self._write_manifest({})
        for temporary in left:
            temporary.unlink()

    def holds(self, number: int, texts: Sequence[str]) -> bool:
        """Whether shard `number` exists. A damaged shard counts as missing and is written again.

        Raises:
            InputError: the shard has vectors of other texts: the input is not the one that the folder was created for.
        """
        shard = self.shard(number)
        if not shard.exists():
            return False
        try:
            stored = pq.read_schema(shard).metadata[DIGEST]
        except (pa.ArrowException, OSError) as error:
            logger.warning("%s is damaged (%s); its rows are encoded again", shard, one_line(error, 120))
            return False
        if stored != _digest(texts):
            raise InputError(f"{shard} holds vectors of other texts: the input has changed; use another --output_dir")
        return True

    def write(self, number: int, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Write shard `number` atomically.

        Args:
            texts: the N texts of the shard, in input order.
            vectors: their embeddings, (N, D) float32.
        """
        columns = {"row": pa.array(np.arange(len(texts)) + number * self.shard_rows, pa.int64())}
        columns |= _vector_columns(vectors, self.vector_type)
        if self.keep_text:
            columns["text"] = pa.array(texts, pa.string())
        table = pa.table(columns).replace_schema_metadata({DIGEST: _digest(texts)})
        with atomic_path(self.shard(number)) as temporary:
            pq.write_table(table, temporary, use_dictionary=False)  # vectors rarely repeat

    def finish(self, num_rows: int) -> None:
        """Check that the shards hold exactly `num_rows` rows, and write the counts to the manifest.

        Raises:
            InputError: there is a shard from a longer input.
            RuntimeError: a shard is missing or too short.
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
        with library_errors(str(self.path / MANIFEST)):
            stored = dict(json.loads((self.path / MANIFEST).read_text(encoding="utf-8")))
        for key, value in self.settings.items():
            if stored.get(key) != value:
                raise InputError(
                    f"--output_dir {self.path} holds vectors with {key} {stored.get(key)}, not {value}; "
                    "use another folder, or delete it to start over"
                )

    def _write_manifest(self, counts: dict[str, int]) -> None:
        atomic_write_text(self.path / MANIFEST, json.dumps(self.settings | counts, indent=2) + "\n")


def read_rows(source: CorpusSource) -> Dataset | IterableDataset:
    """All rows of the input as the column `text`, in input order, including blank and duplicate rows.

    Raises:
        InputError: a file is missing, empty, not text, or does not have the column.
    """
    return concatenate_datasets([pick_columns(part, name, source, strip=False) for name, part in open_parts(source)])


def fill(
    folder: ShardFolder,
    rows: Dataset | IterableDataset,
    encode: Callable[[Sequence[str]], np.ndarray],
    process: int = 0,
    num_processes: int = 1,
) -> int:
    """Encode the missing shards of this process, with one shard in memory at a time.

    Every process reads all rows, which is cheap compared to encoding, and encodes every `num_processes`-th shard.

    Args:
        rows: dataset with the column `text`.
        encode: texts to embeddings, (N, D) float32.
        process: index of this process.

    Returns:
        The number of rows of the input.

    Raises:
        InputError: the input is empty, or an existing shard has vectors of other texts.
    """
    total = len(rows) if isinstance(rows, Dataset) else None
    num_rows = 0
    with tqdm(total=total, desc="rows", unit="row", unit_scale=True, disable=None if process == 0 else True) as bar:
        for number, batch in enumerate(read_batches(rows, folder.shard_rows, "the input")):
            texts = batch["text"]
            if number % num_processes == process and not folder.holds(number, texts):
                vectors = encode(texts)
                folder.write(number, texts, vectors)
                if number == 0 and folder.vector_type != "float32":  # now, while a long run can still be stopped
                    _log_recall(vectors, folder.vector_type)
            num_rows += len(texts)
            bar.update(len(texts))
    if not num_rows:
        raise InputError("the input has no rows")
    return num_rows


def _log_recall(vectors: np.ndarray, vector_type: VectorType) -> None:
    share, entries = recall(vectors, vector_type)
    if not np.isnan(share):
        logger.info(
            "%s vectors: recall@%d %.3f against cosine in float32, among %s texts",
            vector_type,
            NEIGHBORS,
            share,
            f"{entries:,}",
        )


def _vector_columns(vectors: np.ndarray, vector_type: VectorType) -> dict[str, pa.Array]:
    stored, scale = encode_vectors(vectors, vector_type)
    flat = pa.array(np.ascontiguousarray(stored).reshape(-1))
    columns = {"vector": pa.FixedSizeListArray.from_arrays(flat, stored.shape[1])}
    return columns if scale is None else columns | {"scale": pa.array(scale)}


def _digest(texts: Sequence[str]) -> bytes:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest().encode()

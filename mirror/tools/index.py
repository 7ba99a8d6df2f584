"""An index of texts on disk for `mirror-search --index`: a LanceDB table of texts, ids, columns and vectors.

The table is written and searched in blocks, so millions of texts need little memory. From `INDEXED_ROWS` on a search
reads only the parts of the table that are near the query, and may miss a match. How many are found is measured on
texts of the table itself when the index is built (`recall`).
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash
from tqdm.auto import tqdm

from mirror.common.errors import InputError, library_errors
from mirror.common.files import StoredWork, lock_output_dir, make_output_folder
from mirror.data.cleaning import even_places


if TYPE_CHECKING:  # they import torch, and wrong texts are an error before that
    from datasets import Dataset

    from mirror.modeling.encoder import Encode


logger = logging.getLogger(__name__)

STATE, TABLE, VECTOR = "index.json", "texts", "vector"
BLOCK = 16_384  # texts that are encoded and stored at once
INDEXED_ROWS = 100_000  # with fewer, a query is compared with every vector
REFINED = 4  # candidates for each match, compared exactly
# Of ten million texts, 32 parts hold .82 of the ten nearest, 249 parts .99.
PROBES, ROWS_PER_PROBE = 32, 40_000
# With more rows k-means learns the parts from an eighth of LanceDB's sample in 20 rounds, not 50. Of ten million texts that
# took 22 minutes; with LanceDB's own settings it had not ended after 24.
MANY_ROWS, FASTER = 1_000_000, {"sample_rate": 32, "max_iterations": 20}
SAMPLE, DEPTH = 100, 10  # texts of which the share of the ten nearest that are found is measured


def is_index(name: str) -> bool:
    """Return whether a path is a folder that `build_index` made or began."""
    return StoredWork(Path(name) / STATE, {}).stored() is not None


class TextIndex:
    """A finished index.

    Raises an `InputError` if LanceDB is not installed, or the index is not complete or of another encoder.
    """

    def __init__(self, folder: str | Path, encoder: str):
        stored = StoredWork(Path(folder) / STATE, {}).stored()
        if stored is None or not stored.get("rows"):
            raise InputError(f"{folder} is no complete index; build it again with the same --index")
        if stored["identity"]["encoder"] != encoder:
            fix = "search with that one and its prompt, or build a new index"
            raise InputError(f"{folder} was built with another encoder; {fix}")
        self.rows, self.table = stored["rows"], _connect(folder).open_table(TABLE)
        self.probes = max(PROBES, self.rows // ROWS_PER_PROBE)  # parts of the table that a search reads

    def search(self, vectors: np.ndarray, k: int) -> Iterator[list[tuple[float, dict]]]:
        """Yield the best `k` rows, (cosine, columns), for each of (Q, D) query vectors."""
        from mirror.common.vectors import unit_length

        columns = [name for name in self.table.schema.names if name != VECTOR]
        for vector in unit_length(vectors):
            query = self.table.search(vector, vector_column_name=VECTOR).distance_type("cosine").limit(k)
            query = query.nprobes(self.probes).refine_factor(REFINED)
            found = query.select([*columns, "_distance"]).to_list()
            yield [(1 - row.pop("_distance"), row) for row in found]


def build_index(folder: str | Path, rows: Dataset, encode: Encode, encoder: str) -> None:
    """Store the rows of `text` and other columns with their vectors, or complete what an earlier call began.

    Args:
        encode: gives the vectors of the column `text`.
        encoder: fingerprint of the encoder (`mirror.evaluation.encoding.fingerprint`).

    Raises an `InputError` if the folder holds an index of other texts or of another encoder.
    """
    from mirror.common.vectors import unit_length

    if odd := [name for name in rows.column_names if "." in name]:
        raise InputError(f"--index: the column {odd[0].partition(' ')[2]} has a dot in its name; rename it")
    folder = make_output_folder(folder, "--index")
    work = StoredWork(folder / STATE, {"encoder": encoder, "texts": _digest(rows), "columns": rows.column_names})
    if work.stored() is not None and work.content() is None:
        differ = f"other inputs ({', '.join(work.differences())})"
        raise InputError(f"--index {folder} was built of {differ}; choose another folder, or delete it")
    if (work.content() or {}).get("rows"):
        return
    if work.stored() is None and any(path.name != "_lock" for path in folder.iterdir()):
        raise InputError(f"--index {folder} is not empty and holds no index; choose another folder")
    with lock_output_dir(folder), library_errors(f"--index {folder}"):
        database = _connect(folder)
        work.save({})
        table = database.open_table(TABLE) if TABLE in database.list_tables().tables else None
        start = table.count_rows() if table else 0  # every block is stored whole or not at all
        with tqdm(total=len(rows), initial=start, unit=" texts", desc="Indexing") as bar:
            while start < len(rows):
                block = rows.select(range(start, min(start + BLOCK, len(rows)))).with_format("arrow")[:]
                vectors = unit_length(encode(block.column("text").to_pylist()))
                lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
                block = block.append_column(VECTOR, lists)
                table = table.add(block) and table if table else database.create_table(TABLE, block)
                start += len(vectors)
                bar.update(len(vectors))
        recall = 1.0
        if len(rows) >= INDEXED_ROWS:
            # IvfSq finds more than IvfPq and is built in a seventh of the time (docs/search.md).
            from lancedb.index import IvfSq

            training = FASTER if len(rows) >= MANY_ROWS else {}
            table.create_index(VECTOR, config=IvfSq(distance_type="cosine", **training))
        work.save({"rows": len(rows)})
        if len(rows) >= INDEXED_ROWS:
            recall = _recall(TextIndex(folder, encoder))
            work.save({"rows": len(rows), f"recall@{DEPTH}": recall})
    logger.warning("%s: %s texts, recall@%d %.3f", folder, f"{len(rows):,}", DEPTH, recall)


def _connect(folder: str | Path):
    if importlib.util.find_spec("lancedb") is None:
        raise InputError("--index needs LanceDB: pip install 'mirror-encoders[index]'")
    import lancedb

    return lancedb.connect(folder)


def _digest(rows: Dataset) -> str:
    """Return a digest of all cells, whose order matters."""
    found = xxhash.xxh3_128()
    for batch in rows.iter(10_000):
        for column in batch.values():
            for cell in column:
                text = cell.encode("utf-8", "surrogatepass")
                found.update(len(text).to_bytes(8, "little") + text)
    return found.hexdigest()


def _recall(index: TextIndex) -> float:
    """Return the share of the ten nearest texts that a search finds, for texts from everywhere in the table."""
    places = even_places(index.rows, SAMPLE)
    vectors = np.stack([row[VECTOR] for row in index.table.take_offsets(places).select([VECTOR]).to_list()])
    nearest = np.full((len(vectors), DEPTH + 1), -np.inf, np.float32)  # each text finds itself
    for block in index.table.search().select([VECTOR]).to_batches():
        cosines = vectors @ block[VECTOR].flatten().to_numpy().reshape(len(block), -1).T
        nearest = np.partition(np.hstack([nearest, cosines]), -DEPTH - 1)[:, -DEPTH - 1 :]
    # By cosines and not by texts, because equal texts are as good as each other. LanceDB rounds them otherwise.
    found = [
        sum(cosine >= least - 1e-5 for cosine, _ in rows)
        for rows, least in zip(index.search(vectors, DEPTH + 1), nearest.min(axis=1), strict=True)
    ]
    return (float(np.mean(found)) - 1) / DEPTH

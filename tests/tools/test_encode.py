"""Shards hold every row once, after crashes too; stored types by hand, and their recall against a plain double loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.dataset
import pytest
from datasets import Dataset, IterableDataset

from mirror.common.errors import InputError
from mirror.tools.encode import ShardFolder, encode_vectors, fill, recall


def stored(folder: Path) -> dict[str, np.ndarray | list]:
    """Read the columns of all shards in the order of their names, like any engine that reads a parquet folder."""
    table = pyarrow.dataset.dataset(folder, format="parquet").to_table()
    columns = {name: table[name].to_pylist() for name in table.column_names}
    return columns | {"vector": np.array(columns["vector"], dtype=np.float32)}


def digits(texts: list[str]) -> np.ndarray:
    """A fake encoder: the vector of "17" is (17, -17, 1)."""
    return np.array([[int(text), -int(text), 1] for text in texts], dtype=np.float32)


def numbered(count: int) -> Dataset:
    return Dataset.from_dict({"text": [str(number) for number in range(count)]})


@pytest.mark.parametrize("streaming", [False, True])
def test_after_a_crash_no_row_is_missing_or_duplicated(tmp_path, streaming):
    rows = numbered(95).to_iterable_dataset() if streaming else numbered(95)
    folder = ShardFolder(tmp_path / "out", {"model": "digits"}, shard_rows=10)
    encoded: list[str] = []

    def encode(texts, limit):
        if len(encoded) >= limit:
            raise KeyboardInterrupt
        encoded.extend(texts)
        return digits(texts)

    folder.open()
    with pytest.raises(KeyboardInterrupt):
        fill(folder, rows, lambda texts: encode(texts, 40))
    assert len(list(folder.path.glob("shard-*"))) == 4
    (folder.path / "_shard-000004.77.tmp").write_bytes(b"half a shard")
    folder.shard(2).write_bytes(folder.shard(2).read_bytes()[:200])  # as after a power failure

    folder.open()
    assert not (folder.path / "_shard-000004.77.tmp").exists()
    encoded.clear()
    folder.finish(fill(folder, rows, lambda texts: encode(texts, 1000)))
    assert encoded == [str(number) for number in (*range(20, 30), *range(40, 95))]
    columns = stored(folder.path)
    assert columns["row"] == list(range(95))
    np.testing.assert_array_equal(columns["vector"], digits([str(number) for number in range(95)]))


def test_processes_share_the_shards_and_write_the_same_rows(tmp_path):
    folder = ShardFolder(tmp_path / "out", {"model": "digits"}, shard_rows=10)
    folder.open()
    shares: list[list[str]] = [[], [], []]
    for process, share in enumerate(shares):
        assert fill(folder, numbered(95), lambda t, share=share: share.extend(t) or digits(t), process, 3) == 95
    assert [len(share) for share in shares] == [35, 30, 30]
    folder.finish(95)
    np.testing.assert_array_equal(stored(folder.path)["vector"][:, 0], np.arange(95))


def test_only_one_shard_is_in_memory(tmp_path):
    def stream():
        for number in range(1000):
            rows_read.append(number)
            yield {"text": str(number)}

    rows_read: list[int] = []
    rows_ahead: list[int] = []
    folder = ShardFolder(tmp_path / "out", {"model": "digits"}, shard_rows=10)
    folder.open()
    rows = IterableDataset.from_generator(stream)
    fill(folder, rows, lambda texts: rows_ahead.append(len(rows_read) - int(texts[0])) or digits(texts))
    assert len(rows_ahead) == 100 and max(rows_ahead) <= 20  # rows read since the start of the current shard


def test_vectors_of_another_model_type_or_input_are_refused(tmp_path):
    folder = ShardFolder(tmp_path / "out", {"model": "digits"}, shard_rows=10)
    folder.open()
    fill(folder, numbered(95), digits)
    with pytest.raises(InputError, match="holds vectors with model digits, not letters; use another folder"):
        ShardFolder(tmp_path / "out", {"model": "letters"}, shard_rows=10).open()
    with pytest.raises(InputError, match="vectors with vector_type float32, not int8"):
        ShardFolder(tmp_path / "out", {"model": "digits"}, shard_rows=10, vector_type="int8").open()
    with pytest.raises(InputError, match="shard-000000.parquet holds vectors of other texts: the input has changed"):
        fill(folder, numbered(96).skip(1), digits)
    with pytest.raises(InputError, match="shard-000009.parquet is beyond the 90 rows of the input"):
        folder.finish(fill(folder, numbered(90), digits))
    with pytest.raises(RuntimeError, match="shard-000009.parquet has 5 rows, expected 10"):
        folder.finish(105)


def test_a_folder_whose_manifest_was_being_written_at_a_crash_is_used(tmp_path):
    (tmp_path / "__manifest.json.77.tmp").write_text("{")
    ShardFolder(tmp_path, {}, shard_rows=10).open()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_lock", "_manifest.json"]


def test_values_inputs_and_folders_that_cannot_be_used_are_errors(tmp_path):
    folder = ShardFolder(tmp_path / "out", {}, shard_rows=10, vector_type="float16")
    folder.open()
    with pytest.raises(InputError, match="beyond 65504, the float16 maximum; use --vector_type float32"):
        fill(folder, Dataset.from_dict({"text": ["70000"]}), digits)
    assert not list(folder.path.glob("*shard*"))
    with pytest.raises(InputError, match="the input has no rows"):
        fill(folder, Dataset.from_dict({"text": []}), digits)
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="busy contains other files"):
        ShardFolder(tmp_path / "busy", {}, shard_rows=10).open()


def random_vectors(count: int, dimensions: int = 40) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, dimensions)).astype(np.float32)


def test_int8_by_hand():
    vectors, scale = encode_vectors(np.array([[1.27, -0.636, 0], [0, 0, 0]], dtype=np.float32), "int8")
    assert vectors.tolist() == [[127, -64, 0], [0, 0, 0]]
    assert scale == pytest.approx([0.01, 0])


def test_binary_is_what_sentence_transformers_calls_ubinary():
    quantization = pytest.importorskip("sentence_transformers.quantization")
    vectors = random_vectors(20)
    expected = quantization.quantize_embeddings(vectors, precision="ubinary")
    stored, scale = encode_vectors(vectors, "binary")
    assert scale is None and stored.dtype == np.uint8
    np.testing.assert_array_equal(stored, expected)


@pytest.mark.parametrize("vector_type", ["float32", "float16", "int8", "binary"])
def test_recall_is_that_of_a_plain_double_loop(vector_type):
    vectors = random_vectors(300)
    stored = encode_vectors(vectors, vector_type)[0]

    def nearest(rows: np.ndarray, query: int, hamming: bool) -> set[int]:
        if hamming:
            distances = [np.unpackbits(rows[query] ^ row).sum() for row in rows[30:]]
        else:
            rows = rows.astype(np.float64)
            distances = [-rows[query] @ row / np.linalg.norm(row) for row in rows[30:]]
        return {*np.argsort(distances, kind="stable")[:10].tolist()}

    kept = [
        len(nearest(vectors, query, False) & nearest(stored, query, vector_type == "binary")) for query in range(30)
    ]
    share, entries = recall(vectors, vector_type)
    assert share == pytest.approx(np.mean(kept) / 10) and entries == 270
    assert {"float32": share == 1, "float16": share > 0.99, "int8": share > 0.95}.get(vector_type, 0.3 < share < 0.9)


def test_equal_vectors_are_counted_once_and_a_few_prove_nothing():
    share, entries = recall(np.repeat(random_vectors(20), 100, axis=0), "binary")
    assert entries == 18 and 0 < share <= 1
    assert np.isnan(recall(random_vectors(9), "binary")[0])

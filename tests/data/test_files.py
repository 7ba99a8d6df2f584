"""Damaged files of every format, read at once and as a stream: one line that names the file, and none by a library."""

from __future__ import annotations

import gzip
import io
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import run_encode
from mirror.common.errors import InputError
from mirror.data.corpus import CorpusSource, load_corpus, read_batches
from mirror.data.files import MAX_LINE_BYTES
from mirror.tools.embedding_shards import read_rows
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


ROWS = [{"id": number, "text": f"text {number} of the cat"} for number in range(300)]


def jsonl(rows: list) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(**columns) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=100)
    return buffer.getvalue()


TEXTS = [row["text"] for row in ROWS]
WHOLE_PARQUET = parquet(text=TEXTS)
DAMAGED: dict[str, tuple[str, bytes]] = {
    "json cut": ("json", json.dumps(ROWS).encode()[:-200]),
    "json is a number": ("json", b"3"),
    "json is empty": ("json", b"{}"),
    "json with a list for a text": ("json", b'[{"text": ["a"]}, {"text": ["b"]}]'),
    "json with a number among rows": ("json", b'[{"text": "a"}, 3]'),
    "jsonl cut": ("jsonl", jsonl(ROWS)[:-9]),
    "jsonl with a word in the middle": ("jsonl", jsonl([*ROWS[:200], "x", *ROWS[200:]])),
    "jsonl with a line that is none": ("jsonl", jsonl(ROWS) + b"{\n" + jsonl(ROWS)),
    "jsonl with a nested row": ("jsonl", jsonl([{"text": {"a": 1}}, *ROWS])),
    "csv with one field more": ("csv", b"id,text\n" + b"1,a\n" * 300 + b"1,2,3,4\n"),
    "csv with an open quote": ("csv", b"id,text\n" + b"1,a\n" * 300 + b'1,"a\n' * 3),
    "txt.gz cut": ("txt.gz", gzip.compress("\n".join(TEXTS).encode())[:-20]),
    "jsonl.gz with a changed byte": ("jsonl.gz", bytes(b ^ (i == 300) for i, b in enumerate(gzip.compress(jsonl(ROWS))))),
    "parquet cut": ("parquet", WHOLE_PARQUET[:-20]),
    "parquet is empty": ("parquet", b""),
    "parquet with a damaged page": ("parquet", WHOLE_PARQUET[:60] + b"\0" * 300 + WHOLE_PARQUET[360:]),
    "parquet of lists": ("parquet", parquet(text=[["a"], ["b"]])),
    "parquet of bytes that are no text": ("parquet", parquet(text=[b"a", b"\xff\xfe"])),
    "parquet without rows": ("parquet", parquet(text=pa.array([], pa.string()))),
}  # fmt: skip


def read_all(path: Path, **options) -> list[str]:
    corpus = load_corpus(CorpusSource(train_file=(str(path),), **options))
    return [text for batch in read_batches(corpus.rows, 50, str(path)) for text in batch["text"]]


@pytest.mark.parametrize("streaming", [False, True], ids=["memory", "stream"])
@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_one_line(tmp_path, kind, streaming, capfd, caplog):
    ending, data = DAMAGED[kind]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_all(path, streaming=streaming)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    assert "cache" not in caplog.text and "Failed to read" not in capfd.readouterr().err


def test_a_stream_that_breaks_in_the_middle_of_a_training_is_one_line(tmp_path, bert_folder):
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "".join(f"text {number}\n" for number in range(25_000)) + "one,two\n")
    config = MirrorConfig(
        output_dir=str(tmp_path / "out"), max_steps=10_000, per_device_train_batch_size=200, bf16=False, pooling="mean",
        max_seq_length=8, disable_tqdm=True,
    )  # fmt: skip
    corpus = load_corpus(CorpusSource(train_file=(str(path),), streaming=True))
    trainer = MirrorTrainer(bert_folder, config, corpus)
    trainer.settings["train_file"] = [str(path)]
    trainer.compute_loss = lambda model, inputs, **rest: sum(weight.sum() for weight in model.parameters()) * 0
    with pytest.raises(InputError) as caught:
        trainer.train()
    assert str(caught.value).startswith(f"{path}: Error tokenizing data") and "\n" not in str(caught.value)


def test_bytes_are_decoded_where_they_are_text(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(text=["naïve".encode(), None, b"x"]))
    assert read_all(path) == read_all(path, streaming=True) == ["naïve", "x"]
    path.write_bytes(parquet(text=pa.array([b"ab"], pa.large_binary())))
    assert read_all(path) == ["ab"]


LONG = "y" * (MAX_LINE_BYTES + 1)


@pytest.mark.parametrize("streaming", [False, True], ids=["memory", "stream"])
@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_a_line_that_is_too_long_is_left_out_and_counted(tmp_path, ending, streaming, caplog):
    data = "\n".join(["a", "b" * MAX_LINE_BYTES, LONG, "c", LONG + "z"]).encode()
    path = tmp_path / f"a.{ending}"
    path.write_bytes(gzip.compress(data + bytes(range(32, 127)) * 400) if ending == "txt.gz" else data)
    if ending == "txt.gz":
        path.write_bytes(gzip.compress(data, compresslevel=0))  # a text packs less well than this one would
    assert read_all(path, streaming=streaming) == ["a", "b" * MAX_LINE_BYTES, "c"]
    assert f"{path}: 2 line(s) over 1 MB left out, first line 3" in caplog.text
    with pytest.raises(InputError, match=r"line 3: over 1 MB; break it into texts"):
        read_all(path, streaming=streaming, strict=True)


def test_a_table_may_have_long_lines_and_long_texts(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": LONG}, *ROWS]))
    assert len(read_all(path, strict=True)) == 301


def test_every_line_gets_a_vector_so_none_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(f"a\n{LONG}\n")
    argv = ["run_encode.py", "--model_name_or_path", "m", "--input_file", str(tmp_path / "a.txt"), "--output_dir", "v"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(InputError, match="line 2: over 1 MB"):
        run_encode.main()


def test_a_packed_file_of_newlines_is_refused_at_once(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"\n" * 45_000_000))
    start = time.perf_counter()
    with pytest.raises(InputError, match="unpacks to over 200 times its size"):
        read_all(path)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("ending", ["csv", "tsv", "txt"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_blank_line_is_a_row_where_a_line_is_a_text(tmp_path, ending, streaming):
    """A vector for each line, and none of them shifted."""
    (tmp_path / f"a.{ending}").write_text(("" if ending == "txt" else "text\n") + "one\n\nthree\n")
    rows = read_rows(CorpusSource(train_file=(str(tmp_path / f"a.{ending}"),), streaming=streaming))
    assert [row["text"] or "" for row in rows] == ["one", "", "three"]

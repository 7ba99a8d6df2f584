"""Embedding shards have one vector per row for any text, input format and number of processes, and after crashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import run_encode
from mirror.common.errors import InputError, run_main
from mirror.common.files import _locks
from mirror.modeling.encoder import Encoder
from mirror.tools.encode import MANIFEST
from tests.documents import ROOT
from tests.tools.test_encode import stored


def encode_file(monkeypatch, *flags) -> None:
    monkeypatch.setattr(sys, "argv", ["run_encode.py", *map(str, flags)])
    run_encode.main()


@pytest.fixture(scope="module")
def texts(sentences) -> list[str]:
    """Fifty rows, some of them blank or duplicates."""
    return [*sentences[:30], "", sentences[3], "  ", *sentences[30:47]]


@pytest.fixture(scope="module")
def corpus(texts, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("input") / "texts.txt"
    path.write_text("\n".join(texts) + "\n")
    return path


@pytest.fixture(scope="module")
def expected(bert_folder, texts) -> np.ndarray:
    return Encoder.from_pretrained(bert_folder, "mean", 32).encode(texts)


@pytest.fixture
def flags(bert_folder, corpus, tmp_path) -> list:
    model = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--max_seq_length", 32]
    return [*model, "--input_file", corpus, "--output_dir", tmp_path / "out", "--shard_rows", 16]


@pytest.mark.parametrize("streaming", [[], ["--streaming"]])
def test_every_row_gets_one_vector(flags, streaming, texts, expected, tmp_path, monkeypatch, capsys, caplog):
    caplog.set_level("INFO")
    encode_file(monkeypatch, *flags, *streaming, "--keep_text")
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    assert f"{tmp_path / 'out'}/*.parquet" in caplog.messages[-1]  # the next command
    columns = stored(tmp_path / "out")
    assert columns["row"] == list(range(50))
    assert columns["text"] == texts
    np.testing.assert_allclose(columns["vector"], expected, atol=1e-5)

    names = [f"shard-00000{number}.parquet" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_lock", MANIFEST, *names]
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert (manifest["num_rows"], manifest["num_shards"], manifest["dimension"]) == (50, 4, 32)
    assert (manifest["pooling"], manifest["dtype"], manifest["vector_type"]) == ("mean", "float32", "float32")


def test_float16_and_int8_approximate_the_float32_vectors(flags, expected, tmp_path, monkeypatch):
    encode_file(monkeypatch, *flags, "--vector_type", "float16")
    np.testing.assert_allclose(stored(tmp_path / "out")["vector"], expected, rtol=1e-3, atol=1e-4)
    assert pq.read_schema(tmp_path / "out" / "shard-000000.parquet").field("vector").type.value_type == "halffloat"

    flags[flags.index("--output_dir") + 1] = tmp_path / "int8"
    encode_file(monkeypatch, *flags, "--vector_type", "int8")
    columns = stored(tmp_path / "int8")
    scale = np.array(columns["scale"])[:, None]
    assert (np.abs(columns["vector"] * scale - expected) <= 0.5 * scale + 1e-5).all()
    assert np.abs(columns["vector"]).max() == 127


def test_binary_vectors_are_the_signs_and_the_run_says_what_they_cost(flags, expected, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    flags[flags.index("--shard_rows") + 1] = 50
    encode_file(monkeypatch, *flags, "--vector_type", "binary")
    columns = stored(tmp_path / "out")
    assert set(columns) == {"row", "vector"}
    assert (np.unpackbits(columns["vector"].astype(np.uint8), axis=1) == (expected > 0)).all()
    (line,) = [line for line in caplog.messages if "recall" in line]
    assert line.startswith("binary vectors: recall@10 ") and line.endswith("against cosine in float32, among 44 texts")


def test_the_files_of_another_run_are_no_leftovers(flags, tmp_path, monkeypatch):
    encode_file(monkeypatch, *flags)
    (tmp_path / "out" / "shard-000001.parquet").unlink()
    being_written = tmp_path / "out" / "_shard-000001.parquet.77.tmp"
    being_written.write_text("half")
    code = "import sys; from mirror.common.files import lock_output_dir as lock; lock(sys.argv[1]); print(); input()"
    for lock in _locks:  # this process is another run too
        lock.release()
    command, pipe = [sys.executable, "-c", code, str(tmp_path / "out")], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match=f"out is in use by process {other.pid} .*; wait for its end"):
            encode_file(monkeypatch, *flags)
        assert being_written.exists()
        other.communicate(b"\n")
    encode_file(monkeypatch, *flags)
    assert not being_written.exists() and stored(tmp_path / "out")["row"] == list(range(50))


def test_ids_are_stored_beside_the_vectors(flags, tmp_path, monkeypatch):
    table = tmp_path / "rows.csv"
    table.write_text("sku,title,text\n007,a cat,small\n8,,\n1e5,a cat,\n")
    flags[flags.index("--input_file") + 1] = table
    flags += ["--text_column", "title", "text", "--id_column", "sku", "--keep_text"]
    encode_file(monkeypatch, *flags)
    columns = stored(tmp_path / "out")
    assert (columns["id"], columns["text"]) == (["007", "8", "1e5"], ["a cat. small", "", "a cat"])
    table.write_text(table.read_text().replace("007", "7"))
    with pytest.raises(InputError, match="holds vectors of other texts: the input has changed"):
        encode_file(monkeypatch, *flags)
    with pytest.raises(InputError, match="holds vectors with id_column sku, not None"):
        encode_file(monkeypatch, *(flag for flag in flags if flag not in ("--id_column", "sku")))


def test_of_documents_each_passage_is_a_row_with_its_place(flags, bert_folder, tmp_path, monkeypatch):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# Guide\n\nThe cat runs.\n\n## Keys\n\nThe small key opens the old house.\n")
    (folder / "b.md").write_text("```\nopen the house\n```\n")
    flags[flags.index("--input_file") + 1] = folder
    flags.append("--keep_text")
    encode_file(monkeypatch, *flags)
    columns = stored(tmp_path / "out")
    texts = ["The cat runs.", "The small key opens the old house.", "open the house"]
    assert columns["text"] == texts and columns["section"] == ["Guide", "Guide > Keys", ""]
    places = [(Path(file).name, int(offset)) for file, offset in zip(columns["file"], columns["offset"], strict=True)]
    assert places == [("a.md", 9), ("a.md", 33), ("b.md", 4)]
    expected = Encoder.from_pretrained(bert_folder, "mean", 32).encode(texts)
    np.testing.assert_allclose(columns["vector"], expected, rtol=0, atol=1e-6)
    (folder / "a.md").write_text("# Guide\n\nThe cat runs.\n\n## Doors\n\nThe small key opens the old house.\n")
    with pytest.raises(InputError, match="the input has changed"):  # a section is part of it
        encode_file(monkeypatch, *flags)
    with pytest.raises(InputError, match="documents have no columns or ids"):
        encode_file(monkeypatch, *flags, "--id_column", "sku")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--input_file": "absent.txt"}, "absent.txt: no such file"),
        ({"--input_file": ROOT / "LICENSE"}, "unknown ending"),
        ({"--id_column": "body"}, "has no column 'body'"),
        ({"--text_column": "body"}, "has no column 'body'; it has text"),
        ({"--output_dir": __file__}, "cannot be a folder"),
        ({"--pooling": "median"}, "unknown pooling 'median'"),
        ({"--shard_rows": "0"}, "'0' is not a positive number"),
        ({"--truncate_dim": "33"}, "have 32 dimensions"),
        ({"--vector_type": "int4"}, "--vector_type: invalid choice"),
        ({"--dataset_name": "d"}, "give either --input_file or --dataset_name"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(flags, changes, message, tmp_path, monkeypatch, capsys):
    for flag, value in changes.items():
        flags[slice(*[flags.index(flag), flags.index(flag) + 2] if flag in flags else [0, 0])] = [flag, value]
    monkeypatch.setattr(sys, "argv", ["run_encode.py", *map(str, flags)])
    with pytest.raises(SystemExit) as stopped:
        run_main(run_encode.main)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error:"))
    assert stopped.value.code == 2 and message in line
    assert not list(tmp_path.glob("out/shard-*"))


@pytest.mark.slow
def test_accelerate_launch_with_two_processes(flags, expected, tmp_path):
    launch = [sys.executable, "-m", "accelerate.commands.launch"]
    launch += ["--config_file", str(ROOT / "accelerate_configs/cpu_2proc.yaml"), "--main_process_port", "29517"]
    done = subprocess.run(
        [*launch, str(ROOT / "run_encode.py"), *map(str, flags)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str(tmp_path / "out")
    columns = stored(tmp_path / "out")
    assert columns["row"] == list(range(50))
    np.testing.assert_allclose(columns["vector"], expected, atol=1e-5)

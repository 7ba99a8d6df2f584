"""Embedding shards have one vector per row for any text, input format and number of processes, and after crashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, IterableDataset

import run_encode
from mirror.common.errors import InputError, run_main
from mirror.modeling.encoder import Encoder
from mirror.tools.embedding_shards import MANIFEST, ShardFolder, fill


ROOT = Path(__file__).resolve().parents[1]


def encode_file(monkeypatch, *flags) -> None:
    monkeypatch.setattr(sys, "argv", ["run_encode.py", *map(str, flags)])
    run_encode.main()


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
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(columns["vector"], expected, atol=1e-5)

    names = [f"shard-00000{number}.parquet" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [MANIFEST, *names]
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert (manifest["num_rows"], manifest["num_shards"], manifest["dimension"]) == (50, 4, 32)
    assert (manifest["pooling"], manifest["dtype"], manifest["vector_type"]) == ("mean", "float32", "float32")


def test_files_in_several_formats_are_read_as_one_input(flags, texts, expected, corpus, tmp_path, monkeypatch):
    Dataset.from_dict({"text": texts[:7], "label": range(7)}).to_parquet(tmp_path / "more.parquet")
    flags[flags.index("--input_file") + 1 : flags.index("--output_dir")] = [corpus, tmp_path / "more.parquet"]
    encode_file(monkeypatch, *flags)
    columns = stored(tmp_path / "out")
    assert columns["row"] == list(range(57))
    np.testing.assert_allclose(columns["vector"], np.concatenate([expected, expected[:7]]), atol=1e-5)


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


def test_the_first_dimensions_are_stored(flags, expected, tmp_path, monkeypatch):
    encode_file(monkeypatch, *flags, "--truncate_dim", 8)
    np.testing.assert_allclose(stored(tmp_path / "out")["vector"], expected[:, :8], atol=1e-5)
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["dimension"] == 8
    with pytest.raises(InputError, match=r"--truncate_dim 33: the vectors of .* have 32 dimensions"):
        encode_file(monkeypatch, *flags, "--truncate_dim", 33)


def test_binary_vectors_are_the_signs_and_the_run_says_what_they_cost(flags, expected, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    flags[flags.index("--shard_rows") + 1] = 50
    encode_file(monkeypatch, *flags, "--vector_type", "binary")
    columns = stored(tmp_path / "out")
    assert set(columns) == {"row", "vector"} and columns["vector"].shape == (50, 4)
    assert (np.unpackbits(columns["vector"].astype(np.uint8), axis=1) == (expected > 0)).all()
    assert 0 < (expected > 0).mean() < 1
    (line,) = [line for line in caplog.messages if "recall" in line]
    assert line.startswith("binary vectors: recall@10 ") and line.endswith("against cosine in float32, among 44 texts")


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
    assert [path.name for path in tmp_path.iterdir()] == ["_manifest.json"]


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--input_file": "absent.txt"}, "absent.txt: no such file"),
        ({"--input_file": __file__}, "unknown ending"),
        ({"--text_column": "body"}, "has no column 'body'; it has text"),
        ({"--output_dir": __file__}, "cannot be a folder"),
        ({"--pooling": "median"}, "unknown pooling 'median'"),
        ({"--shard_rows": "0"}, "'0' is not a positive number"),
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


def test_help_imports_nothing_heavy():
    code = "import sys, run_encode; sys.argv = ['run_encode.py', '--help']\n"
    code += "try: run_encode.main()\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'numpy', 'datasets'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--vector_type" in done.stdout


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

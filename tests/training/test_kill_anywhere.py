"""SIGKILL at random moments, saves included: what comes out in the end is what comes out undisturbed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.dataset
import pytest
import torch
from safetensors.torch import load_file

from tests.studies.interrupted_study import make_workplace


ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("MIRROR_TEST_KILLS", "20"))
FEWER = max(2, KILLS // 4)  # of scripts that save through the same class
ALONE = [sys.executable]
TWO = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]

pytestmark = pytest.mark.slow


def start(command: list[str]) -> subprocess.Popen:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)


def kill_all(pid: int) -> None:
    """The launcher and its workers, which have sessions of their own."""
    launcher = psutil.Process(pid)
    for process in [launcher, *launcher.children(recursive=True)]:
        process.kill()


def finish(command: list[str]) -> None:
    process = start(command)
    assert process.wait(timeout=600) == 0


def kill_at_random_moments(command: list[str], started, rng: random.Random, kills: int = KILLS) -> int:
    """Start `command` again and again and kill it up to 0.4 s after `started()` changes; returns how many runs were killed."""
    killed = 0
    for _ in range(kills):
        process = start(command)
        before = started()
        while process.poll() is None and started() == before:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.4))
        if process.poll() is None:
            kill_all(process.pid)
            killed += 1
        process.wait()
    return killed


@pytest.mark.parametrize("launch", [ALONE, TWO], ids=["one_process", "two_processes"])
def test_training(bert_folder, sentences, tmp_path, launch):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences))
    steps = 30 * KILLS

    def command(folder: str) -> list[str]:
        return [*launch, "-m", "tests.interrupted_run", bert_folder, str(texts), str(tmp_path / folder), str(steps)]

    finish(command("whole"))
    out = tmp_path / "out"
    files = lambda: sorted(path.as_posix() for path in out.glob("checkpoint-*/*"))  # noqa: E731
    assert kill_at_random_moments(command("out"), files, random.Random(0)) > KILLS / 2
    finish(command("out"))
    first = load_file(Path(bert_folder) / "model.safetensors")
    first = {name.removeprefix("bert."): value for name, value in first.items()}
    assert_same_weights(tmp_path / "whole/model.safetensors", out / "model.safetensors", first)


def assert_same_weights(whole: Path, killed: Path, first: dict[str, torch.Tensor]) -> None:
    """Bit for bit, and not those that training began with."""
    expected, found = load_file(whole), load_file(killed)
    assert expected.keys() == found.keys()
    assert max((expected[name] - first[name]).abs().max() for name in expected.keys() & first.keys()) > 1e-3
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_cmlm(bert_folder, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("\n\n".join("\n".join(sentences[row : row + 6]) for row in range(0, 240, 6)))
    flags = ["--model_name_or_path", bert_folder, "--train_file", str(tmp_path / "texts.txt"), "--bf16", "false"]
    flags += ["--max_seq_length", "16", "--num_projections", "4", "--per_device_train_batch_size", "8"]
    flags += ["--max_steps", str(30 * FEWER), "--learning_rate", "1e-3"]
    flags += ["--save_strategy", "steps", "--save_steps", "1", "--save_total_limit", "2"]

    def command(folder: str) -> list[str]:
        return [*ALONE, "-m", "tests.started_again", "run_cmlm", str(tmp_path / folder), *flags]

    finish(command("whole"))
    out = tmp_path / "out"
    files = lambda: sorted(path.as_posix() for path in out.glob("checkpoint-*/*"))  # noqa: E731
    assert kill_at_random_moments(command("out"), files, random.Random(2), FEWER) > FEWER / 2
    finish(command("out"))
    first = {
        name.removeprefix("bert."): value for name, value in load_file(f"{bert_folder}/model.safetensors").items()
    }
    assert_same_weights(tmp_path / "whole/model.safetensors", out / "model.safetensors", first)


def test_pretraining(sentences, tmp_path):
    """From the first moment: the corpus and its tokenizer are prepared by the same command."""
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    code = "import pretrain_mini_mlm as script; script.DOCSTRING_PACKAGES = ('json',); script.main()"
    flags = ["--text_files", str(tmp_path / "texts.txt"), "--vocab_size", "300", "--hidden_size", "64"]
    flags += ["--num_hidden_layers", "1", "--tokens_per_step", "256", "--max_steps", str(60 * FEWER)]
    flags += ["--learning_rate", "1e-3", "--warmup_steps", "2", "--save_steps", "1"]

    def command(folder: str) -> list[str]:
        begin = f"import sys; sys.path.insert(0, 'data_scripts'); {code}"
        return [*ALONE, "-c", begin, *flags, "--output_dir", str(tmp_path / folder)]

    finish(command("whole"))
    out = tmp_path / "out"
    files = lambda: sorted(path.as_posix() for path in out.rglob("*"))  # noqa: E731
    assert kill_at_random_moments(command("out"), files, random.Random(3), 2 * FEWER) > FEWER
    finish(command("out"))
    first = {name: torch.zeros(()) for name in load_file(out / "model.safetensors")}
    assert_same_weights(tmp_path / "whole/model.safetensors", out / "model.safetensors", first)


def test_a_study_goes_on_cell_by_cell(bert_folder, sentences, tmp_path):
    make_workplace(tmp_path, sentences)

    def command(folder: str) -> list[str]:
        return [*ALONE, "-m", "tests.studies.interrupted_study", str(tmp_path), bert_folder, str(tmp_path / folder)]

    finish(command("whole"))
    calls = tmp_path / "calls.txt"
    undisturbed = len(calls.read_text().splitlines())
    calls.unlink()
    out = tmp_path / "out"
    files = lambda: sorted(path.as_posix() for path in out.rglob("*"))  # noqa: E731
    kills = kill_at_random_moments(command("out"), files, random.Random(4), FEWER)
    assert kills > FEWER / 2
    finish(command("out"))
    # Finished cells are left alone: a kill costs the cell in work, which is two calls.
    assert undisturbed < len(calls.read_text().splitlines()) <= undisturbed + 2 * kills
    whole, killed = (
        [
            line.rpartition(",")[0] for line in (tmp_path / name / "results.csv").read_text().splitlines()
        ]  # less seconds
        for name in ("whole", "out")
    )
    assert whole == killed and len(whole) > 6


def test_encoding(bert_folder, sentences, tmp_path):
    rows = [f"{sentence} {number}" for number in range(60) for sentence in sentences]  # shards enough for every kill
    (tmp_path / "texts.txt").write_text("\n".join(rows))

    def command(folder: str) -> list[str]:
        flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--input_file", str(tmp_path / "texts.txt")]
        return [*ALONE, "run_encode.py", *flags, "--output_dir", str(tmp_path / folder), "--shard_rows", "50"]

    finish(command("whole"))
    out = tmp_path / "out"
    shards = lambda: len(list(out.glob("shard-*")))  # noqa: E731
    assert kill_at_random_moments(command("out"), shards, random.Random(1)) > KILLS / 2
    finish(command("out"))
    whole, killed = (
        pyarrow.dataset.dataset(tmp_path / name, format="parquet").to_table() for name in ("whole", "out")
    )
    assert killed["row"].to_pylist() == list(range(len(rows)))
    first, second = (np.array(table["vector"].combine_chunks().flatten()) for table in (whole, killed))
    np.testing.assert_array_equal(first, second)

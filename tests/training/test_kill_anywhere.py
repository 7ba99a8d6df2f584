"""Tests that SIGKILL at random moments, saves included, changes nothing of the result.

Four kills in each test keep the slow suite short. `MIRROR_TEST_KILLS=20` makes more.
"""

from __future__ import annotations

import os
import random
import shutil
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
KILLS = int(os.environ.get("MIRROR_TEST_KILLS", "4"))
FEWER = max(2, KILLS // 4)  # of scripts that save through the same class
ALONE = [sys.executable]
TWO = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]

pytestmark = pytest.mark.slow


def start(command: list[str]) -> subprocess.Popen:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)


def finish(command: list[str]) -> None:
    process = start(command)
    assert process.wait(timeout=600) == 0


def kill_at_random_moments(command: list[str], started, rng: random.Random, kills: int = KILLS) -> int:
    """Start `command` again and again, kill it up to 0.4 s after `started()` changes, and return how often it was killed."""
    killed = 0
    for _ in range(kills):
        process = start(command)
        before = started()
        while process.poll() is None and started() == before:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.4))
        if process.poll() is None:
            launcher = psutil.Process(process.pid)
            for running in [launcher, *launcher.children(recursive=True)]:  # workers have sessions of their own
                running.kill()
            killed += 1
        process.wait()
    return killed


@pytest.mark.parametrize("launch", [ALONE, TWO], ids=["one_process", "two_processes"])
def test_training(bert_folder, sentences, tmp_path, launch):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    texts, steps = str(tmp_path / "texts.txt"), str(30 * KILLS)
    command = [*launch, "-m", "tests.interrupted_run", bert_folder, texts, "OUT", steps]
    ends_with_the_same_weights(command, tmp_path, KILLS, bert_folder)


def ends_with_the_same_weights(
    command: list[str], folder: Path, kills: int, first: str | None = None, shared: str | None = None
) -> None:
    """Run a command to its end, and again with kills: weights are equal bit for bit, and not those that training began with.

    Args:
        command: `OUT` in it stands for the output folder.
        first: the folder of the weights that training began with.
        shared: a folder below `OUT` that the killed runs get from the whole one.
    """
    whole, out = folder / "whole", folder / "out"
    finish([str(whole) if word == "OUT" else word for word in command])
    if shared:
        shutil.copytree(whole / shared, out / shared)
    command = [str(out) if word == "OUT" else word for word in command]
    seen = lambda: sorted(path.as_posix() for path in out.glob("checkpoint-*/*"))  # noqa: E731
    assert kill_at_random_moments(command, seen, random.Random(0), kills) > kills / 2
    finish(command)
    expected, found = load_file(whole / "model.safetensors"), load_file(out / "model.safetensors")
    assert expected.keys() == found.keys()
    before = load_file(f"{first}/model.safetensors") if first else {name: torch.zeros(()) for name in expected}
    before = {name.removeprefix("bert."): value for name, value in before.items()}
    assert max((expected[name] - before[name]).abs().max() for name in expected.keys() & before.keys()) > 1e-3
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_cmlm(bert_folder, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("\n\n".join("\n".join(sentences[row : row + 6]) for row in range(0, 240, 6)))
    command = [*ALONE, "run_cmlm.py", "--model_name_or_path", bert_folder, "--train_file", str(tmp_path / "texts.txt")]
    command += ["--max_seq_length", "16", "--num_projections", "4", "--per_device_train_batch_size", "8"]
    command += ["--max_steps", str(30 * FEWER), "--learning_rate", "1e-3", "--bf16", "false", "--output_dir", "OUT"]
    command += ["--save_strategy", "steps", "--save_steps", "1", "--save_total_limit", "2"]
    ends_with_the_same_weights([*command, "--resume_from_checkpoint", "auto"], tmp_path, FEWER, bert_folder)


def test_pretraining(sentences, tmp_path):
    """Both runs share the corpus, because tokenizers learns other word pieces of the same text each time."""
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    code = "import sys; sys.path.insert(0, 'data_scripts'); import pretrain_mini_mlm as script"
    command = [*ALONE, "-c", f"{code}; script.DOCSTRING_PACKAGES = ('json',); script.main()"]
    command += ["--text_files", str(tmp_path / "texts.txt"), "--vocab_size", "300", "--hidden_size", "64"]
    command += ["--num_hidden_layers", "1", "--tokens_per_step", "256", "--max_steps", str(30 * FEWER)]
    command += ["--learning_rate", "1e-3", "--warmup_steps", "2", "--save_steps", "1", "--output_dir", "OUT"]
    ends_with_the_same_weights(command, tmp_path, FEWER, shared="data")


def test_a_study_goes_on_cell_by_cell(bert_folder, sentences, tmp_path):
    make_workplace(tmp_path, sentences)

    def command(folder: str) -> list[str]:
        return [*ALONE, "-m", "tests.studies.interrupted_study", str(tmp_path), bert_folder, str(tmp_path / folder)]

    finish(command("whole"))
    calls = tmp_path / "calls.txt"
    undisturbed = len(calls.read_text().splitlines())
    calls.unlink()
    # A new cell imports for a second before its first call, so a kill between two calls waits for a training's.
    trainings = lambda: calls.exists() and calls.read_text().count("mirror --")  # noqa: E731
    kills = kill_at_random_moments(command("out"), trainings, random.Random(4), FEWER)
    assert kills > FEWER / 2
    finish(command("out"))
    # Finished cells are left alone: a kill costs the cell that is running, which is two calls.
    assert undisturbed < len(calls.read_text().splitlines()) <= undisturbed + 2 * kills
    tables = ((tmp_path / name / "results.csv").read_text().splitlines() for name in ("whole", "out"))
    whole, killed = ([line.rpartition(",")[0] for line in table] for table in tables)  # without the seconds
    assert whole == killed and len(whole) > 6


def test_encoding(bert_folder, sentences, tmp_path):
    shares = range(12 * KILLS)  # shards enough for every kill
    rows = [f"{sentence} {number}" for number in shares for sentence in sentences]
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

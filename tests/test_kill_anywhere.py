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


ROOT = Path(__file__).resolve().parents[1]
KILLS = int(os.environ.get("MIRROR_TEST_KILLS", "20"))
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


def kill_at_random_moments(command: list[str], started, rng: random.Random) -> int:
    """Start `command` again and again and kill it up to 0.4 s after `started()` changes; returns how many runs were killed."""
    killed = 0
    for _ in range(KILLS):
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
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "out"))
    first = load_file(Path(bert_folder) / "model.safetensors")
    assert max((whole[name] - first[f"bert.{name}"]).abs().max() for name in whole) > 1e-3
    for name, value in whole.items():
        assert torch.equal(killed[name], value), name


def test_encoding(bert_folder, sentences, tmp_path):
    rows = [f"{sentence} {number}" for number in range(60) for sentence in sentences]
    (tmp_path / "texts.txt").write_text("\n".join(rows))

    def command(folder: str) -> list[str]:
        flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--input_file", str(tmp_path / "texts.txt")]
        return [*ALONE, "run_encode.py", *flags, "--output_dir", str(tmp_path / folder), "--shard_rows", "200"]

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

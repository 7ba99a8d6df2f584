"""Tests that two machines, each with a launcher, files and caches of its own, do what two processes of one machine do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.processes import ROOT, run_two_processes
from tests.test_run_encode import stored


pytestmark = pytest.mark.slow

FILE = "texts.txt"  # each machine has its own


@pytest.fixture
def machines(sentences, tmp_path) -> list[Path]:
    """Return the working folder of each machine. Only the output folder is shared."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / FILE).write_text("\n".join(sentences[:200]) + "\n")
    return folders


def run_on(machines: list[Path], script: str, *flags) -> list[subprocess.CompletedProcess[str]]:
    """Run the documented command of several machines on each of `machines`, which are processes that meet on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [sys.executable, "-m", "accelerate.commands.launch"]
    launch += ["--config_file", str(ROOT / "accelerate_configs/multi_node.yaml"), "--main_process_port", str(port)]
    launch += ["--main_process_ip", "127.0.0.1", "--num_machines", "2", "--num_processes", "2"]
    launch += ["--mixed_precision", "no"]
    started = [
        subprocess.Popen(
            [*launch, "--machine_rank", str(rank), str(ROOT / script), *map(str, flags)],
            cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": str(folder / "cache")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, folder in enumerate(machines)
    ]  # fmt: skip
    done = []
    try:
        for process in started:
            out, err = process.communicate(timeout=240)
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
            assert process.returncode == 0, err[-3000:]
    finally:  # the other machine of one that failed
        for process in started:
            process.kill()
    return done


@pytest.mark.parametrize("stream", [(), ("--streaming",)], ids=["file", "stream"])
def test_training_on_two_machines_is_training_on_one(machines, bert_folder, tmp_path, stream):
    flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--gather_negatives", "--learning_rate", "1e-3"]
    flags += ["--max_steps", "4", "--per_device_train_batch_size", "40", "--validation_samples", "0", *stream]
    first, second = run_on(machines, "run_mirror.py", *flags, "--train_file", FILE, "--output_dir", tmp_path / "two")
    run_two_processes(
        "run_mirror.py", *flags, "--train_file", str(machines[0] / FILE), "--output_dir", str(tmp_path / "one")
    )
    assert "80 texts per step on 2 process(es), each compared with 80" in first.stderr
    assert "verified with" in first.stderr and "verified with" not in second.stderr  # the main process writes
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    before = load_file(Path(bert_folder) / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    assert not torch.equal(one[name], before[f"bert.{name}"])
    for name, value in one.items():
        assert torch.equal(two[name], value), name


def test_encoding_on_two_machines_gives_every_row_one_vector(machines, bert_folder, tmp_path):
    flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--input_file", FILE, "--shard_rows", "16"]
    first, second = run_on(machines, "run_encode.py", *flags, "--output_dir", tmp_path / "out")
    assert first.stdout and not second.stdout  # the second is not the main process, so they know of each other
    assert stored(tmp_path / "out")["row"] == list(range(200))

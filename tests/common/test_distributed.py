"""Two processes: one dies, hangs or receives a signal, or the rows cannot be shared evenly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.dataset
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from mirror.common.distributed import describe_peer_failure
from mirror.common.errors import InputError
from mirror.training.checkpoints import last_complete_checkpoint
from mirror.training.config import MirrorConfig
from mirror.training.run_setup import check_batch_fits
from tests.processes import ROOT, Pair


TIMEOUT = 45  # seconds; on a busy machine one process takes some to read the corpus while the other waits
LOST = "error: process {} stops because another process of the run {}; earlier checkpoints are complete"
DIED, HUNG = "has ended", "has not answered for --ddp_timeout seconds"


@pytest.fixture
def corpus(sentences, tmp_path) -> str:
    """Write enough texts for long runs. Each block of ten lines is a document."""
    rows = [f"{sentence} {number}" for number in range(20) for sentence in sentences]
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join("\n".join(rows[start : start + 10]) for start in range(0, len(rows), 10)))
    return str(path)


@pytest.fixture
def training(bert_folder, corpus, tmp_path) -> dict[str, list[str]]:
    """Return, for each script that trains, a command that saves often and takes its number of steps at the end."""
    common = ["--model_name_or_path", bert_folder, "--train_file", corpus, "--output_dir", str(tmp_path / "out")]
    common += ["--save_strategy", "steps", "--save_steps", "3", "--save_total_limit", "2", "--bf16", "false"]
    common += ["--per_device_train_batch_size", "4", "--ddp_timeout", str(TIMEOUT), "--disable_tqdm", "true"]
    common += ["--max_seq_length", "16"]
    return {
        "run_mirror.py": ["run_mirror.py", *common, "--gather_negatives", "--max_steps"],
        "run_cmlm.py": ["run_cmlm.py", *common, "--num_projections", "4", "--max_steps"],
    }


def is_one_line(pair: Pair, rank: int, what: str) -> None:
    (line,) = pair.errors(rank)
    assert line.startswith(LOST.format(rank, what))
    assert "Traceback" not in pair.said(rank)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "act", "victim"),
    [("run_mirror.py", signal.SIGSTOP, 1), ("run_mirror.py", signal.SIGKILL, 0), ("run_cmlm.py", signal.SIGKILL, 1)],
    ids=["mirror_hangs", "mirror_first_dies", "cmlm_second_dies"],
)
def test_the_other_process_stops_with_the_reason_and_the_run_goes_on_later(training, script, act, victim, tmp_path):
    out, other = tmp_path / "out", 1 - victim
    with Pair(tmp_path / "first", *training[script], "100000") as pair:
        pair.wait_until(lambda: last_complete_checkpoint(out))
        pair.send(victim, act)
        start = time.monotonic()
        assert pair.processes[other].wait(TIMEOUT + 30) == 1
        assert time.monotonic() - start < TIMEOUT + 10
    is_one_line(pair, other, DIED if act == signal.SIGKILL else HUNG)
    if act == signal.SIGSTOP:  # what is left is the same as after a kill
        return
    saved = int(Path(last_complete_checkpoint(out)).name.rpartition("-")[2])

    # The rate of CMLM falls until the last step, so another length is another run.
    resume = [str(saved + 2), "--resume_from_checkpoint", "true", "--force"]
    with Pair(tmp_path / "second", *training[script], *resume) as pair:
        assert pair.statuses() == [0, 0], pair.said(0)
    assert json.loads((out / "trainer_state.json").read_text())["global_step"] == saved + 2


@pytest.mark.slow
def test_encoding_stops_with_the_reason_and_goes_on_later(bert_folder, corpus, tmp_path):
    out = tmp_path / "out"
    command = ["run_encode.py", "--model_name_or_path", bert_folder, "--pooling", "mean", "--input_file", corpus]
    command += ["--output_dir", str(out), "--shard_rows", "50", "--ddp_timeout", str(TIMEOUT)]
    with Pair(tmp_path / "first", *command) as pair:
        pair.wait_until(lambda: list(out.glob("shard-*")))
        pair.send(1, signal.SIGKILL)
        assert pair.processes[0].wait(TIMEOUT + 90) == 1
    is_one_line(pair, 0, DIED)
    with Pair(tmp_path / "second", *command) as pair:
        assert pair.statuses() == [0, 0], pair.said(0)
    rows = pyarrow.dataset.dataset(out, format="parquet").to_table()["row"].to_pylist()
    assert rows == list(range(len(Path(corpus).read_text().splitlines())))


@pytest.mark.slow
def test_a_launcher_ends_the_run_when_a_process_dies(training, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    command += [*training["run_mirror.py"], "100000"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env=environment)
    while not last_complete_checkpoint(tmp_path / "out"):
        assert launcher.poll() is None
        time.sleep(0.05)
    workers = psutil.Process(launcher.pid).children(recursive=True)
    workers[-1].kill()
    assert launcher.wait(120) not in (0, None)
    assert not psutil.wait_procs(workers, timeout=10)[1]


@pytest.mark.slow
def test_sigterm_to_one_or_both_stops_both_and_the_resumed_run_is_the_uninterrupted_one(
    bert_folder, sentences, tmp_path
):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))

    def command(folder: str) -> list[str]:
        paths = [bert_folder, str(tmp_path / "texts.txt"), str(tmp_path / folder)]
        return ["-m", "tests.interrupted_run", *paths, "60", "7"]

    with Pair(tmp_path / "whole-messages", *command("whole")) as pair:
        assert pair.statuses() == [0, 0], pair.said(0)
    saved = None
    for number, told in enumerate(([1], [0, 1])):
        with Pair(tmp_path / f"stopped-{number}", *command("out")) as pair:
            pair.wait_until(lambda before=saved: last_complete_checkpoint(tmp_path / "out") != before)
            for rank in told:
                pair.send(rank, signal.SIGTERM)
            assert pair.statuses() == [128 + signal.SIGTERM] * 2, pair.said(0)
        assert "--resume_from_checkpoint true" in pair.said(0)
        saved = last_complete_checkpoint(tmp_path / "out")
        assert Path(saved).name != "checkpoint-60"
    with Pair(tmp_path / "resumed", *command("out")) as pair:
        assert pair.statuses() == [0, 0], pair.said(0)
    whole, again = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "out"))
    first = load_file(Path(bert_folder) / "model.safetensors")
    moved = [(value - first[f"bert.{name}"]).abs().max() for name, value in whole.items() if f"bert.{name}" in first]
    assert max(moved) > 1e-3
    for name, value in whole.items():
        assert torch.equal(again[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        # 103 rows are two steps of 2 x 20 and 23 rows that are left out
        (["--num_train_epochs", "2", "--validation_samples", "77", "--eval_strategy", "epoch"], 4),
        (["--streaming", "--max_steps", "5"], 5),
    ],
    ids=["rows", "stream"],
)
def test_rows_that_cannot_be_shared_evenly_hang_nothing(bert_folder, sentences, flags, steps, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:180]))
    command = ["run_mirror.py", "--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt"]
    command += ["--output_dir", tmp_path / "out", "--per_device_train_batch_size", "20", "--bf16", "false"]
    command += ["--max_seq_length", "24", "--gather_negatives", "--ddp_timeout", "60", "--dataloader_num_workers", "2"]
    with Pair(tmp_path / "messages", *command, *flags) as pair:
        assert pair.statuses() == [0, 0], pair.said(0) + pair.said(1)
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())["global_step"] == steps


@pytest.mark.slow
def test_a_corpus_below_the_global_batch_is_refused_by_both(bert_folder, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:30]))
    command = ["run_mirror.py", "--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt"]
    command += ["--output_dir", tmp_path / "out", "--per_device_train_batch_size", "20", "--max_steps", "5"]
    with Pair(tmp_path / "messages", *command) as pair:
        assert pair.statuses() == [2, 2]
    start = "error: 30 distinct texts do not fill one batch of 40; lower --per_device_train_batch_size"
    assert all(pair.errors(rank)[0].startswith(start) and len(pair.errors(rank)) == 1 for rank in (0, 1))


def test_a_stream_below_one_batch_is_refused(sentences, tmp_path):
    args = MirrorConfig(output_dir=str(tmp_path), per_device_train_batch_size=20, max_steps=5)
    stream = Dataset.from_dict({"text": sentences[:20]}).to_iterable_dataset()
    check_batch_fits(stream, args)
    with pytest.raises(InputError, match="19 texts of the stream do not fill one batch of 20"):
        check_batch_fits(stream.take(19), args)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer", "has ended"),
        ("[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv", "has not answered"),
        ("CUDA out of memory", None),
    ],
)
def test_only_a_failed_collective_is_blamed_on_another_process(said, what, monkeypatch):
    assert describe_peer_failure(RuntimeError(said)) is None  # there is no other process
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    line = describe_peer_failure(RuntimeError(said))
    assert (line is None) if what is None else what in line and "\n" not in line

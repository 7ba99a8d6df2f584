"""A run that is stopped, or whose disk is full, keeps its last whole checkpoint and goes on to the same weights."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch
from transformers import TrainerCallback

from mirror.common.errors import InputError
from mirror.training.config import MirrorConfig
from mirror.training.preflight import check_output_dir, check_reporters, find_checkpoint
from mirror.training.resumable import MANIFEST, TERMINATED, ignore_first_sigterm, is_complete, last_complete_checkpoint
from tests.tiny_trainer import make_trainer


ROOT = Path(__file__).resolve().parents[2]


class At(TrainerCallback):
    """Does something at the end of one step, before the step's checkpoint is written."""

    def __init__(self, step: int, act):
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.fixture(scope="module")
def run(bert_folder, sentences, tmp_path_factory) -> Path:
    """A run of 12 steps with whole checkpoints after 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("run") / "out"
    make_trainer(bert_folder, sentences, folder, save_strategy="steps", save_steps=4, max_steps=12).train()
    return folder


def test_every_checkpoint_of_a_run_is_whole(run):
    assert all(is_complete(run / f"checkpoint-{step}") for step in (4, 8, 12))
    assert last_complete_checkpoint(run) == str(run / "checkpoint-12")


def lose_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def lose_a_file(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()


def cut_a_file(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def break_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"model.safe')


@pytest.mark.parametrize("damage", [lose_the_manifest, lose_a_file, cut_a_file, break_the_manifest])
def test_a_checkpoint_that_is_incomplete_is_skipped(run, tmp_path, damage, caplog):
    shutil.copytree(run, tmp_path / "out")
    damage(tmp_path / "out" / "checkpoint-12")
    args = MirrorConfig(output_dir=str(tmp_path / "out"), resume_from_checkpoint="true")
    assert find_checkpoint(args) == str(tmp_path / "out" / "checkpoint-8")
    assert "checkpoint-12 is incomplete" in caplog.text
    args.resume_from_checkpoint = str(tmp_path / "out" / "checkpoint-12")
    with pytest.raises(InputError, match="checkpoint-12 is incomplete"):
        find_checkpoint(args)


def test_the_old_checkpoint_is_deleted_only_when_the_new_one_is_complete(
    bert_folder, sentences, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(
        "mirror.training.resumable.write_manifest",
        lambda folder: seen.append(sorted(path.name for path in tmp_path.glob("*-*"))),
    )
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "save_total_limit": 1}
    make_trainer(bert_folder, sentences, tmp_path, **options).train()
    assert seen == [["checkpoint-2"], ["checkpoint-2", "checkpoint-4"]]
    assert [path.name for path in tmp_path.glob("*-*")] == ["checkpoint-4"]


def test_sigterm_saves_the_step_in_work_and_the_resumed_run_is_the_uninterrupted_one(
    bert_folder, sentences, tmp_path, caplog
):
    options = {"max_steps": 10, "learning_rate": 1e-3}
    whole = make_trainer(bert_folder, sentences, tmp_path / "whole", **options)
    before = weights(whole)
    whole.train()

    handler = signal.getsignal(signal.SIGTERM)
    stopped = make_trainer(bert_folder, sentences, tmp_path / "out", **options)
    stopped.add_callback(At(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(SystemExit) as end:
        stopped.train()
    assert end.value.code == TERMINATED == 143
    assert "step" in caplog.text and "--resume_from_checkpoint true" in caplog.text
    assert signal.getsignal(signal.SIGTERM) == handler

    checkpoint = last_complete_checkpoint(tmp_path / "out")
    assert Path(checkpoint).name in ("checkpoint-3", "checkpoint-4")  # seen at this step's end or at the next one's
    resumed = make_trainer(bert_folder, sentences, tmp_path / "out", **options)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert resumed.state.global_step == 10
    assert max((value - before[name]).abs().max() for name, value in weights(whole).items()) > 1e-3
    for name, value in weights(whole).items():
        assert torch.equal(weights(resumed)[name], value), name


def test_a_worker_outlasts_one_sigterm():
    before, started = signal.getsignal(signal.SIGTERM), []
    try:
        ignore_first_sigterm(started.append, 3)
        os.kill(os.getpid(), signal.SIGTERM)
        assert started == [3] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_sigterm_to_all_processes_of_a_job_saves_too(bert_folder, sentences, tmp_path):
    """As Slurm and `timeout` send it: workers of the data loader get it as well."""
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    command = [sys.executable, "-m", "tests.interrupted_run", bert_folder, str(tmp_path / "texts.txt")]
    run = subprocess.Popen([*command, str(tmp_path / "out"), "100000", "5", "2"], cwd=ROOT, start_new_session=True)
    while last_complete_checkpoint(tmp_path / "out") is None:
        assert run.poll() is None
        time.sleep(0.05)
    workers = psutil.Process(run.pid).children()
    assert len(workers) == 2
    saved = last_complete_checkpoint(tmp_path / "out")
    os.killpg(run.pid, signal.SIGTERM)
    assert run.wait(600) == TERMINATED
    assert last_complete_checkpoint(tmp_path / "out") != saved
    assert not psutil.wait_procs(workers, timeout=10)[1]


def test_a_full_disk_leaves_the_last_checkpoint_and_one_line(bert_folder, sentences, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer = make_trainer(bert_folder, sentences, tmp_path, save_strategy="steps", save_steps=2, max_steps=6)
    trainer.add_callback(At(4, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))))
    try:
        with pytest.raises(
            InputError, match="cannot save .*checkpoint-4: .*the last complete checkpoint is .*checkpoint-2"
        ) as caught:
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_a_folder_where_nothing_can_be_written_is_found_before_training(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    with pytest.raises(InputError, match="nothing can be written there .No space left on device"):
        check_output_dir(str(tmp_path / "out"), resuming=False, force=False)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nonsense", "nonsense is not supported, only .*tensorboard"), ("flyte", "requires flytekit to be installed")],
)
def test_a_logger_that_is_unknown_or_not_installed_is_refused(name, reason):
    check_reporters([])
    with pytest.raises(InputError, match=f"^--report_to {name}: .*{reason}") as refused:
        check_reporters([name])
    assert "\n" not in str(refused.value)


def test_resuming_a_complete_run_trains_nothing(bert_folder, sentences, tmp_path):
    """Also where the last step is in the middle of an epoch."""
    options = {"save_strategy": "steps", "save_steps": 5, "max_steps": 10}
    whole = make_trainer(bert_folder, sentences, tmp_path, **options)
    whole.train()
    assert not whole.was_complete and 10 % (len(sentences) // 20)
    again = make_trainer(bert_folder, sentences, tmp_path, **options)
    again.train(resume_from_checkpoint=last_complete_checkpoint(tmp_path))
    assert again.was_complete and again.state.global_step == 10
    for name, value in weights(whole).items():
        assert torch.equal(weights(again)[name], value), name
    longer = make_trainer(bert_folder, sentences, tmp_path, **options | {"max_steps": 12})
    longer.train(resume_from_checkpoint=last_complete_checkpoint(tmp_path))
    assert not longer.was_complete and longer.state.global_step == 12

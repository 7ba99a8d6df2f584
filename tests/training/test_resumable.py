"""A run that is stopped, or whose disk is full, keeps its last whole checkpoint and goes on to the same weights."""

from __future__ import annotations

import errno
import inspect
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from mirror.cmlm.trainer import CMLMTrainer
from mirror.common.errors import InputError
from mirror.common.files import lock_output_dir, write_manifest
from mirror.training.checkpoints import find_checkpoint, last_complete_checkpoint, numbered_checkpoints, rotate
from mirror.training.resumable import TOTALS, RunTotals, StepChecks
from mirror.training.trainer import MirrorTrainer
from tests.processes import ROOT, run_two_processes
from tests.tiny_trainer import At, make_trainer, run_whole_and_resumed, weights


@pytest.fixture(scope="module")
def run(bert_folder, sentences, tmp_path_factory) -> Path:
    """A run of 12 steps with whole checkpoints after 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("run") / "out"
    make_trainer(bert_folder, sentences, folder, save_strategy="steps", save_steps=4, max_steps=12).train()
    return folder


def test_the_best_checkpoint_is_kept_beside_the_last(bert_folder, sentences, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "save_total_limit": 2}
    trainer = make_trainer(bert_folder, sentences, tmp_path, **options)
    best = str(tmp_path / "checkpoint-2")
    trainer.add_callback(At(3, lambda: setattr(trainer.state, "best_model_checkpoint", best)))
    trainer.train()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-6"}


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
    assert not (tmp_path / "checkpoint-4").exists()  # its space is free again


def test_resuming_a_complete_run_trains_nothing(bert_folder, sentences, tmp_path):
    """Also where the last step is in the middle of an epoch."""
    options = {"save_strategy": "steps", "save_steps": 5, "max_steps": 10}
    whole = make_trainer(bert_folder, sentences, tmp_path, **options)
    whole.train()
    assert not whole.was_complete and 10 % (len(sentences) // 20)
    again = make_trainer(bert_folder, sentences, tmp_path, **options)
    metrics = again.train(resume_from_checkpoint=last_complete_checkpoint(tmp_path)).metrics
    assert metrics["epoch"] == pytest.approx(10 / (len(sentences) // 20))
    assert again.was_complete and again.state.global_step == 10
    for name, value in weights(whole).items():
        assert torch.equal(weights(again)[name], value), name
    longer = make_trainer(bert_folder, sentences, tmp_path, **options | {"max_steps": 12})
    longer.train(resume_from_checkpoint=last_complete_checkpoint(tmp_path))
    assert not longer.was_complete and longer.state.global_step == 12


def test_the_totals_of_a_run_cover_all_its_legs(bert_folder, sentences, tmp_path):
    """Mean loss, log and duration: one leg of ten steps, or two of which the first is ten times as long."""
    options = {"max_steps": 10, "logging_steps": 4, "save_strategy": "steps", "save_steps": 3}
    whole = make_trainer(bert_folder, sentences, tmp_path / "whole", **options)
    expected = whole.train().metrics
    checkpoint = tmp_path / "whole" / "checkpoint-6"
    totals = json.loads((checkpoint / TOTALS).read_text())
    (checkpoint / TOTALS).write_text(json.dumps(totals | {"seconds": 1000.0}))
    write_manifest(checkpoint)
    resumed = make_trainer(bert_folder, sentences, tmp_path / "out", **options)
    metrics = resumed.train(resume_from_checkpoint=str(checkpoint)).metrics
    assert metrics["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-6)
    assert 1000 < metrics["train_runtime"] < 1100
    assert metrics["train_steps_per_second"] == pytest.approx(10 / metrics["train_runtime"], abs=1e-3)
    losses = [[entry["loss"] for entry in run.state.log_history if "loss" in entry] for run in (whole, resumed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(losses[0]) == 2

    again = make_trainer(bert_folder, sentences, tmp_path / "whole", **options)
    metrics = again.train(resume_from_checkpoint=True).metrics
    assert again.was_complete and metrics["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-6)
    assert metrics["train_runtime"] == pytest.approx(expected["train_runtime"], rel=0.5)

    (checkpoint / TOTALS).write_text("{")
    write_manifest(checkpoint)
    with pytest.raises(InputError, match=f"no readable {TOTALS}"):
        make_trainer(bert_folder, sentences, tmp_path / "out", **options).train(resume_from_checkpoint=str(checkpoint))


def test_a_checkpoint_that_is_only_a_pickle_is_refused(run, bert_folder, sentences, tmp_path):
    folder = tmp_path / "checkpoint-12"
    shutil.copytree(run / "checkpoint-12", folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    write_manifest(folder)
    trainer = make_trainer(bert_folder, sentences, tmp_path / "out", max_steps=12)
    with pytest.raises(InputError, match="checkpoint-12: the weights are a pickle .*--allow_pickle"):
        trainer.train(resume_from_checkpoint=str(folder))


def test_which_files_of_a_checkpoint_are_pickles(run):
    """docs/design.md names them; torch reads them as tensors and plain values only."""
    names = {path.name for path in (run / "checkpoint-12").rglob("*") if path.is_file()}
    others = {name for name in names if not name.endswith((".json", ".safetensors", ".txt"))}
    assert others == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}


def test_only_one_process_of_a_folder_stores_totals(tmp_path):
    RunTotals().save(tmp_path, writes=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_stops_the_run(value):
    layer, state = torch.nn.Linear(2, 1), SimpleNamespace(global_step=4)
    layer.weight.grad = torch.tensor([[1.0, -1.0]])  # the bias has none
    check = StepChecks().on_pre_optimizer_step
    check(SimpleNamespace(fp16=False), state, None, model=layer)
    layer.weight.grad[0, 1] = value
    check(SimpleNamespace(fp16=True), state, None, model=layer)  # left to the gradient scaler
    with pytest.raises(InputError, match="the gradient is not finite at step 5; try"):
        check(SimpleNamespace(fp16=False), state, None, model=layer)


def test_which_checkpoint_is_meant(tmp_path):
    assert find_checkpoint(None, tmp_path) is None and find_checkpoint(False, tmp_path) is None
    assert find_checkpoint("auto", tmp_path) is None
    with pytest.raises(InputError, match=f"no checkpoint in {tmp_path}; leave it out"):
        find_checkpoint(True, tmp_path)
    with pytest.raises(InputError, match="nowhere is not a folder; give a folder checkpoint-N, or true"):
        find_checkpoint("nowhere", tmp_path)
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="checkpoint-3 is incomplete"):
        find_checkpoint(str(folder), tmp_path)
    write_manifest(folder)
    for asked in (True, "auto", str(folder)):
        assert find_checkpoint(asked, tmp_path) == str(folder)


@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_length_grouped_batches_go_on_in_the_same_order(bert_folder, sentences, tmp_path, accumulation):
    """Resumed in the second epoch, whose order is another."""
    texts = [" ".join([text] * (1 + row % 3)) + f" {row}" for row, text in enumerate(sentences)]
    run_whole_and_resumed(
        bert_folder, texts[:80], tmp_path, train_sampling_strategy="group_by_length", save_steps=6,
        per_device_train_batch_size=20, gradient_accumulation_steps=accumulation,
    )  # fmt: skip


def test_the_hooks_of_trainer_that_are_overridden_exist():
    """Fails with the name of a private method that a release of transformers renamed."""
    overridden = {
        name
        for kind in (MirrorTrainer, CMLMTrainer)
        for base in kind.__mro__[: kind.__mro__.index(Trainer)]
        for name in vars(base)
        if name.startswith("_") and not name.startswith("__") and hasattr(Trainer, name)
    }
    assert overridden == {"_get_grad_norm", "_load_best_model", "_load_from_checkpoint", "_save_checkpoint"}
    for name, parameters in {
        "_get_grad_norm": ["self", "model", "grad_norm"],
        "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
        "_save_checkpoint": ["self", "model", "trial"],
        "_load_best_model": ["self"],
        "_finish_current_push": ["self"],  # called, not overridden
    }.items():
        assert list(inspect.signature(getattr(Trainer, name)).parameters) == parameters, name


def steps_in(folder: Path) -> set[int]:
    return set(numbered_checkpoints(folder))


def test_checkpoints_are_rotated_by_step_and_not_by_time(bert_folder, sentences, tmp_path):
    """With the clock behind, the newest checkpoint has the oldest time."""
    trainer = make_trainer(
        bert_folder, sentences, tmp_path, save_strategy="steps", save_steps=2, max_steps=6, save_total_limit=2
    )
    for step in (2, 4):
        future = time.time() + 10_000 / step
        trainer.add_callback(At(step + 1, lambda n=step, t=future: os.utime(tmp_path / f"checkpoint-{n}", (t, t))))
    trainer.train()
    assert steps_in(tmp_path) == {4, 6}


@pytest.mark.parametrize(
    ("limit", "best", "left"),
    [
        (None, None, {2, 4, 6, 9}),
        (0, None, {2, 4, 6, 9}),
        (4, None, {2, 4, 6, 9}),
        (3, None, {2, 4, 6}),  # 9 is of a run that was overwritten
        (2, None, {4, 6}),
        (1, None, {6}),
        (1, 2, {2, 6}),
        (2, 2, {2, 6}),
        (3, 2, {2, 4, 6}),
    ],
)
def test_which_checkpoints_are_left(tmp_path, limit, best, left):
    for step in (2, 4, 6, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    rotate(tmp_path, limit, {str(tmp_path / "checkpoint-6"), best and str(tmp_path / f"checkpoint-{best}")}, 6)
    assert steps_in(tmp_path) == left and (tmp_path / "checkpoint-best").exists()


def test_the_best_checkpoint_is_left_however_the_folder_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for step in (2, 4, 6):
        (tmp_path / "out" / f"checkpoint-{step}").mkdir(parents=True)
    rotate("./out", 1, {"out/checkpoint-6", "./out/checkpoint-2"}, 6)
    assert steps_in(tmp_path / "out") == {2, 6}


def test_the_trainer_refuses_a_damaged_checkpoint_that_is_named_and_takes_auto(run, bert_folder, sentences, tmp_path):
    folder = Path(shutil.copytree(run / "checkpoint-8", tmp_path / "checkpoint-8"))
    (folder / "model.safetensors").write_bytes(b"damaged")
    trainer = make_trainer(bert_folder, sentences, tmp_path / "out", max_steps=12)
    with pytest.raises(InputError, match="checkpoint-8 is incomplete"):
        trainer.train(resume_from_checkpoint=str(folder))
    again = make_trainer(bert_folder, sentences, run, max_steps=12, save_strategy="steps", save_steps=4)
    again.train(resume_from_checkpoint="auto")
    assert again.was_complete


def test_a_folder_of_checkpoints_is_not_a_checkpoint(run):
    with pytest.raises(InputError, match="out holds checkpoints and is none; give .*checkpoint-12$"):
        find_checkpoint(str(run), run)


def test_an_output_folder_is_locked_while_a_trainer_trains_and_free_afterwards(bert_folder, sentences, tmp_path):
    code = "import sys; from mirror.common.files import lock_output_dir as lock; lock(sys.argv[1])"

    def others_may() -> bool:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
        assert not done.returncode or f"is in use by process {os.getpid()}" in done.stderr
        return done.returncode == 0

    during = []
    trainer = make_trainer(bert_folder, sentences, tmp_path, max_steps=2)
    trainer.add_callback(At(1, lambda: during.append(others_may())))
    trainer.train()
    assert during == [False] and others_may()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    for _ in range(2):
        with lock_output_dir(tmp_path):
            assert f"{tmp_path}: no locks on this file system" in caplog.text


@pytest.mark.slow
def test_two_processes_resume_length_grouped_batches_in_a_later_epoch(bert_folder, sentences, tmp_path):
    """Bit for bit: the order of the second epoch must reach the loader that skips batches."""
    texts = [" ".join([text] * (1 + row % 3)) + f" {row}" for row, text in enumerate(sentences)]
    (tmp_path / "texts.txt").write_text("\n".join(texts[:80]))
    flags = ["train_sampling_strategy=group_by_length", "save_strategy=steps", "save_steps=2", "max_steps=11"]
    command = ["-m", "tests.two_processes", bert_folder, str(tmp_path), *flags, "learning_rate=1e-3"]
    run_two_processes(*command)
    whole = load_file(tmp_path / "two" / "model.safetensors")
    for step in (6, 10):  # four steps are an epoch
        run_two_processes(*command, f"resume={tmp_path / 'two' / f'checkpoint-{step}'}")
        again = load_file(tmp_path / "two" / "model.safetensors")
        assert all(torch.equal(again[name], value) for name, value in whole.items()), step

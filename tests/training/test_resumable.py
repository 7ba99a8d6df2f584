"""A run that is stopped, or whose disk is full, keeps its last whole checkpoint and goes on to the same weights."""

from __future__ import annotations

import json
import math
import resource
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from mirror.common.errors import InputError
from mirror.training.manifest import is_complete, last_complete_checkpoint, write_manifest
from mirror.training.resumable import (
    TOTALS,
    FiniteGradients,
    ResumableTrainer,
    RunIsComplete,
    RunTotals,
    StopIfComplete,
)
from tests.tiny_trainer import At, make_trainer, weights


@pytest.fixture(scope="module")
def run(bert_folder, sentences, tmp_path_factory) -> Path:
    """A run of 12 steps with whole checkpoints after 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("run") / "out"
    make_trainer(bert_folder, sentences, folder, save_strategy="steps", save_steps=4, max_steps=12).train()
    return folder


def test_every_checkpoint_of_a_run_is_whole(run):
    assert all(is_complete(run / f"checkpoint-{step}") for step in (4, 8, 12))
    assert last_complete_checkpoint(run) == str(run / "checkpoint-12")


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


class StandIn(SimpleNamespace):
    """What the totals know of a trainer."""

    def __init__(self):
        super().__init__(_tr_loss=torch.tensor(0.5), _total_loss_scalar=2.0, _globalstep_last_logged=7)
        self.args, self._initial_global_step = SimpleNamespace(should_save=True), 5


def test_totals_are_stored_and_restored(tmp_path, monkeypatch):
    trainer, now = StandIn(), 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    totals = RunTotals(trainer)
    totals.on_train_begin(None, None, None)
    assert (totals.seconds, trainer._initial_global_step) == (0.0, 5)  # a first leg restores nothing
    totals.seconds, now = 30.0, 1012.0
    totals.save(tmp_path)
    stored = json.loads((tmp_path / TOTALS).read_text())
    assert stored == {"seconds": 42.0, "logged_loss": 2.0, "loss_since": 0.5, "last_logged_step": 7}

    resumed = StandIn()
    resumed._tr_loss, resumed._total_loss_scalar, resumed._globalstep_last_logged = torch.tensor(0.0), 0.0, 0
    totals, now = RunTotals(resumed), 5000.0
    totals.checkpoint = str(tmp_path)
    totals.on_train_begin(None, None, None)
    assert (totals.seconds, totals.start, resumed._initial_global_step) == (42.0, 5000.0, 0)
    assert (resumed._tr_loss.item(), resumed._total_loss_scalar, resumed._globalstep_last_logged) == (0.5, 2.0, 7)
    assert totals.of_complete_run(10) == {"train_runtime": 42.0, "train_loss": 0.25}
    # A leg of 14 seconds after 42: speeds count the steps of all legs, which transformers divides by the last one's.
    speeds = {"train_runtime": 14.0, "train_steps_per_second": 8.0, "train_samples_per_second": 40.0, "epoch": 1.0}
    assert totals.of_all_legs(speeds) == {
        **{"train_runtime": 56.0, "train_steps_per_second": 2.0, "train_samples_per_second": 10.0},
    }
    assert totals.of_all_legs({"train_runtime": 1 / 3}) == {"train_runtime": 42.3333}

    (tmp_path / TOTALS).write_text("{")
    with pytest.raises(InputError, match=f"no readable {TOTALS}"):
        totals.on_train_begin(None, None, None)


def test_only_one_process_of_a_folder_stores_totals(tmp_path):
    trainer = StandIn()
    trainer.args.should_save = False
    RunTotals(trainer).save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("step", "steps", "complete"), [(0, 0, False), (9, 10, False), (10, 10, True), (11, 10, True), (3, 0, False)]
)
def test_a_run_is_complete_at_its_last_step(step, steps, complete):
    state = SimpleNamespace(global_step=step, max_steps=steps)
    try:
        StopIfComplete().on_train_begin(None, state, None)
    except RunIsComplete:
        assert complete
    else:
        assert not complete


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_stops_the_run(value):
    layer, state = torch.nn.Linear(2, 1), SimpleNamespace(global_step=4)
    layer.weight.grad = torch.tensor([[1.0, -1.0]])  # the bias has none
    check = FiniteGradients().on_pre_optimizer_step
    check(SimpleNamespace(fp16=False), state, None, model=layer)
    layer.weight.grad[0, 1] = value
    check(SimpleNamespace(fp16=True), state, None, model=layer)  # left to the gradient scaler
    with pytest.raises(InputError, match="the gradient is not finite at step 5; try"):
        check(SimpleNamespace(fp16=False), state, None, model=layer)


def test_which_checkpoint_is_meant(tmp_path):
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path)))
    find = ResumableTrainer.find_checkpoint
    assert find(trainer, None) is None and find(trainer, False) is None
    with pytest.raises(InputError, match=f"no checkpoint in {tmp_path}"):
        find(trainer, True)
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "model.safetensors").write_bytes(b"x")
    write_manifest(tmp_path / "checkpoint-3")
    assert find(trainer, True) == str(tmp_path / "checkpoint-3")
    assert find(trainer, "elsewhere") == "elsewhere"

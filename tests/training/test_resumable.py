"""A run that is stopped, or whose disk is full, keeps its last whole checkpoint and goes on to the same weights."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mirror.common.errors import InputError
from mirror.training.manifest import is_complete, last_complete_checkpoint, write_manifest
from mirror.training.resumable import TOTALS
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
    again.train(resume_from_checkpoint=last_complete_checkpoint(tmp_path))
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

"""A checkpoint is resumed by the run that it belongs to; anything else is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from mirror.training.run_identity import FILE, differences
from tests.cmlm.test_trainer import make_trainer as make_cmlm_trainer
from tests.cmlm.test_trainer import rows_of
from tests.tiny_trainer import make_trainer


OPTIONS = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}


@pytest.fixture(scope="module")
def checkpoint(bert_folder, sentences, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("run") / "out"
    make_trainer(bert_folder, sentences, folder, **OPTIONS).train()
    return str(folder / "checkpoint-2")


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        ({"learning_rate": 1e-3}, "--learning_rate was 2e-05, now 0.001"),
        ({"pooling": "cls"}, "--pooling was mean, now cls"),
        ({"loss": "decoupled"}, "--loss was nt_xent, now decoupled"),
        ({"temperature": 0.1}, "--temperature was 0.04, now 0.1"),
        ({"weight_decay": 0.0}, "--weight_decay was 0.01, now 0.0"),
        ({"max_grad_norm": 0.5}, "--max_grad_norm was 0.0, now 0.5"),
        ({"lr_scheduler_type": "linear", "max_steps": 9}, "--lr_scheduler_type .*, --max_steps was 4, now 9"),
    ],
)
def test_a_changed_flag_is_named(bert_folder, sentences, tmp_path, checkpoint, flags, difference):
    changed = make_trainer(bert_folder, sentences, tmp_path, **OPTIONS | flags)
    with pytest.raises(
        InputError, match=f"checkpoint-2 is of another run \\({difference}\\); give .*--force"
    ) as refused:
        changed.train(resume_from_checkpoint=checkpoint)
    assert "\n" not in str(refused.value)


def test_with_force_the_change_is_made(bert_folder, sentences, tmp_path, checkpoint):
    changed = make_trainer(bert_folder, sentences, tmp_path, **OPTIONS, learning_rate=1e-3, force=True)
    changed.train(resume_from_checkpoint=checkpoint)
    assert changed.state.global_step == 4


def test_other_texts_are_seen(bert_folder, sentences, tmp_path, checkpoint):
    for texts in (sentences[::-1], sentences[:-1], [*sentences[:-1], "another text"]):
        changed = make_trainer(bert_folder, texts, tmp_path, **OPTIONS)
        with pytest.raises(InputError, match=r"another run \(other training texts\)"):
            changed.train(resume_from_checkpoint=checkpoint)


def test_another_model_is_seen(bert_folder, sentences, tmp_path, checkpoint):
    other = make_trainer(bert_folder, sentences, tmp_path / "other", max_steps=1, learning_rate=1e-3)
    other.train()
    other.save_model()
    changed = make_trainer(str(tmp_path / "other"), sentences, tmp_path, **OPTIONS)
    with pytest.raises(InputError, match="another model to start from"):
        changed.train(resume_from_checkpoint=checkpoint)


def test_what_changes_nothing_may_change(bert_folder, sentences, tmp_path, checkpoint):
    free = {"logging_steps": 1, "save_steps": 1, "dataloader_num_workers": 1, "preprocessing_num_workers": 2}
    longer = make_trainer(bert_folder, sentences, tmp_path, **OPTIONS | free | {"max_steps": 6, "run_name": "again"})
    longer.train(resume_from_checkpoint=checkpoint)
    assert longer.state.global_step == 6


def test_a_checkpoint_without_it_is_refused(bert_folder, sentences, tmp_path, checkpoint):
    folder = tmp_path / "checkpoint-2"
    for content in (None, "{", "[]", "{}"):
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
        (folder / FILE).unlink() if content is None else (folder / FILE).write_text(content)
        trainer = make_trainer(bert_folder, sentences, tmp_path / "out", **OPTIONS)
        with pytest.raises(InputError, match=f"checkpoint-2: no readable {FILE}"):
            trainer.train(resume_from_checkpoint=str(folder))


def test_processes_are_counted():
    one, two = ({"settings": {}, "model": "a", "texts": "b", "processes": count} for count in (1, 2))
    assert differences(one, one) == [] and differences(one, two) == ["processes: 1, now 2"]


@pytest.mark.parametrize(("stage", "streaming"), [("cmlm_bitext", True), ("nli", False)])
def test_cmlm_knows_its_texts_too(bert_folder, sentences, tmp_path, stage, streaming):
    def make(texts: list[str], folder: Path, **flags):
        return make_cmlm_trainer(bert_folder, rows_of(texts), folder, streaming, stage=stage, **OPTIONS | flags)

    make(sentences, tmp_path / "out").train()
    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    same = make(sentences, tmp_path / "same")
    same.train(resume_from_checkpoint=checkpoint)
    assert same.state.global_step == 4
    with pytest.raises(InputError, match="--margin was 0.3, now 0.1, other training texts"):
        make(sentences[::-1], tmp_path / "other", margin=0.1).train(resume_from_checkpoint=checkpoint)

"""A checkpoint is resumed by the run that it belongs to; anything else is named."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from datasets import Dataset, IterableDataset
from torch import nn

from mirror.cmlm.trainer import CMLMConfig
from mirror.common.errors import InputError
from mirror.common.files import write_manifest
from mirror.training.card import describe_views
from mirror.training.checkpoints import IDENTITY
from mirror.training.config import MirrorConfig
from mirror.training.encoder_trainer import differences, digest_of_model, digest_of_rows
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
        ({"mask_token": "[X]"}, r"--mask_token was not given, now \[X\]"),
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


def test_the_mask_token_is_recorded_and_compared_as_it_is(bert_folder, sentences, tmp_path):
    """transformers hides every `*_token` in `to_dict`."""
    trainer = make_trainer(bert_folder, sentences, tmp_path, **OPTIONS, mask_token="[X]")
    assert trainer.settings["mask_token"] == "[X]"
    assert describe_views(trainer.settings) == "span of 5 characters masked by '[X]' in the second view"
    hidden = of_settings(mask_token="<MASK_TOKEN>")  # a checkpoint of an earlier version
    assert differences(hidden, of_settings(mask_token="[X]")) == differences(hidden, of_settings()) == []
    assert " by " not in describe_views(trainer.settings | {"mask_token": "<MASK_TOKEN>"})
    assert differences(of_settings(mask_token="[X]"), of_settings()) == ["--mask_token was [X], now not given"]


@pytest.mark.parametrize("kind", [MirrorConfig, CMLMConfig])
def test_no_setting_but_the_secret_is_hidden(tmp_path, kind):
    names = [field.name for field in fields(kind) if field.name.endswith("_token")]
    values = kind(output_dir=str(tmp_path), **dict.fromkeys(names, "abc")).to_dict()
    assert [name for name in names if values[name] != "abc"] == ["hub_token"]
    hidden = [name for name, value in values.items() if str(value).startswith("<") and name not in names]
    assert not hidden


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
        (folder / IDENTITY).unlink() if content is None else (folder / IDENTITY).write_text(content)
        write_manifest(folder)
        trainer = make_trainer(bert_folder, sentences, tmp_path / "out", **OPTIONS)
        with pytest.raises(InputError, match=f"checkpoint-2: no readable {IDENTITY}"):
            trainer.train(resume_from_checkpoint=str(folder))


@pytest.mark.parametrize(
    ("stage", "streaming"), [("cmlm_bitext", True), pytest.param("nli", False, marks=pytest.mark.slow)]
)
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


def of_settings(**settings) -> dict:
    return {"settings": settings, "model": "a", "texts": "b", "processes": 1}


CHANGES_NOTHING = (
    *("data_dir", "dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory"),
    *("dataloader_prefetch_factor", "ddp_timeout", "disable_tqdm", "eval_steps", "greater_is_better", "hub_model_id"),
    *("load_best_model_at_end", "log_level", "logging_steps", "metric_for_best_model", "per_device_eval_batch_size"),
    *("preprocessing_num_workers", "project", "push_to_hub", "report_to", "resume_from_checkpoint", "run_name"),
    *("save_steps", "select_by", "trackio_space_id"),
)
COMPARED_BY_CONTENT = ("model_name_or_path", "train_file", "bitext_file", "nli_file")


@pytest.mark.parametrize("flag", CHANGES_NOTHING + COMPARED_BY_CONTENT)
def test_a_flag_that_changes_no_weight_is_not_compared(flag):
    assert differences(of_settings(**{flag: 1}), of_settings(**{flag: 2})) == []
    assert differences(of_settings(), of_settings(**{flag: 2})) == []


def test_all_that_differs_is_named_in_the_order_of_the_alphabet():
    stored = {**of_settings(seed=1, pooling="cls", projection_head=False), "model": "c", "texts": "d", "processes": 2}
    assert differences(stored, of_settings(seed=2, bf16=True, projection_head=True)) == [
        *("--bf16 was not given, now True", "--pooling was cls, now not given"),
        "--projection_head was False, now True",  # `project`, a flag of trackers, is free
        *("--seed was 1, now 2", "processes: 2, now 1", "another model to start from", "other training texts"),
    ]


@pytest.mark.parametrize(("schedule", "may_change"), [("constant", True), ("linear", False), (None, False)])
def test_only_a_constant_rate_leaves_the_length_open(schedule, may_change):
    for length in ("max_steps", "num_train_epochs"):
        stored, now = (of_settings(**{length: value, "lr_scheduler_type": schedule}) for value in (4, 9))
        assert differences(stored, now) == ([] if may_change else [f"--{length} was 4, now 9"])


def test_the_digest_of_a_model_is_that_of_names_and_bytes():
    layer = nn.Linear(2, 1, dtype=torch.bfloat16)
    layer.weight.data = torch.tensor([[1.0], [-2.0]], dtype=torch.bfloat16).T  # not contiguous
    layer.bias.data = torch.tensor([0.5], dtype=torch.bfloat16)
    by_hand = hashlib.sha256(b"weight" + bytes.fromhex("803f00c0") + b"bias" + bytes.fromhex("003f"))
    assert digest_of_model(layer) == by_hand.hexdigest()


def test_the_digest_of_texts_covers_every_row_in_order():
    texts = [str(number) for number in range(10_001)]
    digests = {
        digest_of_rows([Dataset.from_dict({"text": rows})])
        for rows in (texts, texts[::-1], texts[:-1], [*texts[:-1], "x"], ["x", *texts[1:]])
    }
    assert len(digests) == 5
    parts = [Dataset.from_dict({"text": rows}) for rows in (["a", "b"], ["c"])]
    by_hand = hashlib.sha256(b'{"text": ["a", "b"]}{"text": ["c"]}')
    assert digest_of_rows(parts) == by_hand.hexdigest() != digest_of_rows(parts[::-1])


def test_of_a_stream_the_first_thousand_rows_count():
    def endless(changed: int) -> Iterator[dict[str, str]]:
        for number in itertools.count():
            yield {"text": "x" if number == changed else "y"}

    def digest(changed: int) -> str:
        return digest_of_rows([IterableDataset.from_generator(endless, gen_kwargs={"changed": changed})])

    assert digest(0) != digest(2000) and digest(999) != digest(2000) and digest(1000) == digest(2000)

"""Values that transformers checks late or not at all: one line that names the flag, before anything is read."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from transformers import TrainingArguments

from mirror.cmlm.trainer import CMLMConfig
from mirror.common.errors import InputError
from mirror.training.config import MirrorConfig
from mirror.training.run_setup import preflight
from tests.tiny_trainer import make_trainer


NUMERIC = {
    field.name: "float" in str(field.type)
    for field in fields(TrainingArguments)
    if ("int" in str(field.type) or "float" in str(field.type)) and "str" not in str(field.type)
}
VALUES = [
    (name, value if is_float else int(value))
    for name, is_float in NUMERIC.items()
    for value in (-1.0, 0.0, math.nan, math.inf, 1e30)
    if name != "local_rank" and (is_float or float(value).is_integer())
]


def test_every_number_is_taken_or_its_flag_is_named(tmp_path):
    """-1, 0, nan, inf and 1e30 for each numeric flag of TrainingArguments."""
    assert len(VALUES) > 80
    for kind in (MirrorConfig, CMLMConfig):
        for name, value in VALUES:
            try:
                kind(output_dir=str(tmp_path), **{name: value})
            except InputError as error:
                assert str(error).startswith(f"--{name} ") and "\n" not in str(error)
            else:
                assert value == 0 or (name, value) == ("max_steps", -1), (name, value)


@pytest.mark.slow
def test_every_number_that_is_taken_trains(bert_folder, sentences, tmp_path):
    for name, value in VALUES:
        try:
            MirrorConfig(output_dir=str(tmp_path), **{name: value})
        except InputError:
            continue
        options = {"max_steps": 2, "num_train_epochs": 1, name: value}
        trainer = make_trainer(bert_folder, sentences[:40], tmp_path / name, **options)
        trainer.train()
        assert trainer.state.global_step == 2, name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"optim": "adamw_bnb_8bit"}, "--optim adamw_bnb_8bit: .*`bitsandbytes`"),
        ({"optim": "grokadamw"}, "--optim grokadamw: .*grokadamw"),
        ({"optim": "schedule_free_adamw"}, "--optim schedule_free_adamw: .*`schedulefree`"),
        ({"optim_args": "foo"}, f"--optim {TrainingArguments.default_optim}: "),
        ({"use_liger_kernel": True}, "--use_liger_kernel needs liger-kernel: pip install liger-kernel"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "--lr_scheduler_type cosine_with_min_lr .*min_lr_rate"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "--lr_scheduler_type warmup_stable_decay .*num_decay_steps"),
        (
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"foo": 1}},
            "--lr_scheduler_type polynomial with --lr_scheduler_kwargs {'foo': 1}: .*foo",
        ),
        *(({name: "caf\udce9"}, f"--{name} .* is not UTF-8; ") for name in ("prompt", "mask_token", "run_name")),
        ({"adam_beta1": 1.5}, r"--adam_beta1 must be in \[0, 1\), got 1.5"),
        ({"dataloader_multiprocessing_context": "x"}, "--dataloader_multiprocessing_context 'x' is unknown; one of "),
    ],
)
def test_what_a_library_would_refuse_after_the_texts_are_read(tmp_path, flags, message):
    with pytest.raises(InputError, match=f"^{message}") as refused:
        MirrorConfig(output_dir=str(tmp_path), **flags)
    assert "\n" not in str(refused.value)


def test_an_output_folder_that_is_not_utf8_is_refused_before_anything_is_read(tmp_path):
    """tokenizers cannot write there."""
    with pytest.raises(InputError, match="--output_dir .* is not UTF-8"):
        MirrorConfig(output_dir=str(tmp_path / "caf\udce9"))


@pytest.mark.parametrize(
    "flags",
    [
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
        {"optim": "adafactor"},
        {"optim": "sgd", "learning_rate": 0.5},
    ],
)
def test_what_a_library_takes(tmp_path, flags):
    MirrorConfig(output_dir=str(tmp_path), **flags)


def test_what_needs_the_model_is_one_line_too(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences[:40], tmp_path, optim="lomo", max_steps=1)
    with pytest.raises(InputError, match="^--optim lomo: .*`lomo_optim`"):
        trainer.train()


def test_a_logger_that_is_not_installed_is_named(bert_folder, tmp_path):
    config = MirrorConfig(output_dir=str(tmp_path), report_to=["flyte"])
    with pytest.raises(InputError, match="^--report_to flyte: .*flytekit.* or use --report_to none$") as refused:
        preflight(config, bert_folder)
    assert "tensorboard" not in str(refused.value)


@pytest.mark.parametrize(("count", "dropped"), [(41, True), (42, False), (40, False)])
def test_a_last_batch_of_one_text_has_no_negatives_and_is_dropped(
    bert_folder, sentences, tmp_path, caplog, count, dropped
):
    options = {"num_train_epochs": 1, "dataloader_drop_last": False, "logging_steps": 1}
    trainer = make_trainer(bert_folder, sentences[:count], tmp_path, **options)
    trainer.train()
    assert trainer.state.global_step == (2 if count < 42 else 3)
    assert all(entry["loss"] > 0 for entry in trainer.state.log_history if "loss" in entry)
    assert ("the last batch of an epoch has one text" in caplog.text) is dropped

"""A base model that is an encoder already has settings of its own; flags win, and the start says what was found."""

from __future__ import annotations

import random
from itertools import permutations

import pandas as pd
import pytest
from torch import nn
from transformers import AutoConfig, BertConfig

from mirror.common.errors import InputError
from mirror.data.corpus import load_corpus
from mirror.modeling.backbone import load_backbone
from mirror.modeling.save_checkpoint import save_encoder
from mirror.training.base_encoder import describe_base
from mirror.training.config import MirrorConfig
from mirror.training.options import ADAPTING_NAMES, ADAPTING_PAIRS, ENCODER_SETTINGS, LEVELS
from mirror.training.trainer import MirrorTrainer
from tests.tiny_trainer import make_trainer


SETTINGS = ENCODER_SETTINGS["sentence"]
TWO = {"gradient_accumulation_steps": 2}
LENGTH = {"max_steps": SETTINGS["max_steps"]}


def resolved(base: str | None = "mean", pairs: bool = False, names: bool = False, **flags) -> dict:
    """What stands in a configuration for a base with the pooling `base`, and what `resolve_for` changed."""
    config = MirrorConfig(**flags)
    changed = config.resolve_for("a/model", "bert", base, pairs, names)
    return vars(config) | {"changed": changed}


def test_an_encoder_has_its_own_noise_and_length_and_a_masked_lm_the_papers():
    encoder, raw = resolved(), resolved(base=None)
    assert encoder["changed"] == SETTINGS and {name: encoder[name] for name in SETTINGS} == SETTINGS
    assert resolved(pairs=True)["changed"] == ADAPTING_PAIRS and resolved(pairs=True, level="phrase")["changed"] == {}
    assert resolved(pairs=True, augmentation="crop")["changed"] == {}
    assert resolved(names=True)["changed"] == ADAPTING_NAMES and resolved(names=True)["augmentation"] == "span"
    assert resolved(names=True, pairs=True)["changed"] == ADAPTING_PAIRS and not resolved(None, names=True)["changed"]
    assert resolved(names=True, level="phrase")["changed"] == LENGTH == resolved(level="phrase")["changed"]
    assert raw["changed"] == {} and (raw["augmentation"], raw["augmentation_rate"]) == ("span", None)
    assert raw["max_steps"] == -1 and all(raw[name] == value for name, value in LEVELS["sentence"].items())
    others = LEVELS["sentence"].keys() - SETTINGS.keys()
    assert all(encoder[name] == raw[name] for name in (*others, "learning_rate"))


@pytest.mark.parametrize(
    "flags, changed",
    [
        ({"augmentation": "span"}, LENGTH),
        ({"augmentation": "delete"}, LENGTH),
        ({"augmentation": "crop", "augmentation_rate": 0.3}, LENGTH),
        ({"span_mask_length": 10}, LENGTH),
        ({"span_mask_length": 0}, LENGTH),
        ({"mask_token": "[MASK]"}, LENGTH),
        ({"augmentation": "span", "num_train_epochs": 1}, {}),
        ({"augmentation": "span", "max_steps": 3}, {}),
        ({"level": "word"}, {}),
        ({"pooling": "cls"}, {}),
    ],
    ids=str,
)
def test_what_the_user_says_of_the_noise_or_the_pooling_wins(flags, changed):
    encoder, raw = resolved(**flags), resolved(base=None, **flags)
    assert encoder["changed"] == changed
    assert all(encoder[name] == raw[name] for name in ("augmentation", "augmentation_rate", "span_mask_length"))


@pytest.mark.parametrize("flags", [{"num_train_epochs": 2.0}, {"max_steps": 100}], ids=str)
def test_what_the_user_says_of_the_length_wins_and_leaves_the_noise(flags):
    encoder, raw = resolved(**flags), resolved(base=None, **flags)
    assert encoder["changed"] == {name: value for name, value in SETTINGS.items() if name not in LENGTH}
    assert all(encoder[name] == raw[name] for name in ("max_steps", "num_train_epochs"))


@pytest.mark.parametrize(
    "texts, flags, steps",
    [(199, {}, -1), (200, {}, 20), (199, {"max_steps": 20}, 20), (399, TWO, -1)],
    ids=str,
)
def test_the_steps_of_an_encoder_are_at_most_one_pass(texts, flags, steps, tmp_path):
    config = MirrorConfig(output_dir=str(tmp_path), per_device_train_batch_size=10, **flags)
    config.resolve_for("a/model", "bert", "mean")
    config.fit_length(texts)
    assert config.max_steps == steps


@pytest.mark.parametrize(
    "rows, flags, passes",
    [
        *[(10, {}, 10), (19, {}, 10), (30, {}, 6), (100, {}, 2), (110, {}, 1), (5000, {}, 1)],  # (rows, 10 a step)
        *[(30, {"num_train_epochs": 2}, 2), (30, {"max_steps": 7}, 1), (30, {"level": "phrase"}, 2), (30, TWO, 10)],
    ],
    ids=str,
)
def test_few_pairs_are_repeated_in_whole_passes_of_at_most_20_steps(rows, flags, passes, tmp_path):
    config = MirrorConfig(output_dir=str(tmp_path), per_device_train_batch_size=10, **flags)
    config.resolve_for("a/model", "bert", "mean", pairs=True)
    config.fit_length(rows)
    assert config.num_train_epochs == passes and config.max_steps == flags.get("max_steps", -1)


@pytest.mark.parametrize(
    "rows, flags, batch",
    [
        (150, {}, 150),
        (2, {}, 2),
        (1, {}, 200),
        (200, {}, 200),
        (500, {}, 200),
        (150, {"per_device_train_batch_size": 160}, 160),
    ],
    ids=str,
)
def test_a_corpus_smaller_than_the_default_batch_is_one_batch(rows, flags, batch, tmp_path):
    config = MirrorConfig(output_dir=str(tmp_path), **flags)
    config.fit_batch(rows)
    assert config.train_batch_size == batch


def test_few_pairs_of_a_masked_lm_are_read_once(tmp_path):
    config = MirrorConfig(output_dir=str(tmp_path), per_device_train_batch_size=10)
    config.resolve_for("a/model", "bert", None, pairs=True)
    config.fit_length(30)
    assert config.num_train_epochs == 1


HELD_OUT, DISTINCT = "at most a tenth held out", "no repeated texts (--keep_duplicates)"


@pytest.mark.parametrize(
    ("model", "model_type", "flags", "differences"),
    [
        ("bert-base-uncased", "bert", {}, ["a mean without padding", HELD_OUT, DISTINCT]),
        ("roberta-base", "roberta", {}, [HELD_OUT, DISTINCT]),
        ("bert-base-uncased", "bert", {"level": "word"}, [HELD_OUT, DISTINCT]),
        ("bert-base-uncased", "bert", {"pooling": "mean_padded", "validation_samples": 0}, [DISTINCT]),
        (
            *("roberta-base", "roberta", {"temperature": 0.1, "learning_rate": 5e-5, "validation_samples": 0}),
            ["--temperature 0.1", "--learning_rate 5e-05", DISTINCT],
        ),
        ("bert-base-uncased", "bert", {"pooling": "cls"}, ["--pooling cls", HELD_OUT, DISTINCT]),
        (
            "bert-base-uncased",
            "bert",
            {"level": "word", "pooling": "mean"},
            ["a mean without padding", HELD_OUT, DISTINCT],
        ),
        ("roberta-base", "roberta", {"pooling": "mean_padded"}, ["--pooling mean_padded", HELD_OUT, DISTINCT]),
        (
            "roberta-base",
            "roberta",
            {
                **{"loss": "decoupled", "dropout_rate": 0.3, "augmentation": "delete"},
                **{"per_device_train_batch_size": 32, "weight_decay": 0.0, "drophead_rate": 0.2},
            },
            [
                *("--loss decoupled", "--augmentation delete", "--dropout_rate 0.3", "--drophead_rate 0.2"),
                *("--per_device_train_batch_size 32", "--weight_decay 0.0", HELD_OUT, DISTINCT),
            ],
        ),
        ("roberta-base", "roberta", {"augmentation": str.upper}, ["--augmentation upper", HELD_OUT, DISTINCT]),
    ],
)
def test_the_start_says_what_differs_from_the_settings_of_the_paper(model, model_type, flags, differences):
    config = MirrorConfig(**flags)
    changed = config.resolve_for(model, model_type)
    line = describe_base(model, None, nn.Sequential(), config, changed, AutoConfig.for_model(model_type))
    assert line.startswith(f"base: {model} is a masked language model; settings of the paper for ")
    assert line.partition(", except: ")[2] == ", ".join(differences)


def test_the_start_says_what_is_held_out_and_kept(bert_folder, sentences, tmp_path, caplog):
    flags = {"output_dir": str(tmp_path), "per_device_train_batch_size": 20, "validation_samples": 80}
    with caplog.at_level("INFO"):
        texts = load_corpus(pd.DataFrame({"text": sentences}), keep_duplicates=True)
        MirrorTrainer(bert_folder, MirrorConfig(**flags), texts)
    assert "a mean without padding, 80 held out" in caplog.text and "--keep_duplicates" not in caplog.text


def test_a_configuration_can_be_used_for_several_bases(bert_folder, sentences, tmp_path):
    """What one base needs is not taken for what the user gave for the next."""
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(tmp_path / "encoder", model, tokenizer, "mean", max_seq_length=24)
    config, fresh_config = (
        MirrorConfig(output_dir=str(tmp_path / "out"), per_device_train_batch_size=20) for _ in range(2)
    )
    first = MirrorTrainer(str(tmp_path / "encoder"), config, sentences).args
    second, fresh = (MirrorTrainer(bert_folder, each, sentences).args for each in (config, fresh_config))
    assert (first.augmentation, first.max_seq_length) == ("query", 24)
    for name in ("augmentation", "max_seq_length", "learning_rate", "max_steps", "pooling", "train_sampling_strategy"):
        assert getattr(second, name) == getattr(fresh, name), name


def test_the_padded_length_is_for_a_padded_mean(bert_folder, sentences, tmp_path):
    flags = {"output_dir": str(tmp_path), "per_device_train_batch_size": 20, "max_seq_length": 24}
    for pooling, length in (("mean", 32), ("mean_padded", 23), ("mean_padded", 0)):
        with pytest.raises(
            InputError, match=f"--pad_to {length} is for --pooling mean_padded, at least its --max_seq"
        ):
            MirrorTrainer(bert_folder, MirrorConfig(**flags, pooling=pooling, pad_to=length), sentences)
    trainer = MirrorTrainer(bert_folder, MirrorConfig(**flags, pooling="mean_padded", pad_to=32), sentences)
    assert next(iter(trainer.get_train_dataloader()))["input_ids"].shape[-1] == 32


def test_the_start_with_an_encoder_does_not_name_its_own_settings_twice():
    config = MirrorConfig()
    changed = config.resolve_for("a/model", "bert", "mean")
    line = describe_base("a/model", "mean", nn.Sequential(), config, changed, BertConfig())
    assert line == (
        "base: model is an encoder already (mean pooling); settings for adapting: --augmentation query "
        "--max_steps 20; the others of the paper for sentences, except: a mean without padding, "
        f"{HELD_OUT}, {DISTINCT} (docs/which-way.md)"
    )


def test_a_stream_which_has_no_passes_is_trained_on_for_the_steps_of_an_encoder(bert_folder, sentences, tmp_path):
    flags = {"span_mask_min_chars": None, "pooling": None}
    first = make_trainer(bert_folder, sentences, tmp_path / "one", max_steps=1, **flags)
    first.train()
    first.save_model()
    flags |= {"max_steps": -1, "num_train_epochs": None}
    second = make_trainer(str(tmp_path / "one"), sentences, tmp_path / "two", streaming=True, **flags)
    assert second.args.max_steps == LENGTH["max_steps"]
    assert first.settings["augmentation"] == "span" and second.settings["augmentation"] == "query"


def test_an_encoder_is_adapted_to_names_with_care_and_a_warning(bert_folder, tmp_path, caplog):
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(tmp_path / "encoder", model, tokenizer, "mean", max_seq_length=24)
    names = [
        f"{first} {second}" for first in ("red", "small", "old") for second in "car river cat bird house city".split()
    ]
    for texts, base, warns in (
        (names, "encoder", True),
        (names, None, False),
        ([f"{name} runs to the old house" for name in names], "encoder", False),
    ):
        caplog.clear()
        folder = str(tmp_path / base) if base else bert_folder
        config = MirrorConfig(output_dir=str(tmp_path / "out"), per_device_train_batch_size=4)
        trainer = MirrorTrainer(folder, config, texts)
        assert ("most texts have fewer than six words; to adapt an encoder to names can make" in caplog.text) == warns
        assert (trainer.args.span_mask_length == 2 and trainer.args.augmentation == "span") == warns


def test_titles_are_pairs_for_an_encoder_unless_the_noise_is_chosen(bert_folder, tmp_path, caplog):
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(tmp_path / "encoder", model, tokenizer, "mean", max_seq_length=24)
    words = "river mountain city house tree bird fish".split()
    texts = [
        text
        for one, other in random.Random(0).sample([*permutations(words, 2)], 42)
        for text in (f"{one} {other}", f"the cat runs to the {other} and to the {one}")
    ]
    for folder, flags, found in (
        (str(tmp_path / "encoder"), {}, True),
        (str(tmp_path / "encoder"), {"learning_rate": 1e-4}, True),
        (str(tmp_path / "encoder"), {"augmentation": "delete"}, False),
        (str(tmp_path / "encoder"), {"pooling": "cls"}, False),
        (str(tmp_path / "encoder"), {"level": "phrase"}, False),
        (bert_folder, {}, False),
    ):
        caplog.clear()
        config = MirrorConfig(output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, **flags)
        with caplog.at_level("INFO"):
            trainer = MirrorTrainer(folder, config, texts)
        assert (
            trainer.corpus.has_pairs == found
            and (f"{len(texts) // 2} of {len(texts)} texts are titles" in caplog.text) == found
        )
        assert trainer.settings["augmentation"] == ("none" if found else config.augmentation)

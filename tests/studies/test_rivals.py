"""Rival ways to adapt an encoder: each trains by its own library, and leaves a folder with a record that a study reads."""

from __future__ import annotations

import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from mirror.common.errors import InputError
from mirror.training.record import RunRecord
from studies import rivals
from studies.cell import own_text_of


@pytest.fixture(scope="module")
def encoder(bert_folder, tmp_path_factory) -> str:
    """A tiny BERT as an encoder of sentence-transformers."""
    folder, base = str(tmp_path_factory.mktemp("encoder")), Transformer(bert_folder)
    SentenceTransformer(modules=[base, Pooling(base.get_embedding_dimension(), "mean")]).save(folder)
    return folder


@pytest.fixture(scope="module")
def texts(sentences, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(f"{text} number {at}" for at, text in enumerate((sentences * 3)[:160])) + "\n")
    return str(path)


def adapt(monkeypatch, *flags: str) -> None:
    monkeypatch.setattr("sys.argv", ["rivals.py", *flags])
    rivals.main()


@pytest.mark.parametrize(
    "method", [name if name == "tsdae" else pytest.param(name, marks=pytest.mark.slow) for name in rivals.PUBLISHED]
)
def test_each_method_trains_and_leaves_what_a_study_reads(method, encoder, texts, tmp_path, monkeypatch):
    flags = ["--model_name_or_path", encoder, "--train_file", texts, "--output_dir", str(tmp_path)]
    flags += ["--validation_samples", "60", "--per_device_train_batch_size", "25", "--num_train_epochs", "1"]
    adapt(monkeypatch, "--method", method, *flags, "--learning_rate", "1e-3")
    result = own_text_of(RunRecord.load(tmp_path))
    assert result["tests"].keys() == {"words", "halves"} and 0 < result["main_score"] < 1
    before, after = (load_file(f"{folder}/model.safetensors") for folder in (encoder, tmp_path))
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)
    assert SentenceTransformer(str(tmp_path)).encode("a text").shape == (32,)


def test_weights_are_merged_with_those_of_the_base(encoder, texts, tmp_path, monkeypatch):
    flags = [
        "--model_name_or_path",
        encoder,
        "--train_file",
        texts,
        "--method",
        "simcse",
        "--validation_samples",
        "60",
    ]
    flags += ["--learning_rate", "1e-3", "--per_device_train_batch_size", "25"]
    states = [load_file(f"{encoder}/model.safetensors")]
    for merge in ("0.25", "1"):
        adapt(monkeypatch, *flags, "--output_dir", str(tmp_path / merge), "--merge", merge)
        states.append(load_file(tmp_path / merge / "model.safetensors"))
    base, quarter, whole = states
    for name, value in base.items():
        torch.testing.assert_close(quarter[name], 0.75 * value + 0.25 * whole[name])
    assert any((whole[name] - value).abs().max() > 1e-4 for name, value in base.items())


@pytest.mark.parametrize("method", ["simcse", "gist"])
def test_a_batch_too_large_for_the_memory_gives_the_same_encoder(method, encoder, texts, tmp_path, monkeypatch):
    still = tmp_path / "still"  # without dropout, whose draws depend on the size of the mini-batches
    shutil.copytree(encoder, still)
    config = json.loads((still / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config))
    flags = ["--model_name_or_path", str(still), "--train_file", texts, "--method", method]
    flags += ["--validation_samples", "60", "--learning_rate", "1e-3", "--per_device_train_batch_size", "25"]
    monkeypatch.setattr("mirror.training.config.choose_precision", lambda *_: (False, False, "float32"))
    vectors = [SentenceTransformer(str(still)).encode(["a text", "some others"])]
    for size in (None, 7):
        fitting = Mock(return_value=size)
        monkeypatch.setattr("mirror.training.gradient_cache.texts_in_memory", fitting)
        adapt(monkeypatch, *flags, "--output_dir", str(tmp_path / str(size)))
        assert fitting.call_args.args[2:] == (16, 50)  # texts measured, and those of both sides of a batch
        vectors.append(SentenceTransformer(str(tmp_path / str(size))).encode(["a text", "some others"]))
    before, whole, parts = vectors
    assert abs(whole - before).max() > 0.01
    np.testing.assert_allclose(parts, whole, atol=1e-4)


def test_a_limit_on_the_time_ends_training(encoder, texts, tmp_path, monkeypatch, caplog):
    flags = [
        "--model_name_or_path",
        encoder,
        "--train_file",
        texts,
        "--output_dir",
        str(tmp_path),
        "--method",
        "simcse",
    ]
    adapt(monkeypatch, *flags, "--num_train_epochs", "100000", "--max_seconds", "1")
    assert RunRecord.load(tmp_path).metrics["train_runtime"] < 30


def test_a_missing_file_is_one_line(encoder, tmp_path, monkeypatch):
    flags = ["--model_name_or_path", encoder, "--train_file", "none.txt", "--output_dir", str(tmp_path)]
    with pytest.raises(InputError, match=r"none\.txt: no such file"):
        adapt(monkeypatch, *flags, "--method", "simcse")

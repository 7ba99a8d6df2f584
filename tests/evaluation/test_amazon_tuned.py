from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import run_eval
from mirror.common.errors import InputError
from mirror.evaluation import amazon, amazon_tuned
from mirror.evaluation.amazon import TEST, TRAIN
from mirror.evaluation.catalogue import all_groups, all_tasks
from mirror.evaluation.run import PreparedTask
from mirror.modeling.encoder import Encoder
from tests.evaluation.folder import write_tsv


REVIEWS = 96


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A positive and a negative review, repeated; inverted in French, both positive in Japanese."""
    for name, files in (("TRAIN", TRAIN), ("TEST", TEST)):
        monkeypatch.setattr(amazon, name, {key: replace(file, rows=()) for key, file in files.items()})
    monkeypatch.setattr(amazon_tuned, "LEARNING_RATE", 2e-3)  # higher, because the model and the data are tiny
    for file in (*TRAIN.values(), *TEST.values()):
        language = file.path.split("/")[1][:2]
        rows = []
        for n in range(REVIEWS):
            good = n % 2 == 0
            said = {"en": good, "de": good, "fr": not good, "jp": True}[language]
            rows.append((5 if good else 1, "new" if said else "old", "sun and song" if said else "rain and wind"))
        write_tsv(tmp_path / file.path, ("rating", "summary", "text"), rows)
    [task] = amazon_tuned.tasks(tmp_path)
    return PreparedTask(replace(task, files=tuple(amazon.TRAIN.values())), tmp_path)


def parameters(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def test_scoring_is_deterministic_and_changes_neither_encoder_nor_random_state(bert_folder, prepared):
    encoder = Encoder.from_pretrained(bert_folder, "mean", 16, device="cpu")
    before, state = parameters(encoder.model), torch.get_rng_state()
    one = prepared.score(encoder.encode, encoder)
    assert torch.equal(parameters(encoder.model), before)
    assert not encoder.model.training
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)  # the result does not depend on the caller's seed
    two = prepared.score(encoder.encode, encoder)
    assert {**one, "seconds": 0} == {**two, "seconds": 0}

    accuracy = one["accuracy"]
    assert (accuracy["en"], accuracy["de"], accuracy["fr"], accuracy["jp"]) == (1, 1, 0, 0.5)
    assert one["main_score"] == 0.5
    assert (one["seed"], one["epochs"], one["train_batch_size"]) == (0, 2, 32)


@pytest.mark.parametrize(("pooling", "dtype"), [("mean", "float32"), ("cls", "bfloat16")])
def test_every_layer_of_the_copy_is_trained_in_float32(bert_folder, pooling, dtype):
    encoder = Encoder.from_pretrained(bert_folder, pooling, 16, dtype, device="cpu")
    reviews = {"summary": ["new", "old"] * 16, "text": ["sun and song", ""] * 16}
    before = [parameter.detach().float().clone() for parameter in encoder.model.parameters()]
    labelled = reviews, np.array([True, False] * 16)
    classifier, _ = amazon_tuned.train_classifier(encoder, labelled, labelled)
    again, _ = amazon_tuned.train_classifier(encoder, labelled, labelled)
    assert torch.equal(parameters(classifier), parameters(again))
    for (name, trained), old in zip(classifier.model.named_parameters(), before, strict=True):
        assert trained.dtype == torch.float32
        # Adam moves weights with a gradient by about 2e-5 per step; the bias of the keys has none (softmax).
        assert name.endswith("key.bias") or (trained - old).abs().max() > 1e-5, name


def test_the_epoch_with_the_best_accuracy_on_dev_is_kept(bert_folder, monkeypatch):
    """Dev labels that are the opposite of the training labels: the less trained classifier is the better one."""
    encoder = Encoder.from_pretrained(bert_folder, "mean", 16, device="cpu")
    reviews, labels = (
        {"summary": ["new", "old"] * 16, "text": ["sun and song", "rain"] * 16},
        np.array([True, False] * 16),
    )
    monkeypatch.setattr(amazon_tuned, "LEARNING_RATE", 2e-3)
    monkeypatch.setattr(amazon_tuned, "EPOCHS", 3)
    _, worst = amazon_tuned.train_classifier(encoder, (reviews, labels), (reviews, ~labels))
    kept, best = amazon_tuned.train_classifier(encoder, (reviews, labels), (reviews, labels))
    assert worst == 1 and kept.accuracy(reviews, labels) == 1 and best in (1, 2, 3)


def test_a_dense_layer_after_pooling_is_copied_and_trained_too(bert_folder):
    from sentence_transformers.models import Dense

    plain = Encoder.from_pretrained(bert_folder, "mean", 16, device="cpu")
    encoder = Encoder(plain.model, plain.tokenizer, "mean", 16, [Dense(32, 8)])
    before = parameters(encoder.head)
    reviews = {"summary": ["new", "old"] * 16, "text": ["sun", "rain"] * 16}
    labelled = reviews, np.array([True, False] * 16)
    classifier, _ = amazon_tuned.train_classifier(encoder, labelled, labelled)
    assert classifier.linear.in_features == 4 * 8
    assert torch.equal(parameters(encoder.head), before)
    assert (parameters(classifier.head) - before).abs().max() > 1e-5


def test_scoring_without_the_encoder_is_an_error(prepared):
    with pytest.raises(InputError, match="task amazon_zero_shot_tuned trains a copy of the encoder"):
        prepared.score(lambda texts: np.zeros((len(texts), 2)))


@pytest.mark.parametrize("flag", ["--truncate_dim", "--remove_components"])
def test_transformations_of_embeddings_are_refused(prepared, tmp_path, monkeypatch, flag):
    flags = ["--model_name_or_path", "none", "--tasks", prepared.name, "--data_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *flags, "--output_dir", str(tmp_path / "out"), flag, "2"])
    with pytest.raises(InputError, match="amazon_zero_shot_tuned trains the encoder; leave out --truncate_dim"):
        run_eval.main()
    assert not (tmp_path / "out").exists()


def test_run_eval_passes_the_encoder(bert_folder, prepared, tmp_path, monkeypatch):
    flags = [
        "--model_name_or_path",
        bert_folder,
        "--pooling",
        "mean",
        "--tasks",
        prepared.name,
        "--max_seq_length",
        "16",
    ]
    monkeypatch.setattr(
        sys, "argv", ["run_eval.py", *flags, "--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "out")]
    )
    run_eval.main()
    record = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert record["tasks"][prepared.name]["accuracy"]["en"] == 1


def test_the_task_is_in_no_group(tmp_path):
    tasks = all_tasks(tmp_path)
    assert [name for name, task in tasks.items() if task.trains] == ["amazon_zero_shot_tuned"]
    assert all("amazon_zero_shot_tuned" not in members for members in all_groups(tasks).values())

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers.models import Dense

import run_eval
from mirror.common.errors import InputError
from mirror.evaluation import amazon
from mirror.evaluation.amazon import TEST, TRAIN
from mirror.evaluation.run import PreparedTask
from mirror.modeling.encoder import Encoder
from tests.evaluation.folder import task_named, write_tsv


@pytest.fixture
def reviews(tmp_path):
    """Every file has 2,000 reviews with 1, 2, 4, 5, 1, ... stars; the summary contains the number of stars."""
    for file in (*amazon.TRAIN.values(), *amazon.TEST.values()):
        language = file.path.split("/")[1][:2]
        stars = [(1, 2, 4, 5)[n % 4] for n in range(2000)]
        rows = [(s > 3, s, f"{language} {s}", f"text {n}") for n, s in enumerate(stars)]
        write_tsv(tmp_path / file.path, ("label", "rating", "summary", "text"), rows)
    return tmp_path


def encode(texts):
    """Encode the sentiment along x: as it is in English and German, inverted in French, absent in Japanese."""
    sign = {"en": 1, "de": 1, "fr": -1, "jp": 0, "text": 0}
    words = [text.split() for text in texts]
    along = [sign[kind] * (int(number) - 3) for kind, number in words]
    noise = np.random.default_rng(0).normal(size=(len(texts), 3)) * 0.1
    return np.column_stack([along, noise]).astype(np.float32)


@pytest.mark.parametrize(("name", "calls"), [("amazon_zero_shot", [12000] * 5), ("amazon_by_domain", [4000] * 15)])
def test_a_classifier_of_english_reviews_is_tested_on_each_language(reviews, name, calls):
    """CMLM section 4.5.2: one on three domains, 90% for training, 6,000 test reviews in each language; or one per domain."""
    sizes = []

    def counting(texts):
        sizes.append(len(texts))
        return encode(texts)

    task = task_named(name, reviews)
    task.check(reviews)
    fields = task.score(counting, reviews)
    assert sizes == calls  # summaries and texts of English, then of the four test languages
    accuracy = fields["accuracy"]
    assert (accuracy["en"], accuracy["de"], accuracy["fr"]) == (1, 1, 0)
    assert accuracy["jp"] == fields["accuracy_jp"] == pytest.approx(0.5, abs=0.1)
    assert fields["main_score"] == pytest.approx((1 + 0 + accuracy["jp"]) / 3)
    assert fields["num_examples"] == 18000
    train, dev = amazon.train_dev_rows(np.arange(6000) % 2 == 0)
    assert (len(train), len(dev), (dev % 2).mean()) == (5400, 600, 0.5) and not set(train) & set(dev)
    assert ("chosen_c" in fields) == bool(task.published) == (name == "amazon_zero_shot")
    if name == "amazon_by_domain":
        assert set(fields["accuracy_by_domain"]["jp"]) == {"books", "dvd", "music"}


def test_more_than_three_stars_are_positive_and_an_invalid_rating_is_an_error(reviews):
    file, header = amazon.TEST["de", "dvd"], ("label", "rating", "summary", "text")
    write_tsv(reviews / file.path, header, [("1", "34"[n % 2], "de 4", "text 0") for n in range(2000)])
    assert amazon.read_reviews([file], reviews)[1][:4].tolist() == [False, True, False, True]
    rows = [("1", "4", "de 4", "text 0")] * 1999 + [("1", "six", "de 4", "text 0")]
    write_tsv(reviews / file.path, header, rows)
    with pytest.raises(InputError, match=r"de_dvd_test\.tsv, line 2001: rating 'six'"):
        amazon.read_reviews([file], reviews)


REVIEWS = 96


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A positive and a negative review, repeated; inverted in French, both positive in Japanese."""
    for name, files in (("TRAIN", TRAIN), ("TEST", TEST)):
        monkeypatch.setattr(amazon, name, {key: replace(file, rows=()) for key, file in files.items()})
    monkeypatch.setattr(amazon, "LEARNING_RATE", 2e-3)  # higher, because the model and the data are tiny
    for file in (*TRAIN.values(), *TEST.values()):
        language, rows = file.path.split("/")[1][:2], []
        for good in (True, False) * (REVIEWS // 2):
            said = {"en": good, "de": good, "fr": not good, "jp": True}[language]
            rows.append((5 if good else 1, "new" if said else "old", "sun and song" if said else "rain and wind"))
        write_tsv(tmp_path / file.path, ("rating", "summary", "text"), rows)
    task = task_named("amazon_zero_shot_tuned", tmp_path)
    assert task.trains and not task.groups
    return PreparedTask(replace(task, files=tuple(amazon.TRAIN.values())), tmp_path)


def parameters(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def test_scoring_is_deterministic_and_changes_neither_encoder_nor_random_state(bert_folder, prepared):
    encoder = Encoder.from_pretrained(bert_folder, "mean", 16, device="cpu")
    before, state = parameters(encoder.model), torch.get_rng_state()
    one = prepared.score(encoder.encode, encoder)
    assert torch.equal(parameters(encoder.model), before) and not encoder.model.training
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
    """Also a dense layer after pooling, which belongs to the copy too."""
    plain = Encoder.from_pretrained(bert_folder, pooling, 16, dtype, device="cpu")
    dense = Dense(32, 8).to(plain.model.dtype)
    encoder = Encoder(plain.model, plain.tokenizer, pooling, 16, [dense])
    reviews = {"summary": ["new", "old"] * 16, "text": ["sun and song", ""] * 16}
    before = [parameter.detach().float().clone() for parameter in encoder.model.parameters()]
    head = parameters(encoder.head)
    labeled = reviews, np.array([True, False] * 16)
    classifier, _ = amazon.train_classifier(encoder, labeled, labeled)
    again, _ = amazon.train_classifier(encoder, labeled, labeled)
    assert torch.equal(parameters(classifier), parameters(again))
    for (name, trained), old in zip(classifier.model.named_parameters(), before, strict=True):
        assert trained.dtype == torch.float32
        # Adam moves weights with a gradient by about 2e-5 per step; the bias of the keys has none (softmax).
        assert name.endswith("key.bias") or (trained - old).abs().max() > 1e-5, name
    assert classifier.linear.in_features == 4 * 8
    assert torch.equal(parameters(encoder.head), head)
    assert (parameters(classifier.head) - head).abs().max() > 1e-5


def test_the_epoch_with_the_best_accuracy_on_dev_is_kept(bert_folder, monkeypatch):
    """Dev labels that are the opposite of the training labels: the less trained classifier is the better one."""
    encoder = Encoder.from_pretrained(bert_folder, "mean", 16, device="cpu")
    reviews = {"summary": ["new", "old"] * 16, "text": ["sun and song", "rain"] * 16}
    labels = np.array([True, False] * 16)
    monkeypatch.setattr(amazon, "LEARNING_RATE", 2e-3)
    _, worst = amazon.train_classifier(encoder, (reviews, labels), (reviews, ~labels))
    kept, _ = amazon.train_classifier(encoder, (reviews, labels), (reviews, labels))
    assert worst == 1 and kept.accuracy(reviews, labels) == 1


@pytest.mark.parametrize("flag", ["--truncate_dim", "--remove_components"])
def test_transformations_of_embeddings_are_refused(prepared, tmp_path, monkeypatch, flag):
    flags = ["--model_name_or_path", "none", "--tasks", prepared.name, "--data_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *flags, "--output_dir", str(tmp_path / "out"), flag, "2"])
    with pytest.raises(InputError, match="amazon_zero_shot_tuned trains the encoder; leave out --truncate_dim"):
        run_eval.main()
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="task amazon_zero_shot_tuned trains a copy of the encoder"):
        prepared.score(lambda texts: np.zeros((len(texts), 2)))


def test_run_eval_passes_the_encoder(bert_folder, prepared, tmp_path, monkeypatch):
    flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--tasks", prepared.name]
    flags += ["--max_seq_length", "16", "--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *flags])
    run_eval.main()
    record = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert record["tasks"][prepared.name]["accuracy"]["en"] == 1

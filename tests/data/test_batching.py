"""Batches of like length: every text once, the same order in every process and after a resume, another in every epoch."""

from __future__ import annotations

import numpy as np
import torch

from mirror.data.batching import LikeLengthSampler
from tests.tiny_trainer import make_trainer
from tests.training.test_trainer import weights


def of_many_lengths(sentences: list[str]) -> list[str]:
    return [" ".join([text] * (1 + row % 3)) + f" {row}" for row, text in enumerate(sentences)]


def test_batches_are_alike_in_length_and_hold_every_text_once(bert_folder, sentences, tmp_path):
    texts = of_many_lengths(sentences)
    trainer = make_trainer(bert_folder, texts, tmp_path, batching="length", packing="off")
    sampler = trainer._get_train_sampler()
    order = list(sampler)
    lengths = np.maximum(trainer.train_dataset.lengths("first_ids"), trainer.train_dataset.lengths("second_ids"))
    spread = [np.ptp(lengths[order[start : start + 20]]) for start in range(0, len(order), 20)]
    assert sorted(order) == list(range(len(texts))) and len(sampler) == len(texts)
    assert np.mean(spread) < 0.5 * np.ptp(lengths)


def test_the_order_is_a_function_of_seed_and_epoch(bert_folder, sentences, tmp_path):
    dataset = make_trainer(bert_folder, of_many_lengths(sentences), tmp_path).train_dataset
    sampler = LikeLengthSampler(dataset, 20, seed=5)
    first = list(sampler)
    torch.manual_seed(99)
    assert list(sampler) == first == list(LikeLengthSampler(dataset, 20, seed=5))
    assert list(LikeLengthSampler(dataset, 20, seed=6)) != first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_a_resume_goes_on_in_the_same_order(bert_folder, sentences, tmp_path):
    texts = of_many_lengths(sentences)
    options = {"batching": "length", "save_strategy": "steps", "save_steps": 15, "learning_rate": 1e-3}
    whole = make_trainer(bert_folder, texts, tmp_path / "whole", **options)
    orders = []
    original = LikeLengthSampler.__iter__

    def remember(sampler):
        orders.append((sampler.epoch, list(original(sampler))))
        return iter(orders[-1][1])

    LikeLengthSampler.__iter__ = remember
    try:
        whole.train()
        again = make_trainer(bert_folder, texts, tmp_path / "again", **options)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-15"))
    finally:
        LikeLengthSampler.__iter__ = original
    assert [epoch for epoch, _ in orders] == [0, 1, 1] and orders[1] == orders[2] and orders[0][1] != orders[1][1]
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name

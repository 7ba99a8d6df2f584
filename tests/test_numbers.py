"""Tests numbers at the edge: the result is finite, or the run stops with a line that says why."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.training.losses import info_nce, multi_similarity
from mirror.training.options import LOSSES
from tests.tiny_trainer import make_trainer


@pytest.mark.parametrize("form", LOSSES)
@pytest.mark.parametrize("temperature", [1e-4, 0.04])
@pytest.mark.parametrize("kind", ["zeros", "identical", "random", "huge", "tiny"])
def test_loss_and_gradient_are_finite(form, temperature, kind):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 8, generator=generator)
    made = {"zeros": rows * 0, "identical": rows[:1].repeat(6, 1), "random": rows}
    made |= {"huge": rows * 1e15, "tiny": rows * 1e-30}
    first = made[kind].clone().requires_grad_()
    second = made[kind].flip(1)
    if form == "multi_similarity":  # which has no temperature
        loss = multi_similarity(first, second)
    else:
        loss = info_nce(first, second, temperature, form)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(first.grad).all()


@pytest.mark.parametrize("options", [{"temperature": 1e-4}, {"span_mask_length": 23}, {"packing": "off"}])
def test_texts_of_one_token_of_nothing_and_of_100_000_characters_train(bert_folder, sentences, tmp_path, options):
    texts = [*sentences[:36], "cat", "\u200b", "x" * 100_000, "日"]
    trainer = make_trainer(bert_folder, texts, tmp_path, max_steps=2, **options)
    trainer.train()
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())


def test_texts_without_a_token_still_have_vectors(bert_folder):
    vectors = Encoder.from_pretrained(bert_folder, pooling="mean").encode(["", "\u200b", "cat", "y" * 100_000])
    assert np.isfinite(vectors).all() and vectors.shape == (4, 32)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_gradient_that_is_not_finite_stops_the_run_before_the_weights_take_it(
    bert_folder, sentences, tmp_path, bad
):
    trainer = make_trainer(bert_folder, sentences, tmp_path, max_steps=3)
    weight = trainer.model.embeddings.word_embeddings.weight
    weight.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([5]), bad))
    with pytest.raises(InputError, match="the gradient is not finite at step 1"):
        trainer.train()
    assert torch.isfinite(weight).all()

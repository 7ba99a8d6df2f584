"""The estimate of a step's memory against what a real step keeps."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from mirror.modeling.backbone import load_backbone
from mirror.modeling.memory_estimate import ADAMW_BYTES, estimate_step_bytes, kept_bytes
from mirror.modeling.packing import configure_noise_and_packing


@pytest.fixture
def model(bert_folder):
    model, _ = load_backbone(bert_folder, "mean")
    configure_noise_and_packing(model, "mean", dropout_rate=0.1)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_is_what_a_batch_keeps(model, dtype):
    views, tokens = 24, 10
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kept = kept_bytes(model, views, tokens, dtype)
    assert kept > views * tokens * 4 * model.config.hidden_size
    estimate = estimate_step_bytes(model, views, tokens, compared=views, dtype=dtype)
    assert estimate == pytest.approx(ADAMW_BYTES * parameters + kept + 12 * views**2, rel=0.01)


def test_views_that_share_their_noise_are_rows_in_pairs(bert_folder):
    model, _ = load_backbone(bert_folder, "mean")
    configure_noise_and_packing(model, "mean", dropout_rate=0.1, controlled_dropout=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    estimate = estimate_step_bytes(model, 24, 10, compared=24, dtype=torch.float32)
    kept = kept_bytes(model, 24, 10, torch.float32)
    assert estimate == pytest.approx(ADAMW_BYTES * parameters + kept + 12 * 24**2, rel=0.01)


def test_low_precision_keeps_less_and_longer_texts_keep_more(model):
    assert kept_bytes(model, 2, 10, torch.bfloat16) < kept_bytes(model, 2, 10, torch.float32)
    assert kept_bytes(model, 2, 20, torch.float32) > 2 * kept_bytes(model, 2, 10, torch.float32)


def test_estimating_leaves_the_run_as_it_was(model):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    estimate_step_bytes(model.eval(), 8, 10, compared=8, dtype=torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_measured_is_let_go(bert_folder, dtype):
    model, _ = load_backbone(bert_folder, "mean")
    configure_noise_and_packing(model, "mean", dropout_rate=0.1)
    weight = weakref.ref(model.get_input_embeddings().weight)
    kept_bytes(model, 2, 10, dtype)
    del model
    gc.collect()
    assert weight() is None

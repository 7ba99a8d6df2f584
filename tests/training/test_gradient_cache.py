"""Gradient caching: the gradient of the whole batch, noise included, in the memory of a part."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from mirror.training.gradient_cache import backward_through_cache, random_state, set_random_state
from mirror.training.losses import info_nce
from tests.tiny_trainer import make_trainer
from tests.training.test_trainer import first_gradient


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 4)).train()


def mini_batches(sizes: list[int]) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(2 * size, 6, generator=generator)} for size in sizes]


def plain_gradient(network: nn.Module, batches: list[dict]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """All mini-batches in one graph, drawing the same noise in the same order."""
    pieces = [network(batch["x"]).chunk(2) for batch in batches]
    loss = info_nce(*(torch.cat(side) for side in zip(*pieces, strict=True)), 0.1)
    return loss, list(torch.autograd.grad(loss, list(network.parameters())))


@pytest.mark.parametrize("sizes", [[4, 4, 4], [5, 5, 2], [12]])
def test_the_gradient_is_that_of_the_whole_batch_with_dropout_on(network, sizes):
    batches = mini_batches(sizes)
    torch.manual_seed(7)
    expected_loss, expected = plain_gradient(network, batches)
    state_after = torch.get_rng_state()
    assert min(gradient.abs().max() for gradient in expected) > 1e-3

    exchanged: list[bool] = []

    @contextmanager
    def synchronised(last: bool):
        exchanged.append(last)
        yield

    torch.manual_seed(7)
    loss, first, second = backward_through_cache(
        *(batches, lambda batch: network(batch["x"]), lambda a, b: info_nce(a, b, 0.1)),
        *(torch.Tensor.backward, synchronised),
    )
    assert first.shape == second.shape == (sum(sizes), 4)
    torch.testing.assert_close(loss, expected_loss.detach())
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-6)
    assert exchanged == [False] * (len(sizes) - 1) + [True]
    assert torch.equal(torch.get_rng_state(), state_after)


def test_the_generator_of_a_gpu_is_stored_and_set_too(monkeypatch):
    assert len(random_state()) == 1
    set_again, gpu = [], torch.tensor([7])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "set_rng_state", set_again.append)
    set_random_state(random_state())
    assert set_again == [gpu]


@pytest.mark.parametrize(
    "options",
    [{}, {"bf16": True}, {"gradient_accumulation_steps": 2}, {"loss": "multi_similarity"}],
)
def test_training_with_mini_batches_is_training_without(bert_folder, sentences, tmp_path, options):
    options = {"dropout_rate": 0.0, "max_steps": 1, "per_device_train_batch_size": 30, "logging_steps": 1} | options
    whole = make_trainer(bert_folder, sentences, tmp_path / "a", **options)
    parts = make_trainer(bert_folder, sentences, tmp_path / "b", mini_batch_size=8, **options)
    plain, cached = first_gradient(whole), first_gradient(parts)
    tolerance = 2e-2 if options.get("bf16") else 1e-5
    for name, gradient in plain.items():
        torch.testing.assert_close(cached[name], gradient, rtol=tolerance, atol=tolerance * 10)
    for key in ("loss", "alignment", "uniformity"):
        expected = whole.state.log_history[0][key]
        assert parts.state.log_history[0][key] == pytest.approx(expected, rel=max(tolerance, 1e-3))

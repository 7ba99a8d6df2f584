"""Gradient caching: the gradient of the whole batch, noise included, in the memory of a part."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mirror.training import gradient_cache, trainer
from mirror.training.gradient_cache import backward_through_cache, random_state, set_random_state, texts_in_memory
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


@pytest.fixture
def memory(monkeypatch):
    def set_memory(total: float) -> None:
        monkeypatch.setattr(gradient_cache.psutil, "virtual_memory", lambda: SimpleNamespace(total=total))

    return set_memory


def test_the_memory_of_a_batch_is_that_of_what_autograd_saves(memory, monkeypatch):
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5))
    inputs = torch.randn(10, 6)
    of_text = (6 + 8 + 8) * 4  # inputs, tanh and dropout's mask, in float32; not the weights
    state = torch.get_rng_state()
    fits = [(3 * 50 * of_text, None), (3 * 50 * of_text - 1, 49), (3 * 7.5 * of_text, 7), (1, 1)]
    for total, expected in fits:
        memory(total)
        assert texts_in_memory(lambda: network(inputs), network.parameters(), 10, 50) == expected
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    memory(2 * 3 * 20 * of_text)
    assert texts_in_memory(lambda: network(inputs), network.parameters(), 10, 50) == 20
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("limit", "expected"), [(b"max\n", None), (b"9223372036854771712\n", None), (b"1056\n", 6)])
def test_a_container_may_have_less_memory_than_its_machine(memory, monkeypatch, tmp_path, limit, expected):
    (tmp_path / "memory.max").write_bytes(limit)
    monkeypatch.setattr(gradient_cache, "CONTAINER_LIMITS", (tmp_path / "memory.max", tmp_path / "missing"))
    memory(1e9)
    network, inputs = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), torch.randn(10, 6)
    # (6 + 8) * 4 bytes of a text, of 352
    assert texts_in_memory(lambda: network(inputs), network.parameters(), 10, 50) == expected


@pytest.mark.parametrize("options", [{}, {"packing": "off"}, {"bf16": True}], ids=str)
def test_a_batch_that_needs_too_much_memory_is_split(
    bert_folder, sentences, tmp_path, memory, monkeypatch, caplog, options
):
    monkeypatch.setattr(trainer, "FEW_TOKENS", 0)
    caplog.set_level(logging.INFO, "mirror")
    flags = {"dropout_rate": 0.0, "max_steps": 1, "per_device_train_batch_size": 30, "logging_steps": 1, "seed": 3}
    losses = {}
    for total in (1e12, 1e6):
        memory(total)
        run = make_trainer(bert_folder, sentences, tmp_path / str(total), **flags, **options)
        run.train()
        losses[total] = run.state.log_history[0]["loss"]
        run.train()  # splits no further
        assert isinstance(run.data_collator, trainer.MiniBatchCollator) == (total == 1e6)
    assert 1 <= run.data_collator.size < 30 and "--mini_batch_size" in caplog.text
    assert losses[1e6] == pytest.approx(losses[1e12], rel=1e-2 if options.get("bf16") else 1e-5)


def test_a_mini_batch_size_that_was_given_stays(bert_folder, sentences, tmp_path, memory, monkeypatch):
    monkeypatch.setattr(trainer, "FEW_TOKENS", 0)
    memory(1)
    run = make_trainer(bert_folder, sentences, tmp_path, max_steps=1, mini_batch_size=8)
    run.train()
    assert run.data_collator.size == 8

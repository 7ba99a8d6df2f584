"""Estimate of the memory of a training step. Knows models, nothing of losses, data or trainers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mirror.modeling.dropout import dummy_input_ids


ADAMW_BYTES = 16  # of a weight: itself, its gradient and two moments, each in float32


def estimate_step_bytes(model: PreTrainedModel, views: int, tokens: int, compared: int, dtype: torch.dtype) -> int:
    """Bytes of weights, gradients, AdamW's moments, what the forward pass keeps for the backward one, and the cosines.

    What a forward pass keeps is measured on two and four rows (even numbers, as two views may share their noise) and
    extrapolated linearly, so it holds for any architecture, precision and noise. Not included: Python, the libraries, and
    temporary memory of the backward pass.

    Args:
        views: rows in memory at once: 2B, or twice the mini-batch.
        tokens: of a view.
        compared: rows on each side of the matrix of cosines: 2B times the processes whose rows are gathered.
        dtype: of the autocast; float32 means none.
    """
    two, four = (kept_bytes(model, rows, tokens, dtype) for rows in (2, 4))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    cosines = 3 * 4 * compared**2  # the matrix, its softmax and its gradient
    return ADAMW_BYTES * parameters + (2 * two - four) + views * (four - two) // 2 + cosines


def kept_bytes(model: PreTrainedModel, rows: int, tokens: int, dtype: torch.dtype) -> int:
    """Bytes that a forward pass of `rows` texts of `tokens` tokens keeps for the backward pass, parameters not counted."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # keeping an output would keep its node: a cycle that is never freed

    device, training = model.device, model.training
    ids = dummy_input_ids(model, tokens).to(device).repeat(rows, 1)
    with (
        torch.random.fork_rng(),
        torch.autocast(device.type, dtype, enabled=dtype != torch.float32),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        output = model.train()(
            input_ids=ids, attention_mask=torch.ones_like(ids)
        )  # kept, because freed storage is reused
    nn.Module.train(model, training)
    del output
    return sum(size for place, size in kept.items() if place not in parameters)

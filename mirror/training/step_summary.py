"""The line that a run starts with: what a step compares, in which precision, in how much memory."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from mirror.modeling.memory_estimate import estimate_step_bytes
from mirror.training.config import MirrorConfig


def step_summary(config: MirrorConfig, step_bytes: int, queue_bytes: int = 0) -> str:
    """`batch: 400 anchors x 399 candidates per step on 1 process(es), ...`

    Args:
        step_bytes, queue_bytes: of the functions of these names; the second is part of the first.
    """
    batch, world = config.train_batch_size, config.world_size
    views = 1 if config.loss == "one_way" else 2
    candidates = views * batch * (world if config.gather_negatives else 1)
    anchors = views * batch * world
    excluded = 0 if config.loss == "one_way" else 1
    further = (config.negative_queue or 0) + (config.noise_negatives or 0)
    of_queue = f", of which {queue_bytes / 1e6:,.0f} MB for the queue and its encoder" if queue_bytes else ""
    precision = "bfloat16" if config.bf16 else "float16" if config.fp16 else "float32"
    return (
        f"{anchors:,} anchors x {candidates - excluded + further:,} candidates per step on {world} process(es), "
        f"{precision} ({config.precision_reason}), loss in float32, about {step_bytes / 1e9:.1f} GB{of_queue}"
    )


def step_bytes(model: PreTrainedModel, config: MirrorConfig, row_tokens: int) -> int:
    """`mirror.modeling.memory_estimate.estimate_step_bytes` of this run; `row_tokens` is the length of a view in memory."""
    in_memory = min(config.mini_batch_size or config.train_batch_size, config.train_batch_size)
    compared = 2 * config.train_batch_size * (config.world_size if config.gather_negatives else 1)
    dtype = torch.bfloat16 if config.bf16 else torch.float16 if config.fp16 else torch.float32
    further = (config.negative_queue or 0) + (config.noise_negatives or 0)
    cosines = 3 * 4 * 2 * config.train_batch_size * further  # the matrix, its softmax and its gradient
    return (
        estimate_step_bytes(model, 2 * in_memory, row_tokens, compared, dtype) + cosines + queue_bytes(model, config)
    )


def queue_bytes(model: PreTrainedModel, config: MirrorConfig) -> int:
    """Bytes of the momentum encoder and of the queue of negatives."""
    if not config.negative_queue:
        return 0
    weights = sum(parameter.numel() for parameter in model.parameters())
    return 4 * (weights + config.negative_queue * model.config.hidden_size)

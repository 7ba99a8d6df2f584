"""Embeddings of all processes in one tensor, with the exact gradient."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor


class _GatherWithGradient(torch.autograd.Function):
    """all_gather whose backward sums what every process asks of this process's rows."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gather_with_gradient(rows: Tensor) -> Tensor:
    """Rows of all processes in rank order: (B, D) on each gives (W B, D) on each; itself where there is one process.

    With local anchors against these candidates, the mean that DDP takes over the processes is the gradient of one
    process with the joint batch. Gathered without gradient it would point elsewhere.
    """
    return _GatherWithGradient.apply(rows) if world_size() > 1 else rows


def mean_over_processes(tensor: Tensor) -> Tensor:
    """The mean of a tensor that every process has one of; itself where there is one process."""
    if world_size() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total / world_size()


def end_together(accelerator: Accelerator) -> None:
    """End a run on all its processes; nothing may come after it.

    On a CPU the process is left at once: gloo's threads, joined by the interpreter on its way out, may wait for the lock that
    it holds, and then it never ends.
    """
    on_gloo = world_size() > 1 and dist.get_backend() == "gloo"
    accelerator.wait_for_everyone()
    if on_gloo:
        for tracker in accelerator.trackers:
            tracker.finish()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    accelerator.end_training()


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0

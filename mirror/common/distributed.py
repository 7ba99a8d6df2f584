"""Distributed helpers: join processes, gather embeddings with the exact gradient, shut down."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from torch import Tensor


def join_processes(timeout: float) -> PartialState:
    """Join the processes of accelerate launch or torchrun, for a script without a Trainer. `timeout` is in seconds."""
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(seconds=timeout))


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


class _GatherWithGradient(torch.autograd.Function):
    # `torch.distributed.nn.functional.all_gather` does the same, but is deprecated since torch 2.13.
    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # autograd may give it to others too
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gather_with_gradient(rows: Tensor) -> Tensor:
    """Return the rows of all processes in rank order: (B, D) on each process becomes (W B, D) on each.

    With local anchors against these candidates, the mean that DDP takes over the processes is the gradient of one process with
    the joint batch. Gathering without gradient would give a gradient of another direction.
    """
    return _GatherWithGradient.apply(rows) if world_size() > 1 else rows


def mean_over_processes(tensor: Tensor) -> Tensor:
    """Return the mean of a tensor over the processes."""
    if world_size() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total / world_size()


def describe_peer_failure(error: RuntimeError) -> str | None:
    """Return one line about the process whose failure made a collective fail here, or None for any other error."""
    message = str(error)
    # gloo raises a plain RuntimeError that begins with a path of its sources. On GPUs, NCCL's watchdog may end the process first.
    if not dist.is_initialized() or not (isinstance(error, dist.DistError) or "gloo" in message):
        return None
    timed_out = any(words in message for words in ("imed out", "imeout"))
    what = "has not answered for --ddp_timeout seconds" if timed_out else "has ended"
    return (
        f"process {dist.get_rank()} stops because another process of the run {what}; earlier checkpoints are complete: "
        "fix the cause, then start the run again, with --resume_from_checkpoint true if it trains"
    )


def shutdown(accelerator: Accelerator) -> None:
    """End a training run on all its processes. Call nothing afterwards."""
    accelerator.wait_for_everyone()
    if _on_gloo():
        for tracker in accelerator.trackers:
            tracker.finish()
        exit_process(0)
    accelerator.end_training()


def exit_process(status: int) -> NoReturn:
    """End this process with an exit status."""
    if not _on_gloo():
        sys.exit(status)
    # The interpreter's shutdown joins gloo's threads while it holds the lock that they may be waiting for: a deadlock.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _on_gloo() -> bool:
    return world_size() > 1 and dist.get_backend() == "gloo"

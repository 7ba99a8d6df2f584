"""Distributed helpers: joining processes, gathering embeddings with the exact gradient, shutting down."""

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
    """Join the processes of accelerate launch or torchrun, for a script without a Trainer; on GPUs if there are any.

    Args:
        timeout: seconds to wait for a process that does not answer.
    """
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(seconds=timeout))


class _GatherWithGradient(torch.autograd.Function):
    """all_gather whose backward sums the gradients of all processes with respect to this process's rows.

    `torch.distributed.nn.functional.all_gather` does the same, but is deprecated from torch 2.13 on.
    """

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


def describe_peer_failure(error: RuntimeError) -> str | None:
    """One line about the process whose failure made a collective fail here; None for an error of another kind.

    gloo raises a plain RuntimeError that begins with a path of its sources. On GPUs, NCCL's watchdog may end the process
    first.
    """
    message = str(error)
    if not dist.is_initialized() or not (isinstance(error, dist.DistError) or "gloo" in message):
        return None
    timed_out = any(words in message for words in ("imed out", "imeout"))
    what = "has not answered for --ddp_timeout seconds" if timed_out else "has ended"
    return (
        f"process {dist.get_rank()} stops because another process of the run {what}; earlier checkpoints are complete: "
        "fix the cause, then start the run again, a training with --resume_from_checkpoint true"
    )


def shutdown(accelerator: Accelerator) -> None:
    """End a training run on all its processes; call nothing afterwards."""
    accelerator.wait_for_everyone()
    if _on_gloo():
        for tracker in accelerator.trackers:
            tracker.finish()
        exit_process(0)
    accelerator.end_training()


def exit_process(status: int) -> NoReturn:
    """End this process with an exit status.

    With gloo without the interpreter's shutdown, which joins gloo's threads while it holds the lock that they may wait
    for: then the process never ends.
    """
    if not _on_gloo():
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _on_gloo() -> bool:
    return world_size() > 1 and dist.get_backend() == "gloo"


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0

"""What several processes do together: join, share embeddings with the exact gradient, end."""

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
    """The processes of accelerate launch or torchrun, for a script without a Trainer; on GPUs where there are any.

    Args:
        timeout: seconds to wait for a process that does not answer.
    """
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(seconds=timeout))


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


def lost_process(error: RuntimeError) -> str | None:
    """Which failure of another process made a collective fail here, in one line; None where the error is of another kind.

    gloo raises a bare RuntimeError that begins with a path of its sources. On GPUs NCCL's watchdog may end the process first.
    """
    said = str(error)
    if not dist.is_initialized() or not (isinstance(error, dist.DistError) or "gloo" in said):
        return None
    silent = any(words in said for words in ("imed out", "imeout"))
    what = "has not answered for --ddp_timeout seconds" if silent else "has ended"
    return (
        f"process {dist.get_rank()} stops because another process of the run {what}; what was saved before is whole: "
        "mend the cause, then start the run again, a training with --resume_from_checkpoint true"
    )


def end_together(accelerator: Accelerator) -> None:
    """End a run on all its processes; nothing may come after it."""
    accelerator.wait_for_everyone()
    if _on_gloo():
        for tracker in accelerator.trackers:
            tracker.finish()
        leave(0)
    accelerator.end_training()


def leave(status: int) -> NoReturn:
    """End this process with an exit status.

    With gloo at once: its threads, joined by the interpreter on its way out, may wait for the lock that it holds, and then the
    process never ends.
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

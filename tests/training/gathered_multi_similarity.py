"""What each of two processes runs in the test that a process without a hard triplet does not leave the other one waiting.

It also checks the gradient of a sum of two gathered tensors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from mirror.common.distributed import exit_process, gather_with_gradient, rank
from mirror.training.losses import multi_similarity


def main(folder: str) -> None:
    """The rows of process 0 are far from all others, so none of its triplets is hard; those of process 1 are all alike."""
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    near = torch.ones(4, 16) + 0.05 * torch.randn(4, 16, generator=generator)
    rows = torch.eye(16)[:4] * 10 - 1 if rank() == 0 else near
    first = rows.clone().requires_grad_()
    second = first + 0.01
    gathered = {"all_first": gather_with_gradient(first), "all_second": gather_with_gradient(second)}
    loss = multi_similarity(first, second, **gathered, offset=4 * rank())
    loss.backward()
    # The sum of two gathered tensors has one gradient, which the reduction for the one must leave to the other.
    one, other = (torch.full((2, 3), 1.0 + rank(), requires_grad=True) for _ in range(2))
    (gather_with_gradient(one) + gather_with_gradient(other)).square().sum().backward()
    for grad in (one.grad, other.grad):  # 2 (one + other), from each of two processes
        assert torch.equal(grad, torch.full((2, 3), 8.0 * (1 + rank()))), grad
    total = first.grad.norm().reshape(1)
    dist.all_reduce(total)  # the next collective of both: it would meet the other's gathering
    (Path(folder) / f"loss-{rank()}").write_text(str(loss.item()))
    exit_process(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

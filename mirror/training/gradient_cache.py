"""Large contrastive batches in the memory of a small one (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch
Size under Memory Limited Setup"). Knows nothing of models or trainers.

1. Embed every mini-batch without gradient, and store the random state before each.
2. Compute the loss on all vectors, and its gradient with respect to them.
3. Embed every mini-batch again, with gradient and with the same noise, and backpropagate its part of that gradient.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


Batch = dict[str, Tensor]
logger = logging.getLogger(__name__)
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def backward_through_cache(
    mini_batches: list[Batch],
    embed: Callable[[Batch], Tensor],
    contrast: Callable[[Tensor, Tensor], Tensor],
    backward: Callable[[Tensor], None],
    synchronised: Callable[[bool], AbstractContextManager],
) -> tuple[Tensor, Tensor, Tensor]:
    """Accumulate in the weights the gradient of `contrast` over all mini-batches as one batch.

    `embed` returns the vectors of a mini-batch, (2 m_i, D), first views before second ones. `contrast` takes (B, D) first
    and second views, B the sum of all m_i. `synchronised(True)`, for the last mini-batch, is a context that exchanges
    gradients between processes. Returns the loss, detached, and both views' vectors, (B, D) each.
    """
    states, pieces = [], []
    with torch.no_grad():
        for batch in mini_batches:
            states.append(random_state())
            pieces.append(embed(batch).chunk(2))
    first, second = (torch.cat(side).requires_grad_() for side in zip(*pieces, strict=True))  # (B, D) each
    loss = contrast(first, second)
    backward(loss)

    sizes = [len(piece[0]) for piece in pieces]
    gradients = zip(first.grad.split(sizes), second.grad.split(sizes), strict=True)
    for number, (batch, state, gradient) in enumerate(zip(mini_batches, states, gradients, strict=True), start=1):
        set_random_state(state)  # afterwards the generator is in the state after the first pass
        with synchronised(number == len(mini_batches)):
            embed(batch).backward(torch.cat(gradient))
    return loss.detach(), first.detach(), second.detach()


def texts_in_memory(forward: Callable[[], Tensor], weights: Iterable[Tensor], texts: int, batch: int) -> int | None:
    """Return how many texts of a `batch` fit into a third of the memory of the machine or container, or None if all do.

    By what autograd saves of `forward()`, which embeds `texts` such texts. The rest of the memory is for weights,
    gradients and other programs. A system without free memory kills a process.
    """
    saved, own = {}, {weight.untyped_storage().data_ptr() for weight in weights}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()  # kept, or its place would be used again
        return tensor

    with torch.random.fork_rng(), saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    of_text = sum(storage.nbytes() for place, storage in saved.items() if place not in own) / texts
    limits = [path.read_text().strip() for path in CONTAINER_LIMITS if path.is_file()]
    memory = min([psutil.virtual_memory().total, *map(int, filter(str.isdigit, limits))])
    memory /= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if of_text * batch <= memory / 3:
        return None
    fitting = max(int(memory / 3 / of_text), 1)
    needs = f"{batch} texts need {of_text * batch / 1e9:.0f} GB, and a process has {memory / 1e9:.0f}"
    logger.info("memory: %s; training with --mini_batch_size %d, in a third more time", needs, fitting)
    return fitting


def random_state() -> list[Tensor]:
    """State of the random generators of the CPU and the current GPU."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]


def set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])

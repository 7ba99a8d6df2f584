"""Negatives beside the other texts of a step: vectors of earlier texts (ESimCSE), and noise (DCLR). Knows no loss."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mirror.common.distributed import gather_with_gradient
from mirror.data.packing import first_half
from mirror.training.auxiliary import Auxiliary


Batch = dict[str, Tensor]
VECTORS = "vectors"  # in the file; the other names are those of the momentum encoder's weights


class NegativeQueue(Auxiliary):
    """The first views of the last texts, encoded by a momentum copy of the encoder (ESimCSE, Wu et al. 2022, section 3.2).

    The copy has no dropout, and moves towards the encoder after every step. Vectors are queued after the step that read the
    queue, so no text meets itself. All processes hold the same queue, of the texts of all of them.

    Args:
        encoder: what is trained; on the device of the training.
        project: what is between its vectors and the loss, copied and moved with it.
        width: D of the vectors.
        size: vectors in the queue.
        momentum: share of itself that the copy keeps at a step.
    """

    name, flag, file = "queue of negatives", "--negative_queue", "negative_queue.safetensors"

    def __init__(self, encoder: nn.Module, project: nn.Module, width: int, size: int, momentum: float):
        self.trained = nn.ModuleList([encoder, project])
        self.copy = deepcopy(self.trained).requires_grad_(False).eval()
        self.size, self.momentum = size, momentum
        self.vectors = torch.empty(0, width, device=next(encoder.parameters()).device)  # (M, D), the oldest first

    @torch.no_grad()
    def push(self, embed: Callable[[nn.Module, Batch], Tensor], batches: list[Batch]) -> None:
        """Queue the first views of a step.

        Args:
            embed: vectors of a batch by a model.
            batches: those of the step, or its mini-batches; first views before second ones.
        """
        encoder, project = self.copy
        new = torch.cat([project(embed(encoder, first_half(batch)).float()) for batch in batches])  # (B, D)
        self.vectors = torch.cat([self.vectors, gather_with_gradient(new)])[-self.size :]

    @torch.no_grad()
    def on_step_end(self, args, state, control, **kwargs) -> None:
        for mine, theirs in zip(self.copy.parameters(), self.trained.parameters(), strict=True):
            mine.lerp_(theirs, 1 - self.momentum)

    def save(self, folder: str) -> None:
        weights = {name: weight.contiguous() for name, weight in self.copy.state_dict().items()}
        save_file(weights | {VECTORS: self.vectors.contiguous()}, Path(folder, self.file))

    def load(self, folder: str) -> None:
        stored = load_file(Path(folder, self.file))
        self.vectors = stored.pop(VECTORS).to(self.vectors.device)
        self.copy.load_state_dict(stored)


def noise_negatives(count: int, width: int, seed: int, step: int, device: torch.device) -> Tensor:
    """(count, width) Gaussian vectors, a function of seed and step: the same on all processes and after a resume."""
    noise = np.random.default_rng([seed, step]).standard_normal((count, width), dtype=np.float32)
    return torch.from_numpy(noise).to(device)

"""A head between the vectors and the loss, in training only (SimCSE, Gao et al. 2021, section 6.3). Knows nothing of models."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mirror.common.distributed import mean_over_processes
from mirror.training.auxiliary import Auxiliary


INITIAL_STD = 0.02  # BERT's, as in SimCSE's code


class ProjectionHead(Auxiliary):
    """A linear layer of the vectors' width and tanh, trained at the encoder's rate and weight decay.

    Args:
        width: D of the vectors.
        seed: of the first weights, so that the global random state, and with it the noise, is that of a run without a head.
    """

    name, flag, file = "projection head", "--projection_head", "projection_head.safetensors"

    def __init__(self, width: int, seed: int, weight_decay: float, device: torch.device):
        linear = nn.utils.skip_init(nn.Linear, width, width)
        nn.init.normal_(linear.weight, std=INITIAL_STD, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(linear.bias)
        self.module = nn.Sequential(linear, nn.Tanh()).to(device)
        self.weight_decay = weight_decay
        for parameter in self.parameters():
            parameter.register_hook(mean_over_processes)

    def __call__(self, vectors: Tensor) -> Tensor:
        """(B, D) float32 of (B, D)."""
        return self.module(vectors.float())

    def parameters(self) -> list[nn.Parameter]:
        return list(self.module.parameters())

    def save(self, folder: str) -> None:
        save_file(self.module.state_dict(), Path(folder, self.file))

    def load(self, folder: str) -> None:
        self.module.load_state_dict(load_file(Path(folder, self.file)))

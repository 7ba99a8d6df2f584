"""A temperature that is trained with the encoder without being part of it. Knows nothing of models."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from mirror.common.distributed import mean_over_processes
from mirror.training.auxiliary import Auxiliary


class LearnableTemperature(Auxiliary):
    """tau as the exponential of a parameter, so that it stays positive; without weight decay, which would pull it towards 1."""

    name, flag, file = "learned temperature", "--learnable_temperature", "temperature.json"

    def __init__(self, start: float, device: torch.device):
        self.log = nn.Parameter(torch.tensor(math.log(start), device=device))
        self.log.register_hook(mean_over_processes)

    def value(self) -> Tensor:
        """tau, a float32 scalar with gradient."""
        return self.log.exp()

    def parameters(self) -> list[nn.Parameter]:
        return [self.log]

    def save(self, folder: str) -> None:
        Path(folder, self.file).write_text(json.dumps({"log_temperature": self.log.item()}) + "\n", encoding="utf-8")

    def load(self, folder: str) -> None:
        with torch.no_grad():
            self.log.fill_(json.loads(Path(folder, self.file).read_text(encoding="utf-8"))["log_temperature"])

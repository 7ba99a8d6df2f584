"""A temperature that is trained with the encoder without being part of it. Knows nothing of models."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from mirror.common.distributed import mean_over_processes
from mirror.common.errors import InputError


FILE = "temperature.json"


class LearnableTemperature(TrainerCallback):
    """tau as the exponential of a parameter, so that it stays positive.

    DDP does not know the parameter, so its gradient is averaged over the processes here; and Trainer zeroes only the
    gradients of the model, so this one is zeroed here.
    """

    def __init__(self, start: float, device: torch.device):
        self.log = nn.Parameter(torch.tensor(math.log(start), device=device))
        self.log.register_hook(mean_over_processes)

    def value(self) -> Tensor:
        """tau, a float32 scalar with gradient."""
        return self.log.exp()

    def parameter_group(self) -> dict:
        """The parameter group for the optimizer: no decay, which would pull tau towards 1."""
        return {"params": [self.log], "weight_decay": 0.0}

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.log.grad = None

    def save(self, folder: str) -> None:
        Path(folder, FILE).write_text(json.dumps({"log_temperature": self.log.item()}) + "\n", encoding="utf-8")

    def load(self, folder: str) -> None:
        with torch.no_grad():
            self.log.fill_(json.loads(Path(folder, FILE).read_text(encoding="utf-8"))["log_temperature"])


def resume_temperature(learned: LearnableTemperature | None, folder: str) -> None:
    """Continue from the temperature of a checkpoint, if one is learned.

    Raises:
        InputError: the checkpoint was made with a learned temperature and this run has none, or the other way round.
    """
    is_there = Path(folder, FILE).is_file()
    if is_there and learned is None:
        raise InputError(f"{folder} was made with --learnable_temperature; resume with it too")
    if learned and not is_there:
        raise InputError(f"{folder} holds no learned temperature; resume without --learnable_temperature")
    if learned:
        learned.load(folder)

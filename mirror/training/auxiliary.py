"""What is trained or updated beside the encoder: in the checkpoints of a training, never in the encoder that is saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn
from transformers import TrainerCallback

from mirror.common.errors import InputError


class Auxiliary(TrainerCallback):
    """Something that a training needs and a resume must find again.

    DDP does not know its parameters, so their gradients are averaged over the processes by hooks; and Trainer zeroes only the
    gradients of the model, so these are zeroed here.

    Attributes:
        name, flag: what it is in messages, and the flag that asks for it.
        file: its file in a checkpoint of the training, written by one process.
        weight_decay: of its parameters.
    """

    name, flag, file = "", "", ""
    weight_decay = 0.0

    def parameters(self) -> list[nn.Parameter]:
        """Those that the optimizer trains."""
        return []

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    def save(self, folder: str) -> None:
        raise NotImplementedError

    def load(self, folder: str) -> None:
        raise NotImplementedError


def parameter_groups(present: Sequence[Auxiliary]) -> list[dict]:
    """What the optimizer gets beside the encoder."""
    groups = [{"params": each.parameters(), "weight_decay": each.weight_decay} for each in present]
    return [group for group in groups if group["params"]]


def resume(present: Sequence[Auxiliary], kinds: Sequence[type[Auxiliary]], folder: str) -> None:
    """Continue from what a checkpoint holds.

    Raises:
        InputError: the checkpoint was made with one of `kinds` that this run does not have, or the other way round.
    """
    for kind in kinds:
        mine = next((each for each in present if isinstance(each, kind)), None)
        is_there = Path(folder, kind.file).is_file()
        if is_there and mine is None:
            raise InputError(f"{folder} was made with {kind.flag}; resume with it too")
        if mine and not is_there:
            raise InputError(f"{folder} holds no {kind.name}; resume without {kind.flag}")
        if mine:
            mine.load(folder)

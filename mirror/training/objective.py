"""From the vectors of both views to the loss of a step, as the flags say, with all that is trained beside the encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mirror.common.distributed import gather_with_gradient, rank
from mirror.common.errors import InputError
from mirror.training.auxiliary import Auxiliary
from mirror.training.config import MirrorConfig
from mirror.training.learnable_temperature import LearnableTemperature
from mirror.training.losses import at_every_dimension, info_nce, multi_similarity, share_above
from mirror.training.negatives import NegativeQueue, noise_negatives
from mirror.training.projection_head import ProjectionHead


KINDS = (LearnableTemperature, ProjectionHead, NegativeQueue)


class Objective:
    """The loss of a training, and what it needs beside the encoder: a temperature, a projection head, a queue.

    Args:
        model: the encoder that is trained, on its device.
        width: D of the vectors.
    """

    def __init__(self, args: MirrorConfig, model: PreTrainedModel, width: int):
        self.args, self.learned, self.projection, self.queue = args, None, None, None
        if args.learnable_temperature:
            self.learned = LearnableTemperature(args.temperature, args.device)
        if args.projection_head:
            self.projection = ProjectionHead(width, args.seed, args.weight_decay, args.device)
        if args.negative_queue:
            project = self.projection.module if self.projection else nn.Identity()
            self.queue = NegativeQueue(model, project, width, args.negative_queue, args.queue_momentum)

    @property
    def auxiliaries(self) -> list[Auxiliary]:
        return [each for each in (self.learned, self.projection, self.queue) if each]

    def __call__(self, first: Tensor, second: Tensor, step: int, monitor: Callable[[str, Tensor], object]) -> Tensor:
        """The loss of this process's rows against its own or, with `gather_negatives`, those of all processes.

        Args:
            first, second: (B, D), the two views.
            step: number of the step, for noise.
            monitor: told the share of negatives that are left out.
        """
        if self.projection:
            first, second = self.projection(first), self.projection(second)
        vectors, offset = {"first": first, "second": second}, 0
        if self.args.gather_negatives:
            vectors |= {"all_first": gather_with_gradient(first), "all_second": gather_with_gradient(second)}
            offset = rank() * len(first)
        if further := self.further_negatives(first, step):
            vectors["negatives"] = torch.cat(further)
        if self.args.false_negative_weighting is not None:
            monitor("false_negatives", share_above(first.detach(), self.args.false_negative_weighting))
        return at_every_dimension(self.loss(offset), self.args.matryoshka_dims or (), **vectors)

    def loss(self, offset: int) -> Callable[..., Tensor]:
        """The function of the named vectors; `offset` as in `info_nce`."""
        args = self.args
        if args.loss == "multi_similarity":
            return partial(multi_similarity, offset=offset)
        return partial(
            info_nce,
            temperature=self.learned.value() if self.learned else args.temperature,
            form=args.loss,
            offset=offset,
            false_negative_cosine=args.false_negative_weighting,
            hardness=args.hardness,
        )

    def further_negatives(self, first: Tensor, step: int) -> list[Tensor]:
        """(any, D) each, for (B, D) first views."""
        count = self.args.noise_negatives
        found = [self.queue.vectors] if self.queue else []
        return found + ([noise_negatives(count, first.shape[1], self.args.seed, step, first.device)] if count else [])


def check_dimensions(dims: Sequence[int] | None, width: int) -> None:
    """
    Raises:
        InputError: a dimension that is not below the width of the vectors, which is trained anyway.
    """
    if dims and max(dims) >= width:
        raise InputError(
            f"--matryoshka_dims {max(dims)}: the vectors have {width} dimensions, which are trained anyway; "
            f"name numbers below {width}"
        )

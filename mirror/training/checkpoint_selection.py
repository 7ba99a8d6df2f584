"""Selecting a checkpoint without labels, on held-out texts.

By the tests of `mirror.evaluation.own_text`, or by alignment plus uniformity (Wang & Isola 2020). Does not know the Trainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mirror.common.alignment_uniformity import alignment, uniformity
from mirror.common.errors import InputError
from mirror.data.collators import both_views
from mirror.data.two_view_dataset import TwoViewDataset
from mirror.evaluation.own_text import OwnTextTest, combined_score
from mirror.modeling.encoder import Encoder
from mirror.training.choices import ALIGNMENT_UNIFORMITY, OWN_TEXT


Scorer = Callable[[Encoder], dict[str, float]]

BATCH_SIZE = 64
NOISE_SEED = 0


def alignment_uniformity_scorer(dataset: TwoViewDataset) -> Scorer:
    """A function that scores an encoder on held-out texts: `alignment`, `uniformity` and their sum, the criterion."""

    def score(encoder: Encoder) -> dict[str, float]:
        first, second = noisy_views(encoder, dataset)  # (N, D) each
        align, uniform = alignment(first, second).item(), uniformity(first).item()
        return {"alignment": align, "uniformity": uniform, ALIGNMENT_UNIFORMITY: align + uniform}

    return score


def own_text_scorer(tests: Sequence[OwnTextTest]) -> Scorer:
    """A function that scores an encoder by how well it finds held-out texts: `combined_score`."""
    return lambda encoder: {OWN_TEXT: combined_score([test.ranks(encoder.encode) for test in tests])}


@torch.no_grad()
def noisy_views(encoder: Encoder, dataset: TwoViewDataset) -> tuple[Tensor, Tensor]:
    """(N, D) of both views of N texts, with the noise of training.

    Without dropout both views of a word would be the same vector, and the alignment 0 for every checkpoint. The noise has a
    fixed seed, the same for all checkpoints, and the random state of the training is not changed.
    """
    device = encoder.model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(NOISE_SEED)
        encoder.model.train()
        starts = range(0, len(dataset), BATCH_SIZE)
        rows = (dataset.__getitems__(list(range(start, min(start + BATCH_SIZE, len(dataset))))) for start in starts)
        views = [encoder.forward(both_views(batch)).float().chunk(2) for batch in rows]
        encoder.model.eval()
    first, second = (torch.cat(side) for side in zip(*views, strict=True))
    return first, second


def combine_scorers(*scorers: Scorer | None) -> Scorer | None:
    """One function that returns the scores of all `scorers`; None if there are none.

    It raises `InputError` for a score that is not finite: no checkpoint would be better or worse.
    """
    present = [scorer for scorer in scorers if scorer]
    if not present:
        return None

    def score(encoder: Encoder) -> dict[str, float]:
        scores = {name: value for scorer in present for name, value in scorer(encoder).items()}
        for name, value in scores.items():
            if not math.isfinite(value):
                raise InputError(f"the score {name} is {value}, with which no checkpoint can be chosen")
        return scores

    return score

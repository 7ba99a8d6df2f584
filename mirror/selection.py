"""Choosing a checkpoint without labels: alignment plus uniformity of held-out texts (Wang & Isola 2020).

Knows an encoder and rows of two views; knows neither the Trainer nor any task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from datasets import Dataset, IterableDataset
from torch import Tensor

from mirror.collator import both_views
from mirror.data import Corpus
from mirror.encoder import Encoder
from mirror.errors import InputError
from mirror.features import TwoViewDataset
from mirror.losses import alignment, uniformity


CRITERION = "alignment_uniformity"  # lower is better
BATCH_SIZE = 64
NOISE_SEED = 0


def hold_out(corpus: Corpus, count: int, seed: int) -> tuple[Corpus, Dataset]:
    """`corpus` without `count` of its rows, drawn by `seed`, and those rows.

    Raises:
        InputError: a stream, which has no rows to draw from, or a corpus that is too small.
    """
    if isinstance(corpus.rows, IterableDataset):
        raise InputError("--validation_samples draws texts from the whole corpus; leave out --streaming")
    if count >= len(corpus.rows):
        raise InputError(f"--validation_samples {count}: the corpus has only {len(corpus.rows):,} distinct texts")
    parts = corpus.rows.train_test_split(test_size=count, seed=seed)
    return replace(corpus, rows=parts["train"]), parts["test"]


def alignment_uniformity_scorer(dataset: TwoViewDataset) -> Callable[[Encoder], dict[str, float]]:
    """A function that scores an encoder on held-out texts: `alignment`, `uniformity` and their sum, the criterion."""

    def score(encoder: Encoder) -> dict[str, float]:
        first, second = noisy_views(encoder, dataset)  # (N, D) each
        close, even = alignment(first, second).item(), uniformity(first).item()
        return {"alignment": close, "uniformity": even, CRITERION: close + even}

    return score


@torch.no_grad()
def noisy_views(encoder: Encoder, dataset: TwoViewDataset) -> tuple[Tensor, Tensor]:
    """(N, D) of both views of N texts, with the noise of training.

    Without dropout the two views of a word would be one vector and the alignment 0 for every checkpoint. The noise is
    drawn from one seed, so all checkpoints see the same, and the generators of the training are left as they were.
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

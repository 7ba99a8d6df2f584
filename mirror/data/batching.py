"""Batches of texts of like length, in an order that depends on the seed and the epoch only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from mirror.data.two_view_dataset import TwoViewDataset


class LikeLengthSampler(Sampler[int]):
    """Every text once, texts of similar length one after the other: transformers' `group_by_length`.

    There, the order comes from the global random state, which differs between processes from the second epoch on and is
    not that of the epoch after a resume.

    Args:
        dataset: a text's length is that of its longer view in the dataset's epoch.
        step_rows: texts of all processes in one step.
    """

    def __init__(self, dataset: TwoViewDataset, step_rows: int, seed: int):
        self.dataset, self.step_rows, self.seed = dataset, step_rows, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        longer = np.maximum(*(self.dataset.lengths(column) for column in ("first_ids", "second_ids")))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(get_length_grouped_indices(longer.tolist(), self.step_rows, generator=generator))

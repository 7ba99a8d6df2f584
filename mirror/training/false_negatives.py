"""False negatives among the pairs of a batch: rows that share a text, and texts that a guide finds too similar."""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from mirror.common.vectors import unit_length
from mirror.data.cleaning import second_text
from mirror.modeling.encoder import Encode


class FalseNegatives:
    """Finds texts that are no negatives of each other, by the numbers of their rows.

    Two rows are not if they share a text: a question with five answers, two headings of one passage. With a guide, a
    text is not either if the guide finds it more similar to the anchor than the anchor's positive (GISTEmbed,
    Solatorio 2024, with a frozen guide). It encodes the distinct texts once.
    """

    def __init__(self, rows: Dataset, guide: Encode | None = None):
        first = list(rows["text"])
        second = list(map(second_text, first, rows["text_pair"]))
        number = {text: at for at, text in enumerate(dict.fromkeys([*first, *second]))}
        self.texts = torch.tensor([[number[text] for text in side] for side in (first, second)])  # (2, R)
        self.vectors = None
        if guide is not None:
            self.vectors = torch.from_numpy(np.ascontiguousarray(unit_length(guide(list(number)))))  # (U, D)

    def __call__(self, rows: Tensor, all_rows: Tensor) -> Tensor:
        """Return which of the 2N texts are no negatives of each of 2B anchors, (2B, 2N), first texts before second ones.

        `rows` are (B,) of this process, `all_rows` (N,) of all. True for the anchor itself and its positive too.
        """
        own, others = self.texts[:, rows.cpu()], self.texts[:, all_rows.cpu()]  # (2, B) and (2, N)
        shares = (own[:, None, :, None] == others[None, :, None, :]).any(dim=0).any(dim=0)  # (B, N)
        found = shares.repeat(2, 2)
        if self.vectors is not None:
            anchors, positives = self.vectors[own.flatten()], self.vectors[own.flip(0).flatten()]  # (2B, D)
            similar = anchors @ self.vectors[others.flatten()].T  # (2B, 2N)
            found |= similar > (anchors * positives).sum(dim=1, keepdim=True)
        return found.to(rows.device)

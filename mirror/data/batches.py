"""Batches of two views: collators, a sampler of texts of similar length, and which texts are no negatives. Knows no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

from mirror.common.vectors import unit_length


if TYPE_CHECKING:
    from datasets import Dataset

    from mirror.data.views import TwoViewDataset

ROUND_TO = 512  # tokens; on a CPU every new length of a packed row costs oneDNN a new kernel


@dataclass
class TwoViewCollator:
    """Pads 2B rows to the longest. Rows 0..B-1 are the first views and rows B..2B-1 the second.

    `{"first_ids": [2, 7, 8, 3], "second_ids": [2, 7, 4, 3]}` and the same with [2, 9, 3] in both become

        {"input_ids":      [[2, 7, 8, 3], [2, 9, 3, 0], [2, 7, 4, 3], [2, 9, 3, 0]],
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]}
    """

    tokenizer: PreTrainedTokenizerBase
    pad_to: int | None = None  # a fixed length instead of the longest; `mean_padded` depends on it

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        padding = {"padding": "max_length", "max_length": self.pad_to} if self.pad_to else {"padding": True}
        batch = self.tokenizer.pad({"input_ids": both_views(rows)}, return_tensors="pt", **padding)
        return dict(batch) | row_numbers(rows)  # (2B, T) each


@dataclass
class PackedCollator:
    """Concatenates the same 2B rows without padding (`pack`)."""

    first_position: int  # position id of a text's first token: `mirror.modeling.packing.first_position`
    pad_token_id: int

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        return pack(both_views(rows), self.first_position, self.pad_token_id) | row_numbers(rows)


@dataclass
class MiniBatchCollator:
    """Splits a batch into mini-batches of `size` texts and collates each of them, for gradient caching."""

    collate: TwoViewCollator | PackedCollator
    size: int

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, list[dict[str, Tensor]]]:
        starts = range(0, len(rows), self.size)
        return {"mini_batches": [self.collate(rows[start : start + self.size]) for start in starts]}


def both_views(rows: list[dict[str, list[int]]]) -> list[list[int]]:
    """Return 2B rows of token ids, the first views before the second ones."""
    return [row["first_ids"] for row in rows] + [row["second_ids"] for row in rows]


def row_numbers(rows: list[dict]) -> dict[str, Tensor]:
    """Return the numbers of the rows in the corpus as `rows`, (B,), if they are known, as of pairs."""
    return {"rows": torch.tensor([row["row"] for row in rows])} if "row" in rows[0] else {}


def pack(rows: list[list[int]], first_position: int, pad_token_id: int, round_to: int = ROUND_TO) -> dict[str, Tensor]:
    """Concatenate N rows of token ids, the shortest first, and pad to a round length S with tokens that no text attends to.

    The rows [5, 6, 7] and [8, 9] become

        {"input_ids":      [[8, 9, 5, 6, 7]],
         "position_ids":   [[0, 1, 0, 1, 2]],
         "lengths":        [2, 3],             # in packed order
         "starts":         [2, 0],             # where each row begins, in the original order
         "slots":          [3, 4, 0, 1, 2],    # row * 3 + position of each token
         "attention_mask": [[1, 1, 1], [1, 1, 0]]}  # of the same batch if it were padded

    Positions begin at `first_position` (`mirror.modeling.packing`). S is the next multiple of `round_to`, or of an
    eighth of the number of tokens if that is less.
    """
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    lengths = torch.tensor([len(rows[row]) for row in order])  # (N,)
    begins = lengths.cumsum(0) - lengths  # (N,)
    total, longest = int(lengths.sum()), int(lengths[-1])
    position = torch.arange(total) - begins.repeat_interleave(lengths)  # (tokens,)
    packed_order = torch.tensor(order)
    step = max(1, min(round_to, 2 ** (total.bit_length() - 1) // 8))  # few distinct lengths, at most an eighth more
    filler = -total % step
    ids = torch.tensor([*chain.from_iterable(rows[row] for row in order), *[pad_token_id] * filler])  # (S,)
    row_lengths = torch.empty_like(lengths).index_copy(0, packed_order, lengths)
    return {
        "input_ids": ids[None],
        "position_ids": nn.functional.pad(position, (0, filler))[None] + first_position,
        "lengths": lengths,
        "starts": torch.empty_like(begins).index_copy(0, packed_order, begins),
        "slots": (packed_order * longest).repeat_interleave(lengths) + position,
        "attention_mask": (torch.arange(longest) < row_lengths[:, None]).long(),  # (N, T)
    }


class LengthGroupedRows(TorchDataset):
    """Rows in an order that puts texts of similar length next to each other: `--train_sampling_strategy group_by_length`.

    transformers' own sampler takes the order from the global random state, which differs between processes from the second epoch on,
    and after a resume. Here the order belongs to the rows, a function of seed and epoch, and they are read in sequence.
    The length of a row is that of its longer view. `step_rows` are the texts of all processes in one step.
    """

    def __init__(self, rows: TwoViewDataset, step_rows: int, seed: int):
        self.rows, self.step_rows, self.seed = rows, step_rows, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.rows.set_epoch(epoch)
        longer = np.maximum(*(self.rows.lengths(column) for column in ("first_ids", "second_ids")))
        generator = torch.Generator().manual_seed(self.seed + epoch)
        self.order = get_length_grouped_indices(longer.tolist(), self.step_rows, generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self.rows[self.order[index]]

    def __getitems__(self, indices: list[int]) -> list[dict[str, list[int]]]:
        return self.rows.__getitems__([self.order[index] for index in indices])


class FalseNegatives:
    """Finds texts that are no negatives of each other, by the numbers of their rows.

    Two rows are not if they share a text: a question with five answers, two headings of one passage. With a guide, a
    text is not either if the guide finds it more similar to the anchor than the anchor's positive (GISTEmbed,
    Solatorio 2024, with a frozen guide). It encodes the distinct texts once.
    """

    def __init__(self, rows: Dataset, guide: Callable[[list[str]], np.ndarray] | None = None):
        from mirror.data.cleaning import hash_of, hashes_of, second_text  # imports datasets

        hashes = hashes_of(rows, ["text", "text_pair"]).T  # (2, R)
        hashes[1] = np.where(hashes[1] == hash_of(""), hashes[0], hashes[1])
        _, places, numbers = np.unique(hashes, return_index=True, return_inverse=True)
        self.texts = torch.from_numpy(numbers.reshape(hashes.shape))  # (2, R)
        self.vectors = None
        if guide is not None:
            texts = [*rows["text"], *map(second_text, rows["text"], rows["text_pair"])]
            self.vectors = torch.from_numpy(unit_length(guide([texts[place] for place in places])))  # (U, D)

    def __call__(self, rows: Tensor, all_rows: Tensor) -> Tensor:
        """Return which of the 2N texts are no negatives of each of 2B anchors, (2B, 2N), first texts before second ones.

        `rows` are (B,) of this process, `all_rows` (N,) of all. True for the anchor itself and its positive too.
        """
        own, others = self.texts[:, rows.cpu()], self.texts[:, all_rows.cpu()]  # (2, B) and (2, N)
        found = (own[:, None, :, None] == others[None, :, None, :]).any(dim=0).any(dim=0).repeat(2, 2)  # (2B, 2N)
        if self.vectors is not None:
            anchors, positives = self.vectors[own.flatten()], self.vectors[own.flip(0).flatten()]  # (2B, D)
            similar = anchors @ self.vectors[others.flatten()].T  # (2B, 2N)
            found |= similar > (anchors * positives).sum(dim=1, keepdim=True)
        return found.to(rows.device)

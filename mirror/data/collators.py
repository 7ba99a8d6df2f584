"""Collators: two views of B rows become one batch of 2B rows, padded or packed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mirror.data.packing import pack


@dataclass
class TwoViewCollator:
    """Rows 0..B-1 are the first views and rows B..2B-1 the second, padded to the longest of all.

    Two rows, `{"first_ids": [2, 7, 8, 3], "second_ids": [2, 7, 4, 3]}` and `{"first_ids": [2, 9, 3], "second_ids":
    [2, 9, 3]}`, where 0 is padding, 2 and 3 are the special tokens around a text and 4 is the mask token, give

        {"input_ids":      [[2, 7, 8, 3], [2, 9, 3, 0], [2, 7, 4, 3], [2, 9, 3, 0]],
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]}
    """

    tokenizer: PreTrainedTokenizerBase
    pad_to: int | None = None  # a fixed length instead of the longest; `mean_padded` depends on it

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        ids = both_views(rows)
        padding = {"padding": "max_length", "max_length": self.pad_to} if self.pad_to else {"padding": True}
        return dict(self.tokenizer.pad({"input_ids": ids}, return_tensors="pt", **padding))  # (2B, T) each


@dataclass
class PackedCollator:
    """The same 2B rows end to end without padding; `mirror.data.packing.pack` shows the batch."""

    first_position: int  # position id of a text's first token: `mirror.modeling.packing.first_position`
    pad_token_id: int

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        return pack(both_views(rows), self.first_position, self.pad_token_id)


@dataclass
class MiniBatchCollator:
    """A batch in mini-batches of `size` texts, each collated on its own, for gradient caching."""

    collate: TwoViewCollator | PackedCollator
    size: int

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, list[dict[str, Tensor]]]:
        starts = range(0, len(rows), self.size)
        return {"mini_batches": [self.collate(rows[start : start + self.size]) for start in starts]}


def both_views(rows: list[dict[str, list[int]]]) -> list[list[int]]:
    """2B rows of token ids, the first views before the second ones."""
    return [row["first_ids"] for row in rows] + [row["second_ids"] for row in rows]

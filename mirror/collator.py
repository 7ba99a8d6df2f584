"""Two views of B rows become one padded batch of 2B rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedTokenizerBase


@dataclass
class TwoViewCollator:
    """Rows 0..B-1 are the first views and rows B..2B-1 the second, padded to the longest of all.

    Two rows, `{"first_ids": [2, 7, 8, 3], "second_ids": [2, 7, 4, 3]}` and `{"first_ids": [2, 9, 3], "second_ids":
    [2, 9, 3]}`, where 0 is padding, 2 and 3 frame a text and 4 is the mask token, give

        {"input_ids":      [[2, 7, 8, 3], [2, 9, 3, 0], [2, 7, 4, 3], [2, 9, 3, 0]],
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]}
    """

    tokenizer: PreTrainedTokenizerBase
    pad_to: int | None = None  # a fixed length instead of the longest; `mean_padded` depends on it

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        ids = [row["first_ids"] for row in rows] + [row["second_ids"] for row in rows]
        padding = {"padding": "max_length", "max_length": self.pad_to} if self.pad_to else {"padding": True}
        return dict(self.tokenizer.pad({"input_ids": ids}, return_tensors="pt", **padding))  # (2B, T) each

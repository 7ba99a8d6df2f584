"""Packing: the rows of a batch end to end in one row, without padding. Knows token ids; knows no model."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn


ROUND_TO = 512  # tokens; on a CPU every new length of a packed row costs oneDNN a new kernel


def pack(rows: list[list[int]], first_position: int, pad_token_id: int, round_to: int = ROUND_TO) -> dict[str, Tensor]:
    """Concatenate N rows of token ids, the shortest first, and pad to a round length S with tokens that no text attends to.

    The rows [5, 6, 7] and [8, 9] give

        {"input_ids":      [[8, 9, 5, 6, 7]],
         "position_ids":   [[0, 1, 0, 1, 2]],
         "lengths":        [2, 3],             # in packed order
         "starts":         [2, 0],             # where each row begins, in the original order
         "slots":          [3, 4, 0, 1, 2],    # row * 3 + position of each token
         "attention_mask": [[1, 1, 1], [1, 1, 0]]}  # of the same batch if it were padded

    Args:
        first_position: `first_position(model)`.
        round_to: S is the next multiple of it, or of an eighth of the token count where that is less.
    """
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    lengths = torch.tensor([len(rows[row]) for row in order])  # (N,)
    begins = lengths.cumsum(0) - lengths  # (N,)
    total, longest = int(lengths.sum()), int(lengths[-1])
    position = torch.arange(total) - begins.repeat_interleave(lengths)  # (tokens,)
    packed_order = torch.tensor(order)
    filler = _round_up(total, round_to) - total
    ids = torch.tensor([*chain.from_iterable(rows[row] for row in order), *[pad_token_id] * filler])  # (S,)
    starts = torch.empty_like(begins).index_copy(0, packed_order, begins)
    row_lengths = torch.empty_like(lengths).index_copy(0, packed_order, lengths)
    return {
        "input_ids": ids[None],
        "position_ids": nn.functional.pad(position, (0, filler))[None] + first_position,
        "lengths": lengths,
        "starts": starts,
        "slots": (packed_order * longest).repeat_interleave(lengths) + position,
        "attention_mask": (torch.arange(longest) < row_lengths[:, None]).long(),  # (N, T)
    }


def first_half(batch: dict[str, Tensor], round_to: int = ROUND_TO) -> dict[str, Tensor]:
    """The first N / 2 of the N rows of a batch, padded or packed: the first views.

    Of a packed batch it is what `pack` makes of those rows, with 0 for the tokens that no text attends to.
    """
    if "lengths" not in batch:
        return {name: tensor.chunk(2)[0] for name, tensor in batch.items()}
    mask = batch["attention_mask"].chunk(2)[0]  # (N / 2, T)
    row, place = batch["slots"] // mask.shape[1], batch["slots"] % mask.shape[1]  # (tokens,)
    kept = row < len(mask)  # (tokens,)
    order = row[batch["lengths"].cumsum(0) - batch["lengths"]]  # (N,) rows in packed order
    is_first = order < len(mask)
    lengths = batch["lengths"][is_first]
    longest, total = int(lengths[-1]), int(lengths.sum())
    filler = (0, _round_up(total, round_to) - total)
    begins = lengths.cumsum(0) - lengths
    return {
        "input_ids": nn.functional.pad(batch["input_ids"][0, : len(kept)][kept], filler)[None],
        "position_ids": nn.functional.pad(place[kept], filler)[None] + batch["position_ids"].min(),
        "lengths": lengths,
        "starts": torch.empty_like(begins).index_copy(0, order[is_first], begins),
        "slots": row[kept] * longest + place[kept],
        "attention_mask": mask[:, :longest],
    }


def _round_up(total: int, round_to: int) -> int:
    """Few distinct lengths, and at most an eighth more than `total`."""
    step = max(1, min(round_to, 2 ** (total.bit_length() - 1) // 8))
    return -(-total // step) * step

"""Batches without padding: the texts of a batch end to end in one row, attention only within each.

Knows how a row is packed, how to run a model on it and which models give the padded result. The attention itself is in
`mirror.attention`, pooling in `mirror.pooling`.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from mirror.attention import PackedLayout, use_mirror_attention, uses_attention_interface
from mirror.errors import InputError
from mirror.noise import (
    FastDropout,
    PairedDropout,
    check_rate,
    check_views_agree,
    probe_ids,
    set_dropout,
    swap_dropout,
)
from mirror.pooling import pool


logger = logging.getLogger(__name__)

Packing = Literal["auto", "on", "off"]
ROUND_TO = 512  # tokens; on a CPU every new length of a packed row costs oneDNN a new kernel
AGREEMENT = 1e-2  # relative difference that rounding may cause and another result would exceed


def prepare_model(
    model: PreTrainedModel,
    pooling: str,
    packing: Packing = "auto",
    dropout_rate: float | None = None,
    drophead_rate: float = 0.0,
    controlled_dropout: bool = False,
) -> bool:
    """Give `model` the noise and the attention that it trains with; its config, weights and eval mode stay the same.

    Args:
        pooling: of the training, since two ways of pooling need padded rows.
        dropout_rate: of every dropout; by default the checkpoint's own rates, or 0 where there is drophead, as in the
            paper (Mirror-BERT, section 3).
        drophead_rate: probability that an attention head of a text is dropped.
        controlled_dropout: both views of a text see the same noise (Mirror-BERT, Table 8).

    Returns:
        Whether batches are to be packed (`pack`, `packed_forward`) or padded.

    Raises:
        InputError: a rate outside [0, 1), or something asked for that this architecture cannot do.
    """
    check_rate("--drophead_rate", drophead_rate)
    if dropout_rate is None and drophead_rate:
        dropout_rate = 0.0
    if dropout_rate is not None:
        set_dropout(model, dropout_rate)
    swap_dropout(model, PairedDropout if controlled_dropout else FastDropout)
    if uses_attention_interface(model):
        use_mirror_attention(model, drophead_rate, paired=controlled_dropout)
    elif drophead_rate:
        raise InputError(f"--drophead_rate: {_no_interface(model)}; use --dropout_rate")
    if controlled_dropout:
        check_views_agree(model)
    return _decide(packing, "--controlled_dropout" if controlled_dropout else packing_obstacle(model, pooling))


def _decide(packing: Packing, obstacle: str | None) -> bool:
    if packing == "on" and obstacle:
        raise InputError(f"--packing on: not possible here ({obstacle}); use --packing auto")
    if packing == "auto":
        logger.info("packing: %s", f"off ({obstacle}), padding to the longest row" if obstacle else "on, no padding")
    return packing != "off" and not obstacle


def packing_obstacle(model: PreTrainedModel, pooling: str) -> str | None:
    """Why `model` cannot train on packed rows, or None if it can: tried out on two short texts, packed and padded.

    Switches the model to this project's attention where it has not been already.
    """
    if pooling in ("mean_padded", "pooler"):
        return f"--pooling {pooling} needs padded rows"
    if not uses_attention_interface(model):
        return _no_interface(model)
    if not model.config._attn_implementation.startswith("mirror"):
        use_mirror_attention(model)
    training = model.training
    try:
        difference = _packed_difference(model.eval())
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return f"{type(model).__name__} does not take a packed row: {' '.join(str(error).split())[:120]}"
    finally:
        model.train(training)
    if not difference < AGREEMENT:
        return f"{type(model).__name__} gives packed texts other vectors, {difference:.2g} apart"
    return None


@torch.no_grad()
def _packed_difference(model: PreTrainedModel) -> float:
    """Norm of packed minus padded vectors of two texts, relative to the padded ones."""
    padding = model.config.pad_token_id or 0
    ids = probe_ids(model, 9)[0].tolist()
    batch = pack([ids, ids[:4]], first_position(model), padding)
    batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
    padded_ids = torch.tensor([ids, ids[:4] + [padding] * 5], device=model.device)
    packed = pool(*packed_forward(model, batch, "mean"), "mean")
    padded = pool(model(input_ids=padded_ids, attention_mask=batch["attention_mask"]), batch["attention_mask"], "mean")
    return ((packed - padded).norm() / padded.norm()).item()


def _no_interface(model: PreTrainedModel) -> str:
    return f"the attention of {type(model).__name__} does not go through transformers' attention interface"


def first_position(model: PreTrainedModel) -> int:
    """The position id of a text's first token: 0, or after the padding index in RoBERTa's family."""
    for name, module in model.named_modules():
        if (
            name.endswith("position_embeddings")
            and isinstance(module, nn.Embedding)
            and module.padding_idx is not None
        ):
            return module.padding_idx + 1
    return 0


def pack(rows: list[list[int]], first_position: int, pad_token_id: int, round_to: int = ROUND_TO) -> dict[str, Tensor]:
    """Lay N rows of token ids end to end, the shortest first, and fill up to a round length S (with padding tokens that
    no text sees and nobody reads).

    The rows [5, 6, 7] and [8, 9] give

        {"input_ids":      [[8, 9, 5, 6, 7]],
         "position_ids":   [[0, 1, 0, 1, 2]],
         "lengths":        [2, 3],             # in the order in which they lie
         "starts":         [2, 0],             # where each row begins, in the order of the rows
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
    rows_as_they_lie = torch.tensor(order)
    filler = _round_up(total, round_to) - total
    ids = torch.tensor([*chain.from_iterable(rows[row] for row in order), *[pad_token_id] * filler])  # (S,)
    starts = torch.empty_like(begins).index_copy(0, rows_as_they_lie, begins)
    row_lengths = torch.empty_like(lengths).index_copy(0, rows_as_they_lie, lengths)
    return {
        "input_ids": ids[None],
        "position_ids": nn.functional.pad(position, (0, filler))[None] + first_position,
        "lengths": lengths,
        "starts": starts,
        "slots": (rows_as_they_lie * longest).repeat_interleave(lengths) + position,
        "attention_mask": (torch.arange(longest) < row_lengths[:, None]).long(),  # (N, T)
    }


def _round_up(total: int, round_to: int) -> int:
    """Few distinct lengths, and at most an eighth more than `total` however small it is."""
    step = max(1, min(round_to, 2 ** (total.bit_length() - 1) // 8))
    return -(-total // step) * step


def packed_forward(model: nn.Module, batch: dict[str, Tensor], pooling: str) -> tuple[BaseModelOutput, Tensor]:
    """Run a packed row through `model`, wrapped or compiled or not, and hand out what `pool` reads.

    Args:
        batch: from `pack`, on the model's device.

    Returns:
        Hidden states as of a padded batch, (N, T, D), zeros for padding, and its mask, (N, T). For `cls`, T is 1:
        nothing else is read.
    """
    layout = PackedLayout(batch["lengths"], batch["slots"], batch["attention_mask"])
    output = model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        packed=layout,
        output_hidden_states=pooling == "first_last_mean",
    )
    last = output.last_hidden_state[0]  # (S, D)
    if pooling == "cls":
        return BaseModelOutput(last.index_select(0, batch["starts"])[:, None]), layout.mask[:, :1]
    early = tuple(layout.pad(hidden[0]) for hidden in output.hidden_states[:2]) if output.hidden_states else None
    return BaseModelOutput(layout.pad(last), hidden_states=early), layout.mask

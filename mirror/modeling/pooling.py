"""Pooling of token vectors to one vector per text: the only pooling code of the project, for training and scoring.

Importing this module does not import torch, so that command lines can check `--pooling` immediately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args


if TYPE_CHECKING:
    from torch import Tensor
    from transformers.modeling_outputs import BaseModelOutput

Pooling = Literal["cls", "mean", "mean_padded", "first_last_mean", "max", "pooler"]
POOLING_MODES: tuple[str, ...] = get_args(Pooling)


def pool(output: BaseModelOutput, attention_mask: Tensor, mode: Pooling) -> Tensor:
    """Return one vector per row, (B, D) in the dtype of the hidden states. The mask is (B, T).

    - `cls`: the first token's vector of the last layer, before any pooler.
    - `mean`: the mean over the text's own tokens, special tokens included, padding excluded.
    - `mean_padded`: the mean over every position, padding included. The published BERT rows of Mirror-BERT used it. It
      depends on the length that rows are padded to. Use it only to reproduce them.
    - `first_last_mean`: `mean` of the average of the first and the last layer. Needs `output_hidden_states=True`.
    - `max`: the largest value of each dimension over the text's own tokens.
    - `pooler`: the model's own pooler output (BERT: a tanh layer over the first token).
    """
    hidden = output.last_hidden_state
    if mode == "cls":
        return hidden[:, 0]
    if mode == "mean_padded":
        return hidden.mean(dim=1)
    if mode in ("mean", "first_last_mean"):
        hidden = (output.hidden_states[1] + hidden) / 2 if mode == "first_last_mean" else hidden
        mask = attention_mask[..., None].to(hidden.dtype)  # (B, T, 1)
        return (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    if mode == "max":
        return hidden.masked_fill(attention_mask[..., None] == 0, float("-inf")).amax(dim=1)
    if mode == "pooler":
        return output.pooler_output
    raise ValueError(f"unknown pooling '{mode}'; one of {', '.join(POOLING_MODES)}")


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """Return [u, v, |u - v|, u * v] of (B, D) and (B, D), as (B, 4D): the input of the NLI classifier (CMLM, section 4.3)."""
    from torch import cat

    return cat([first, second, (first - second).abs(), first * second], dim=1)

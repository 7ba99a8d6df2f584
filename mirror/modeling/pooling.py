"""Pooling, from token vectors to one vector per text: the only pooling code of the project, for training and scoring."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from mirror.modeling.choices import POOLING_MODES, Pooling


def pool(output: BaseModelOutput, attention_mask: Tensor, mode: Pooling) -> Tensor:
    """One vector per row, in the dtype of the hidden states.

    - `cls`: the first token's vector of the last layer, before any pooler.
    - `mean`: the mean over the text's own tokens, special tokens included, padding excluded.
    - `mean_padded`: the mean over every position, padding included. The published BERT rows of Mirror-BERT used it. It
      depends on the length that rows are padded to; use it only to reproduce them.
    - `first_last_mean`: `mean` of the first and the last layer's average. Needs `output_hidden_states=True`.
    - `max`: the largest value of each dimension over the text's own tokens.
    - `pooler`: the model's own pooler output (BERT: a tanh layer over the first token).

    Args:
        output: what the encoder returned; `last_hidden_state` is (B, T, D).
        attention_mask: (B, T), 1 for a token and 0 for padding.

    Returns:
        (B, D)
    """
    hidden = output.last_hidden_state
    if mode == "cls":
        return hidden[:, 0]
    if mode == "mean":
        return _masked_mean(hidden, attention_mask)
    if mode == "mean_padded":
        return hidden.mean(dim=1)
    if mode == "first_last_mean":
        return _masked_mean((output.hidden_states[1] + hidden) / 2, attention_mask)
    if mode == "max":
        return hidden.masked_fill(attention_mask[..., None] == 0, torch.finfo(hidden.dtype).min).amax(dim=1)
    if mode == "pooler":
        return output.pooler_output
    raise ValueError(f"unknown pooling '{mode}'; one of {', '.join(POOLING_MODES)}")


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """[u, v, |u - v|, u * v] of (B, D) and (B, D), as (B, 4D): what the NLI classifier sees (CMLM, section 4.3)."""
    return torch.cat([first, second, (first - second).abs(), first * second], dim=1)


def _masked_mean(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    mask = attention_mask[..., None].to(hidden.dtype)  # (B, T, 1)
    return (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)

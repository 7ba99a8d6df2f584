"""Pooling of token vectors to one vector per text: the only pooling code of the project, for training and scoring.

Importing this module does not import torch, so that command lines can check `--pooling` immediately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args


if TYPE_CHECKING:
    from torch import Tensor
    from transformers.modeling_outputs import BaseModelOutput

Pooling = Literal["cls", "mean", "mean_padded", "first_last_mean", "max", "last", "pooler"]
POOLING_MODES: tuple[str, ...] = get_args(Pooling)


def pool(output: BaseModelOutput, attention_mask: Tensor, mode: Pooling) -> Tensor:
    """Return one vector per row, (B, D) in the dtype of the hidden states. The mask is (B, T).

    - `cls`: the first token's vector of the last layer, before any pooler.
    - `mean`: the mean over the text's own tokens, special tokens included, padding excluded.
    - `mean_padded`: the mean over every position, padding included. The published BERT rows of Mirror-BERT used it. It
      depends on the length that rows are padded to. Use it only to reproduce them.
    - `first_last_mean`: `mean` of the average of the first and the last layer. Needs `output_hidden_states=True`.
    - `max`: the largest value of each dimension over the text's own tokens.
    - `last`: the vector of the text's last token, wherever the padding is. Zeros for a row without tokens.
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
    if mode == "last":
        place = attention_mask.cumsum(dim=1).argmax(dim=1)  # (B,), the first position at which all tokens are counted
        vectors = hidden.gather(1, place[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]
        return vectors * attention_mask.any(dim=1, keepdim=True)
    if mode == "pooler":
        return output.pooler_output
    raise ValueError(f"unknown pooling '{mode}'; one of {', '.join(POOLING_MODES)}")


def without_first(output: BaseModelOutput, attention_mask: Tensor, counts: Tensor) -> tuple[BaseModelOutput, Tensor]:
    """Return the token vectors and the mask of a batch padded on the right without the first tokens of each row.

    `counts`, (B,), is how many: those of a prompt that the pooling leaves out.
    """
    from torch import arange
    from transformers.modeling_outputs import BaseModelOutput as Output

    length = attention_mask.shape[1]
    places = arange(length, device=attention_mask.device) + counts[:, None]  # (B, T)
    is_inside, places = places < length, places.clamp(max=length - 1)
    layers = [output.last_hidden_state, *(output.hidden_states or ())]
    moved = [layer.gather(1, places[..., None].expand(-1, -1, layer.shape[2])) for layer in layers]
    return Output(moved[0], hidden_states=tuple(moved[1:])), attention_mask.gather(1, places) * is_inside


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """Return [u, v, |u - v|, u * v] of (B, D) and (B, D), as (B, 4D): the input of the NLI classifier (CMLM, section 4.3)."""
    from torch import cat

    return cat([first, second, (first - second).abs(), first * second], dim=1)

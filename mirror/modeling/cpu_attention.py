"""Attention within each text of a packed row on a CPU: texts of equal length form a small batch without padding.

The backward pass is written by hand: autograd would visit a dozen small nodes for each of some 30 lengths per layer, which made
a whole training step a tenth slower. Products are in float32 or higher: a batch has some 150 shapes, almost all of them new, and
for bfloat16 oneDNN compiles and keeps a kernel per shape, which took more time than the products, and a megabyte each.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirror.modeling.dropout import dropout_mask


Group = tuple[int, int]  # texts, tokens of each


@torch.compiler.disable  # groups differ in every batch, and each would be compiled
def attend_by_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Tensor | None,
    groups: list[Group],
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
) -> Tensor:
    """(S, H, d) each to (S, H, d), for concatenated texts; zeros after the last one.

    Args:
        scale: (texts, H) drophead's factor of each head of a text, or None.
        groups: one for every run of texts of equal length, in packed order.
        dropout, scaling, sliding_window: as in `mirror.modeling.attention.mirror_attention`.
    """
    scaling = scaling or query.shape[-1] ** -0.5
    return _AttentionByLength.apply(
        query, key, value, _noise(query, scale, groups, dropout), groups, scaling, sliding_window
    )


def sliding_window_mask(length: int, sliding_window: int, device: torch.device) -> Tensor:
    """(T, T) whether two positions are less than `sliding_window` apart."""
    position = torch.arange(length, device=device)
    return (position[:, None] - position).abs() < sliding_window


def _noise(query: Tensor, scale: Tensor | None, groups: list[Group], dropout: float) -> list[Tensor | None]:
    """Factors of each group's attention weights, (texts * H, T, T): dropout mask, drophead factor, or both."""
    heads = query.shape[1]
    noise: list[Tensor | None] = [None] * len(groups)
    if dropout:  # one draw for all groups
        sizes = [heads * texts * length * length for texts, length in groups]
        masks = dropout_mask(query.new_empty(sum(sizes), dtype=_wide(query)), dropout).split(sizes)
        noise = [mask.view(-1, length, length) for mask, (_, length) in zip(masks, groups, strict=True)]
    if scale is not None:
        factors = scale.flatten()[:, None, None].split([heads * texts for texts, _ in groups])
        noise = [factor if mask is None else mask * factor for mask, factor in zip(noise, factors, strict=True)]
    return noise


class _AttentionByLength(torch.autograd.Function):
    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx, query, key, value, noise, groups, scaling, sliding_window):
        output, saved = query.new_zeros(query.shape), []
        for group, place, mask in zip(groups, _slices(groups), noise, strict=True):
            q, k, v = (_take(x, place, group) for x in (query, key, value))  # (texts * H, T, d) each
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(scaling)
            if sliding_window and group[1] > sliding_window:
                scores.masked_fill_(
                    ~sliding_window_mask(group[1], sliding_window, scores.device), torch.finfo(scores.dtype).min
                )
            weights = scores.softmax(dim=-1)
            _put(output, place, group, torch.bmm(weights if mask is None else weights * mask, v))
            saved += [q, k, v, weights, mask]
        ctx.save_for_backward(*saved)
        ctx.groups, ctx.scaling = groups, scaling
        return output

    @staticmethod
    @once_differentiable
    @torch.autocast("cpu", enabled=False)
    def backward(ctx, gradient):
        of_inputs = [torch.zeros_like(gradient) for _ in range(3)]
        saved = zip(*[iter(ctx.saved_tensors)] * 5, strict=True)  # five per group, as saved
        for group, place, (q, k, v, weights, mask) in zip(ctx.groups, _slices(ctx.groups), saved, strict=True):
            of_output = _take(gradient, place, group)
            of_weights = torch.bmm(of_output, v.transpose(1, 2))
            if mask is None:
                noisy = weights
            else:
                noisy, of_weights = weights * mask, of_weights.mul_(mask)
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype).mul_(ctx.scaling)
            _put(of_inputs[0], place, group, torch.bmm(of_scores, k))
            _put(of_inputs[1], place, group, torch.bmm(of_scores.transpose(1, 2), q))
            _put(of_inputs[2], place, group, torch.bmm(noisy.transpose(1, 2), of_output))
        return *of_inputs, None, None, None, None


def _slices(groups: list[Group]) -> list[slice]:
    ends = accumulate((texts * length for texts, length in groups), initial=0)
    return [slice(start, end) for start, end in pairwise(ends)]


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _take(x: Tensor, where: slice, group: Group) -> Tensor:
    """A group's part of (S, H, d) as (texts * H, T, d): converted and transposed in one copy."""
    batch = x[where].unflatten(0, group).transpose(1, 2)
    return batch.to(_wide(x), memory_format=torch.contiguous_format).flatten(0, 1)


def _put(x: Tensor, where: slice, group: Group, batch: Tensor) -> None:
    """Scatter a group's output into `x`."""
    x[where].unflatten(0, group).transpose(1, 2).copy_(batch.unflatten(0, (group[0], -1)))

"""Faster kernels for CPUs: attention within the texts of a packed row, packed linear layers, and memory that is kept."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import GELUActivation

from mirror.modeling.dropout import dropout_mask


Group = tuple[int, int]  # texts, tokens of each
TYPICAL_ROWS = 1536  # tokens of a batch, for which oneDNN chooses the order of packed weights
LONG = 1024  # tokens of a text above which its attention weights are computed again in the backward pass


class Scores(NamedTuple):
    """How attention makes scores of queries and keys."""

    scaling: float  # factor of the products
    # Tokens i and j attend to each other if |i - j| is less (ModernBERT's local layers).
    sliding_window: int | None = None
    causal: bool = False  # no token attends to one after it
    softcap: float | None = None  # scores are squashed to between plus and minus this number (Gemma 2)
    # Added to the scores of positions i and j, (H, L, L), L at least the longest text (MPNet).
    bias: Tensor | None = None


@torch.compiler.disable  # groups differ in every batch, and each would be compiled
def attend_by_length(
    query, key, value, scale: Tensor | None, groups: list[Group], dropout: float, scores: Scores
) -> Tensor:
    """Return attention within each of the concatenated texts, (S, H, d) each as (S, H, d), with zeros after the last text.

    `scale` is drophead's factor of each head of a text, (texts, H). There is a group for every run of texts of equal
    length, in packed order.
    """
    noise = _noise(query, scale, groups, dropout)
    return _AttentionByLength.apply(query, key, value, scores.bias, noise, groups, scores)


def visible(length: int, scores: Scores, device: torch.device) -> Tensor | None:
    """Return which position sees which, (T, T). None: every position sees every other."""
    is_local = scores.sliding_window and length > scores.sliding_window
    if not (scores.causal or is_local):
        return None
    position = torch.arange(length, device=device)
    distance = position[:, None] - position
    seen = distance >= 0 if scores.causal else torch.ones_like(distance, dtype=torch.bool)
    return seen & (distance.abs() < scores.sliding_window) if is_local else seen


class LongNoise(NamedTuple):
    """The noise on the weights of long texts, drawn head by head where it is needed."""

    seed: int
    dropout: float
    factors: Tensor | None  # drophead's, (texts * H, 1, 1)

    def of(self, row: int, length: int, dtype: torch.dtype) -> Tensor | None:
        """Return the factors of the weights of one head of one text, (1, T, T) or (1, 1, 1), the same at each call."""
        factor = None if self.factors is None else self.factors[row : row + 1]
        if not self.dropout:
            return factor
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + row)
            mask = dropout_mask(torch.empty(1, length, length, dtype=dtype), self.dropout)
        return mask if factor is None else mask.mul_(factor)


def _noise(query, scale: Tensor | None, groups: list[Group], dropout: float) -> list[Tensor | LongNoise | None]:
    """Return the factors of each group's attention weights, (texts * H, T, T): dropout mask, drophead factor, or both."""
    heads, dtype = query.shape[1], torch.promote_types(query.dtype, torch.float32)
    masks: Sequence[Tensor | None] = [None] * len(groups)
    factors: Sequence[Tensor | None] = [None] * len(groups)
    if dropout:  # one draw for all groups
        sizes = [heads * texts * length * length * (length <= LONG) for texts, length in groups]
        masks = dropout_mask(query.new_empty(sum(sizes), dtype=dtype), dropout).split(sizes)
    if scale is not None:
        factors = scale.flatten()[:, None, None].split([heads * texts for texts, _ in groups])
    noise: list[Tensor | LongNoise | None] = []
    for (texts, length), mask, factor in zip(groups, masks, factors, strict=True):
        if length > LONG:
            noise.append(LongNoise(int(torch.randint(2**62, ())) if dropout else 0, dropout, factor))
        elif mask is None:
            noise.append(factor)
        else:
            mask = mask.view(heads * texts, length, length)
            noise.append(mask if factor is None else mask * factor)
    return noise


def _weights(q: Tensor, k: Tensor, bias: Tensor | None, how: Scores) -> tuple[Tensor, Tensor | None]:
    """Return the attention weights of queries and keys, (N, T, d) each, as (N, T, T), and the capped scores over the cap."""
    scores, capped, length = torch.bmm(q, k.transpose(1, 2)).mul_(how.scaling), None, q.shape[1]
    if how.softcap:
        capped = scores.div_(how.softcap).tanh_()
        scores = capped * how.softcap
    if bias is not None:
        scores.unflatten(0, (-1, len(bias))).add_(bias[:, :length, :length])
    if (seen := visible(length, how, scores.device)) is not None:
        scores.masked_fill_(~seen, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1), capped


def _parts(group: Group, heads: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows of (texts * H) that are computed at once, and their heads: all, or one by one in long texts."""
    texts, length = group
    if length <= LONG:
        yield slice(None), slice(None)
    else:
        for row in range(texts * heads):
            yield slice(row, row + 1), slice(row % heads, row % heads + 1)


class _AttentionByLength(torch.autograd.Function):
    # Written by hand, because autograd would visit a dozen small nodes for each of some 30 lengths per layer, which made a whole
    # training step a tenth slower. Products are in float32 or higher: a batch has some 150 shapes, almost all of them new, and for
    # bfloat16 oneDNN compiles and keeps a kernel per shape, which took more time than the products, and a megabyte each. The
    # weights of long texts are computed again in the backward pass, so that memory grows with the tokens and not their square.
    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx, query, key, value, bias, noise, groups, how):
        output, saved, heads = query.new_zeros(query.shape), [], query.shape[1]
        ends = accumulate((texts * length for texts, length in groups), initial=0)
        places = [slice(start, end) for start, end in pairwise(ends)]
        for group, place, mask in zip(groups, places, noise, strict=True):
            q, k, v = (_take(x, place, group) for x in (query, key, value))  # (texts * H, T, d) each
            results, is_long = [], isinstance(mask, LongNoise)
            for rows, of_heads in _parts(group, heads):
                weights, capped = _weights(q[rows], k[rows], None if bias is None else bias[of_heads], how)
                drawn = mask.of(rows.start, group[1], q.dtype) if is_long else mask
                results.append(torch.bmm(weights if drawn is None else weights * drawn, v[rows]))
            _put(output, place, group, torch.cat(results) if is_long else results[0])
            saved += [q, k, v, *([None] * 3 if is_long else [weights, mask, capped])]
        ctx.save_for_backward(bias, *saved)
        ctx.groups, ctx.places, ctx.how = groups, places, how
        ctx.noise = [mask if isinstance(mask, LongNoise) else None for mask in noise]
        return output

    @staticmethod
    @once_differentiable
    @torch.autocast("cpu", enabled=False)
    def backward(ctx, gradient):
        of_inputs, heads = [torch.zeros_like(gradient) for _ in range(3)], gradient.shape[1]
        wide = torch.promote_types(gradient.dtype, torch.float32)
        bias, *saved = ctx.saved_tensors
        of_bias = None if bias is None else gradient.new_zeros(bias.shape, dtype=wide)
        per_group = zip(ctx.groups, ctx.places, ctx.noise, zip(*[iter(saved)] * 6, strict=True), strict=True)
        for group, place, long_noise, (q, k, v, weights, mask, capped) in per_group:
            of_output = _take(gradient, place, group)
            results = []
            for rows, of_heads in _parts(group, heads):
                if long_noise:
                    weights, capped = _weights(q[rows], k[rows], None if bias is None else bias[of_heads], ctx.how)
                    mask = long_noise.of(rows.start, group[1], q.dtype)
                of_weights = torch.bmm(of_output[rows], v[rows].transpose(1, 2))
                noisy = weights
                if mask is not None:
                    noisy, of_weights = weights * mask, of_weights.mul_(mask)
                of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
                if of_bias is not None:
                    part = of_bias[of_heads, : group[1], : group[1]]
                    part += of_scores.unflatten(0, (-1, len(part))).sum(0)
                if capped is not None:
                    of_scores.mul_(1 - capped.square())
                of_scores.mul_(ctx.how.scaling)
                of_q, of_k = torch.bmm(of_scores, k[rows]), torch.bmm(of_scores.transpose(1, 2), q[rows])
                results.append((of_q, of_k, torch.bmm(noisy.transpose(1, 2), of_output[rows])))
            for of_input, parts in zip(of_inputs, zip(*results, strict=True), strict=True):
                _put(of_input, place, group, torch.cat(parts) if long_noise else parts[0])
        return *of_inputs, of_bias, None, None, None


def _take(x: Tensor, where: slice, group: Group) -> Tensor:
    """Return a group's part of (S, H, d) as (texts * H, T, d), converted and transposed in one copy."""
    batch, wide = x[where].unflatten(0, group).transpose(1, 2), torch.promote_types(x.dtype, torch.float32)
    return batch.to(wide, memory_format=torch.contiguous_format).flatten(0, 1)


def _put(x: Tensor, where: slice, group: Group, batch: Tensor) -> None:
    """Write a group's output into `x`."""
    x[where].unflatten(0, group).transpose(1, 2).copy_(batch.unflatten(0, (group[0], -1)))


class PackedLinear(nn.Module):
    """A linear layer with its weights of now in oneDNN's order, and "gelu" or "none" after it. Without gradient."""

    # PyTorch's own layer reorders weights in bfloat16 at each call, and hands float32 to MKL. This is the operator of its compiler.
    def __init__(self, layer: nn.Linear, then: str = "none"):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), TYPICAL_ROWS)
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.layer, self.then = (layer,), then  # the layer is not registered as a module

    def forward(self, inputs: Tensor) -> Tensor:
        # Autocast, which accelerate puts inside `model.forward`, converts the inputs of PyTorch's layers, and not these.
        if torch.is_autocast_enabled("cpu"):
            outputs = self.layer[0](inputs)
            return nn.functional.gelu(outputs) if self.then == "gelu" else outputs
        return torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, self.then, [], "none")


def keep_freed_memory(device: torch.device) -> None:
    """Make glibc keep freed memory for the next tensors of a CPU. To clear new pages in each step takes up to a fifth of it."""
    if device.type == "cpu" and sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: never
        mallopt(-4, 0)  # M_MMAP_MAX: large blocks come from the heap too


@cache
def packed_types() -> set[torch.dtype]:
    """Return the types in which packed linear layers are faster: bfloat16 where the CPU has it, float32 on AMD's with AVX-512."""
    if not torch.backends.mkldnn.is_available():
        return set()
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    processor = Path("/proc/cpuinfo")  # MKL, which PyTorch calls for float32, uses only AVX2 on AMD's
    is_amd = processor.is_file() and "AuthenticAMD" in processor.read_text(encoding="utf-8")
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    faster = {torch.bfloat16: has_bf16, torch.float32: is_amd and has_avx512}
    return {dtype for dtype, is_faster in faster.items() if is_faster}


@contextmanager
def packed_linear(model: nn.Module, types: Collection[torch.dtype]) -> Iterator[None]:
    """Replace the linear layers of `model` on the CPU that have one of these types by `PackedLinear` of their weights."""
    replaced: list[tuple[nn.Module, str, nn.Module, nn.Module]] = []
    for module in list(model.modules()) if types else ():
        after = getattr(module, "intermediate_act_fn", None)  # of the layer `dense`, in BERT's family
        for name, layer in module.named_children():
            # Hooks may change a layer at each call, and weights of another kind (sharded, quantized) cannot be copied.
            has_hooks = layer._forward_hooks or layer._forward_pre_hooks
            if type(layer) is nn.Linear and type(layer.weight) is nn.Parameter and not has_hooks:
                if layer.weight.dtype in types and layer.weight.device.type == "cpu":
                    gelu = name == "dense" and type(after) is GELUActivation and after.act is nn.functional.gelu
                    replaced.append((module, name, layer, PackedLinear(layer, "gelu" if gelu else "none")))
                    if gelu:
                        replaced.append((module, "intermediate_act_fn", after, nn.Identity()))
    try:
        for module, name, _, new in replaced:
            setattr(module, name, new)
        yield
    finally:
        for module, name, layer, _ in replaced:
            setattr(module, name, layer)

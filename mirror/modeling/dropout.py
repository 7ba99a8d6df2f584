"""Feature-space noise: dropout rates, dropout that both views share, drophead.

Works on modules and tensors. Knows nothing of how attention is computed (`mirror.modeling.attention`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.modernbert.modeling_modernbert import ModernBertAttention

from mirror.common.cli import share
from mirror.common.errors import InputError


def set_dropout(model: PreTrainedModel, rate: float) -> None:
    """Set every dropout rate of `model`, attention's included, without changing its config (and so its checkpoint).

    Raises an `InputError` for a rate outside [0, 1), or above 0 for a model that has no dropout.
    """
    share("The paper uses 0.1")("--dropout_rate", rate)
    count = 0
    for module in model.modules():
        if isinstance(module, ModernBertAttention) and isinstance(module.out_drop, nn.Identity):
            # transformers leaves the module out if the checkpoint's rate is 0.
            module.out_drop = nn.Dropout().train(module.training)
        # Most are `nn.Dropout` modules, whose `p` is read at each call, also when attention passes it on to a fused kernel.
        # Some models store a rate as a plain number: ModernBERT `attention_dropout`, Longformer and XLM `dropout`.
        numbers = [name for name, value in vars(module).items() if "dropout" in name and type(value) in (int, float)]
        rates = ["p"] if isinstance(module, nn.Dropout) else numbers
        for name in rates:
            setattr(module, name, rate)
        count += len(rates)
    if rate and not count:
        raise InputError(f"--dropout_rate {rate}: {type(model).__name__} has no dropout; use --drophead_rate")


class FastDropout(nn.Dropout):
    """`nn.Dropout` that draws its masks from raw random bits on a CPU. `bernoulli_` is several times slower."""

    paired = False

    def forward(self, input: Tensor) -> Tensor:
        return apply_dropout(input, self.p, self.paired) if self.training and self.p else input


class PairedDropout(FastDropout):
    """Dropout with the same mask for both views: rows i and B + i of a batch of 2B rows."""

    paired = True


def apply_dropout(x: Tensor, rate: float, paired: bool = False) -> Tensor:
    """Return `x` with each value zeroed with probability `rate` and the others scaled by 1 / (1 - rate).

    On a CPU the rate is rounded to a multiple of 2**-16, and the scale is adjusted. If `paired`, `x` is (2B, ...), and
    rows i and B + i get the same mask.
    """
    if paired:
        views = x.unflatten(0, (2, -1))  # (2, B, ...)
        return (views * dropout_mask(views[0], rate)).flatten(0, 1)
    return x * dropout_mask(x, rate) if x.device.type == "cpu" else nn.functional.dropout(x, rate)


def dropout_mask(like: Tensor, rate: float) -> Tensor:
    """Return 0 with probability `rate`, else 1 / (1 - rate), in the shape and dtype of `like`."""
    if like.device.type != "cpu":
        return torch.empty_like(like).bernoulli_(1 - rate).div_(1 - rate)
    threshold = min(round(rate * 2**16), 2**16 - 1)  # at 2**16 nothing is kept, and the scale has no value
    words = torch.empty(like.numel() // 4 + 1, dtype=torch.int64).random_(-(2**63), None)  # 64 random bits each
    bits = words.view(torch.int16)[: like.numel()].view(like.shape)  # uniform on [-2**15, 2**15)
    kept = torch.ge(bits, threshold - 2**15, out=torch.empty_like(like, memory_format=torch.contiguous_format))
    return kept.mul_(2**16 / (2**16 - threshold))


def drophead_scale(rows: int, heads: int, rate: float, device: torch.device, paired: bool = False) -> Tensor:
    """Return the factor of each head of each row: 0 with probability `rate`, else H / (number of heads kept).

    Zhou et al. 2020, "Scheduled DropHead", Algorithm 1. Mirror-BERT, section 4.4. Returns (rows, heads) in float32. If
    `paired`, the same heads are dropped in rows i and B + i of 2B.
    """
    draw = torch.rand(rows // 2 if paired else rows, heads, device=device)
    # If all heads of a row would be dropped (a share rate ** H of the rows, 0/0 in the released code), one of them is kept.
    kept = (draw >= rate) | (draw == draw.amax(dim=1, keepdim=True))
    scale = kept * (heads / kept.sum(dim=1, keepdim=True))
    return scale.repeat(2, 1) if paired else scale


def check_views_agree(model: PreTrainedModel) -> None:
    """Run one text as both views in training mode. Raise an `InputError` if controlled dropout lets them differ."""
    training = model.training
    ids = dummy_input_ids(model, 8).to(model.device)
    with torch.random.fork_rng(), torch.no_grad():
        hidden = model.train()(input_ids=ids.repeat(2, 1), attention_mask=torch.ones_like(ids).repeat(2, 1))[0]
    model.train(training)
    if not torch.allclose(hidden[0], hidden[1], atol=1e-5):
        name = type(model).__name__
        raise InputError(f"--controlled_dropout: {name} applies dropout in its own way; leave the flag out")


def dummy_input_ids(model: PreTrainedModel, length: int) -> Tensor:
    """Return token ids that are not padding, (1, length), for a trial forward pass."""
    return torch.tensor([[token for token in range(length + 1) if token != model.config.pad_token_id][:length]])

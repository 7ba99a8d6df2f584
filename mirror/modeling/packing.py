"""Prepare a model for training: set its noise, decide whether to pack rows, run it on them, estimate its memory.

In a packed row all texts of a batch lie end to end, and attention runs only within each. The attention is in
`mirror.modeling.attention`, the layout of a row in `mirror.data.batches`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from mirror.common.cli import share
from mirror.common.errors import InputError, one_line
from mirror.data.batches import pack
from mirror.modeling.attention import BY_LENGTH, OURS, PackedLayout, take_packed_rows, use_mirror_attention
from mirror.modeling.backbone import first_position, position_limit
from mirror.modeling.dropout import FastDropout, PairedDropout, check_views_agree, dummy_input_ids, set_dropout
from mirror.modeling.pooling import pool, without_first
from mirror.modeling.static import StaticModel


logger = logging.getLogger(__name__)

LONGEST_TRIAL = 1024  # tokens; a wider window is wider than texts are long here
ROW_LENGTHS = (16, 32, 48, 64, 96, 128)  # of shared rows: batches of one size, for which oneDNN has a kernel
NEED_PADDING = ("mean_padded", "pooler")  # poolings
TOLERANCE = 1e-2  # relative difference that rounding in float32 stays below, and a wrong result exceeds


def configure_noise_and_packing(
    model: PreTrainedModel,
    pooling: str,
    packing: str = "auto",
    dropout_rate: float | None = None,
    drophead_rate: float = 0.0,
    controlled_dropout: bool = False,
) -> bool:
    """Set the dropout, drophead and attention of `model` for training. Its config, weights and eval mode do not change.

    Returns whether batches have to be packed (`pack`, `packed_forward`) or padded. A rate outside [0, 1) or a setting
    that this architecture does not support is an `InputError`.

    Args:
        packing: `on`, `off`, or `auto`: wherever the model and the pooling allow it.
        dropout_rate: rate of every dropout. Default: the checkpoint's own rates, or 0 with drophead, as in the paper
            (Mirror-BERT, section 4.4).
        drophead_rate: probability that an attention head of a text is dropped.
        controlled_dropout: both views of a text see the same noise (Mirror-BERT, Table 8).
    """
    share("The paper uses 0.2 for BERT and 0.05 for RoBERTa")("--drophead_rate", drophead_rate)
    if dropout_rate is None and drophead_rate:
        dropout_rate = 0.0
    if dropout_rate is not None:
        set_dropout(model, dropout_rate)
    kind = PairedDropout if controlled_dropout else FastDropout
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                setattr(parent, name, kind(child.p).train(child.training))
    reason = adopt_attention(model, drophead_rate, controlled_dropout)
    if reason and drophead_rate:
        raise InputError(f"--drophead_rate: {reason}; use --dropout_rate")
    if controlled_dropout:
        check_views_agree(model)
    unsupported = "--controlled_dropout" if controlled_dropout else packing_unsupported_reason(model, pooling)
    if packing == "on" and unsupported:
        raise InputError(f"--packing on: not possible here ({unsupported}); use --packing auto")
    if packing == "auto":
        state = f"off ({unsupported}), padding to the longest row" if unsupported else "on, no padding"
        logger.info("packing: %s", state)
    return packing != "off" and not unsupported


def packing_unsupported_reason(model: PreTrainedModel, pooling: str) -> str | None:
    """Return why `model` cannot train on packed rows, or None. Switches it to this project's attention for a trial."""
    if pooling in NEED_PADDING:
        return f"--pooling {pooling} needs padded rows"
    return _reason_against(model, lambda: packed_forward(model, _trial_batch(model), "mean"))


def _reason_against(model: PreTrainedModel, forward: Callable[[], tuple[BaseModelOutput, Tensor]]) -> str | None:
    """Return why `forward`, which runs the model on the texts of `_trial_batch`, gives other vectors than padded, or None."""
    uses_ours = model.config._attn_implementation.startswith("mirror")
    if not uses_ours and (reason := adopt_attention(model)) and not getattr(model, "takes_packed_rows", False):
        return reason
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            difference = _relative_difference(pool(*forward(), "mean"), _padded_trial(model))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return f"{type(model).__name__} does not accept a packed row: {one_line(error, 120)}"
    finally:
        model.train(training)
    if not difference < _tolerance(model):
        return f"{type(model).__name__} computes other vectors for packed texts, relative difference {difference:.2g}"
    return None


def adopt_attention(model: PreTrainedModel, drophead_rate: float = 0.0, paired: bool = False) -> str | None:
    """Make `model` use this project's attention (`use_mirror_attention`), or return why it cannot.

    Some models pass to the attention function what this one does not know, such as gpt-oss's sinks. They keep their own.
    """
    if isinstance(model, StaticModel):
        return "a static encoder has no attention"
    own, training = model.config._attn_implementation, model.training
    expected = _padded_trial(model.eval()) if model._supports_attention_backend or type(model) in OURS else None
    take_packed_rows(model)
    # Whether the model takes its attention function from transformers' registry (DeBERTa does not).
    if not model._supports_attention_backend:
        model.train(training)
        return f"the attention of {type(model).__name__} does not go through transformers' attention interface"
    use_mirror_attention(model, drophead_rate, paired)
    difference = _relative_difference(_padded_trial(model), expected)
    model.train(training)
    if difference < _tolerance(model):
        return None
    model.set_attn_implementation(own)
    take_packed_rows(model, False)
    return f"{type(model).__name__} needs an attention of its own"


@torch.no_grad()
def _padded_trial(model: PreTrainedModel) -> Tensor:
    """Return the vectors of the two texts of `_trial_batch`, padded."""
    ids, mask = _padded_batch(model)
    return pool(model(input_ids=ids, attention_mask=mask), mask, "mean")


def _padded_batch(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    batch = _trial_batch(model)
    mask, ids = batch["attention_mask"], batch["input_ids"][0, batch["starts"][0] :]
    return ids[: mask.shape[1]].expand(2, -1), mask  # the mask hides the end of the second


def _trial_batch(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return two texts as one packed row. The second is the beginning of the first."""
    length = _trial_length(model)
    ids = (dummy_input_ids(model, 9)[0].tolist() * length)[:length]
    batch = pack([ids, ids[:4]], first_position(model), pad_token_id=0)
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


def _relative_difference(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def _tolerance(model: PreTrainedModel) -> float:
    return max(TOLERANCE, 4 * torch.finfo(model.dtype).eps)  # all-mpnet-base-v2 in bfloat16 differs by 0.014


def _trial_length(model: PreTrainedModel) -> int:
    # Longer than the window of layers in which a token sees only its neighbors, or the trial would miss an error there.
    return min((getattr(model.config, "sliding_window", None) or 0) + 9, position_limit(model), LONGEST_TRIAL)


def packed_forward(
    model: nn.Module, batch: dict[str, Tensor], pooling: str, skipped: Tensor | None = None
) -> tuple[BaseModelOutput, Tensor]:
    """Run `model`, wrapped or compiled or not, on a packed row (`pack`) on its device, and return what `pool` needs.

    These are hidden states as for a padded batch, (N, T, D) with zeros for padding, and its mask, (N, T). For `cls`,
    `last` and, on a CPU, `mean`, T is 1, because nothing else is needed. `skipped`, (N,), is how many first tokens of
    each text, those of its prompt, the pooling leaves out.
    """
    layout = PackedLayout(batch["lengths"], batch["slots"], batch["attention_mask"])
    row = {name: batch[name] for name in ("input_ids", "position_ids")}
    output = model(**row, packed=layout, output_hidden_states=pooling == "first_last_mean")
    last = output.last_hidden_state[0]  # (S, D)
    if pooling in ("cls", "last"):
        ends = (layout.mask.sum(dim=1) - 1).clamp(min=0)  # a text of no tokens has a mask of zeros
        first = 0 if skipped is None else torch.minimum(skipped, ends)
        places = batch["starts"] + (first if pooling == "cls" else ends)
        return BaseModelOutput(last.index_select(0, places)[:, None]), layout.mask[:, :1]
    if pooling == "mean" and skipped is None and last.device.type in BY_LENGTH:
        return BaseModelOutput(layout.means(last)[:, None]), layout.mask[:, :1]
    early = tuple(layout.pad(hidden[0]) for hidden in output.hidden_states[:2]) if output.hidden_states else None
    output = BaseModelOutput(layout.pad(last), hidden_states=early)
    return (output, layout.mask) if skipped is None else without_first(output, layout.mask, skipped)


def takes_shared_rows(model: PreTrainedModel) -> bool:
    """Return whether `shared_forward` works for a model, on a CPU. Switches it to this project's attention for a trial."""
    on_cpu = model.device.type in BY_LENGTH
    return on_cpu and not _reason_against(model, lambda: shared_forward(model, *_padded_batch(model), "mean"))


def shared_row(length: int) -> tuple[int, int]:
    """Return how many texts of a length share a row, and the length of the row: what gives a text the fewest tokens."""
    sizes = [size for size in ROW_LENGTHS if size >= length] or [-(-length // ROW_LENGTHS[0]) * ROW_LENGTHS[0]]
    return min(((size // length, size) for size in sizes), key=lambda each: each[1] / each[0])


def shared_forward(model: nn.Module, ids: Tensor, mask: Tensor, pooling: str) -> tuple[BaseModelOutput, Tensor]:
    """Run `model` on padded texts, ids and mask of (N, T), several in a row, and return what `pool` needs.

    No text attends to another. Attention on a CPU takes twice as long for rows of 12 tokens as for the next multiple of 16.
    """
    texts, length = ids.shape
    count, width = shared_row(length)

    def in_rows(x: Tensor, filler: int) -> Tensor:
        rows = F.pad(x, (0, 0, 0, -texts % count), value=filler).view(-1, count * length)
        return F.pad(rows, (0, width - count * length), value=filler)

    first = first_position(model)
    owner = in_rows(torch.arange(texts)[:, None].where(mask > 0, -1), -1)
    inputs = {"input_ids": in_rows(ids, model.config.pad_token_id or 0)}
    inputs |= {"position_ids": in_rows(torch.arange(first, first + length).expand_as(ids), first)}
    inputs |= {"attention_mask": owner[:, None, :, None] == owner[:, None, None, :]}
    output = model(**inputs, output_hidden_states=pooling == "first_last_mean")
    layers = [output.last_hidden_state, *(output.hidden_states or ())[:2]]
    last, *early = (layer[:, : count * length].reshape(-1, length, layer.shape[2])[:texts] for layer in layers)
    return BaseModelOutput(last, hidden_states=tuple(early)), mask

"""Training set-up of a model, and packed batches: all texts in one row, attention only within each.

Sets noise, attention and packing in one place, decides which models can be packed, and runs a model on a packed row. The
attention itself is in `mirror.modeling.attention`, the layout of a row in `mirror.data.packing`.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_flash_attention_utils import lazy_import_flash_attention
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import is_kernels_available

from mirror.common.cli import probability
from mirror.common.errors import InputError, library_errors, one_line
from mirror.data.packing import pack
from mirror.modeling.attention import KERNELS, PackedLayout, use_mirror_attention, uses_attention_interface
from mirror.modeling.backbone import position_limit
from mirror.modeling.choices import Attention, Packing
from mirror.modeling.dropout import (
    FastDropout,
    PairedDropout,
    check_views_agree,
    dummy_input_ids,
    replace_dropout,
    set_dropout,
)
from mirror.modeling.pooling import pool


logger = logging.getLogger(__name__)

LONGEST_TRIAL = 1024  # tokens; a wider window is wider than texts are long here
TOLERANCE = 1e-2  # relative difference that rounding stays below, and a wrong result exceeds


def configure_noise_and_packing(
    model: PreTrainedModel,
    pooling: str,
    packing: Packing = "auto",
    dropout_rate: float | None = None,
    drophead_rate: float = 0.0,
    controlled_dropout: bool = False,
    attention: Attention | None = None,
) -> bool:
    """Set the dropout, drophead and attention of `model` for training; its config, weights and eval mode do not change.

    Args:
        pooling: of the training; two modes need padded rows.
        dropout_rate: of every dropout; by default the checkpoint's own rates, or 0 where there is drophead, as in the
            paper (Mirror-BERT, section 4.4).
        drophead_rate: probability that an attention head of a text is dropped.
        controlled_dropout: both views of a text see the same noise (Mirror-BERT, Table 8).
        attention: "kernels" for packed attention on a GPU by the flash-attn that the package `kernels` downloads.

    Returns:
        Whether batches are to be packed (`pack`, `packed_forward`) or padded.

    Raises:
        InputError: a rate outside [0, 1), or a setting that this architecture does not support.
    """
    probability("--drophead_rate", drophead_rate, "the paper uses 0.2 for BERT and 0.05 for RoBERTa")
    if dropout_rate is None and drophead_rate:
        dropout_rate = 0.0
    if dropout_rate is not None:
        set_dropout(model, dropout_rate)
    replace_dropout(model, PairedDropout if controlled_dropout else FastDropout)
    if attention is not None:
        _load_kernels()
    if uses_attention_interface(model):
        use_mirror_attention(model, drophead_rate, paired=controlled_dropout, kernels=attention is not None)
    elif drophead_rate:
        raise InputError(f"--drophead_rate: {_no_interface(model)}; use --dropout_rate")
    if controlled_dropout:
        check_views_agree(model)
    return _decide(
        packing, "--controlled_dropout" if controlled_dropout else packing_unsupported_reason(model, pooling)
    )


def _load_kernels() -> None:
    """Download and load the kernel now, so that what is missing is said before the training.

    Raises:
        InputError: there is no GPU, the package is not installed, or the Hub cannot be reached.
    """
    if not torch.cuda.is_available():
        raise InputError("--attention kernels needs a GPU, and torch sees none; leave it out")
    if not is_kernels_available():
        raise InputError("--attention kernels needs the package kernels: pip install kernels")
    with library_errors(f"--attention kernels: {KERNELS} cannot be loaded"):
        lazy_import_flash_attention(KERNELS)


def _decide(packing: Packing, unsupported: str | None) -> bool:
    if packing == "on" and unsupported:
        raise InputError(f"--packing on: not possible here ({unsupported}); use --packing auto")
    if packing == "auto":
        state = f"off ({unsupported}), padding to the longest row" if unsupported else "on, no padding"
        logger.info("packing: %s", state)
    return packing != "off" and not unsupported


def packing_unsupported_reason(model: PreTrainedModel, pooling: str) -> str | None:
    """Why `model` cannot train on packed rows, or None if it can: compares two short texts packed and padded.

    Switches the model to this project's attention if that has not been done.
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
        return f"{type(model).__name__} does not accept a packed row: {one_line(error, 120)}"
    finally:
        model.train(training)
    if not difference < TOLERANCE:
        return f"{type(model).__name__} computes other vectors for packed texts, relative difference {difference:.2g}"
    return None


@torch.no_grad()
def _packed_difference(model: PreTrainedModel) -> float:
    """Relative difference of the packed and padded vectors of two texts."""
    length = _trial_length(model)
    ids = (dummy_input_ids(model, 9)[0].tolist() * length)[:length]
    batch = pack([ids, ids[:4]], first_position(model), pad_token_id=0)
    batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
    padded_ids = torch.tensor([ids, ids], device=model.device)  # the mask hides the end of the second
    packed = pool(*packed_forward(model, batch, "mean"), "mean")
    padded = pool(model(input_ids=padded_ids, attention_mask=batch["attention_mask"]), batch["attention_mask"], "mean")
    return ((packed - padded).norm() / padded.norm()).item()


def _trial_length(model: PreTrainedModel) -> int:
    """Nine tokens, and past the window of layers in which a token sees only its neighbours."""
    window = getattr(model.config, "sliding_window", None) or 0
    return min(window + 9, position_limit(model), LONGEST_TRIAL)


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


def packed_forward(model: nn.Module, batch: dict[str, Tensor], pooling: str) -> tuple[BaseModelOutput, Tensor]:
    """Run `model`, wrapped or compiled or not, on a packed row, and return what `pool` needs.

    Args:
        batch: from `pack`, on the model's device.

    Returns:
        Hidden states as for a padded batch, (N, T, D) with zeros for padding, and its mask, (N, T). For `cls`, T is 1, as
        nothing else is needed.
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

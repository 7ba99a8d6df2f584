"""Attention that transformers does not have: drophead, controlled dropout, and packed rows, also of MPNet and DeBERTa.

It runs inside unmodified models, through transformers' attention interface, and is scaled dot-product attention (SDPA) whenever the
model is in eval mode. MPNet and DeBERTa add to their attention what depends on the distance of two tokens. Their classes are replaced, in
a model that is loaded, by subclasses of the same names, so that the model is saved as it was. Knows nothing of training or pooling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, sdpa_mask
from transformers.modeling_flash_attention_utils import _flash_attention_forward
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deberta import modeling_deberta as deberta
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta_v2
from transformers.models.mpnet import modeling_mpnet as mpnet
from transformers.utils import is_flash_attn_2_available

from mirror.modeling.cpu_kernels import Group, Scores, attend_by_length, visible
from mirror.modeling.dropout import apply_dropout, drophead_scale


BY_LENGTH = ("cpu",)  # devices on which many small products are faster than padding


@dataclass(frozen=True)
class PackedLayout:
    """Positions of the texts in a packed row, and of their tokens in the padded batch (N, T)."""

    lengths: Tensor  # (N,) tokens of each text in packed order, equal lengths next to each other
    slots: Tensor  # (tokens,) row * T + position of each token
    mask: Tensor  # (N, T) 1 for a token and 0 for padding

    def pad(self, tokens: Tensor) -> Tensor:
        """Return (S, ...) as (N, T, ...) with zeros for padding. Drops the padding at the end of the packed row."""
        rows = tokens.new_zeros(self.mask.numel(), *tokens.shape[1:])
        return rows.index_copy(0, self.slots, tokens[: len(self.slots)]).unflatten(0, self.mask.shape)

    def means(self, tokens: Tensor) -> Tensor:
        """Return the mean of each text's tokens of (S, D), (N, D), as of the padded batch. Zeros for a text of no tokens."""
        parts = tokens[: len(self.slots)].split([texts * length for texts, length in self.groups])
        pairs = zip(parts, self.groups, strict=True)
        means = [part.unflatten(0, group).sum(dim=1) / max(1, group[1]) for part, group in pairs]
        order = self.mask.sum(dim=1).argsort(stable=True)  # of `pack`, the shortest first
        return torch.cat(means).index_select(0, order.argsort())

    @cached_property
    def groups(self) -> list[Group]:
        """(texts, tokens of each) for every run of texts of equal length."""
        lengths, counts = self.lengths.unique_consecutive(return_counts=True)
        return list(zip(counts.tolist(), lengths.tolist(), strict=True))

    @cached_property
    def bounds(self) -> Tensor:
        """(N + 1,) int32: where each text begins and the last one ends."""
        return F.pad(self.lengths.cumsum(0), (1, 0)).int()


def use_mirror_attention(model: PreTrainedModel, drophead_rate: float = 0.0, paired: bool = False) -> None:
    """Make `model` use `mirror_attention` with this drophead rate. Nothing of this is written to its config.json.

    `paired` is controlled dropout: rows i and B + i of a batch of 2B share all noise.
    """
    name = f"mirror_drophead_{drophead_rate}{'_paired' if paired else ''}"
    AttentionInterface.register(name, partial(mirror_attention, drophead_rate=drophead_rate, paired=paired))
    AttentionMaskInterface.register(name, _padding_mask)
    model.set_attn_implementation(name)


def mirror_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: PackedLayout | None = None,
    *,
    drophead_rate: float,
    paired: bool,
    is_causal: bool | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Compute attention as transformers calls it: query, key and value of (B, H, T, d) each become (B, T, H, d).

    Args:
        attention_mask: (B, 1, T, T) bool. None: every token attends to every other, or those before it (`is_causal`).
        dropout: rate for the attention weights, 0 in eval mode.
        packed: passed to `model(...)` as a keyword for a packed row. B is 1, T is the length of the row, and a token attends to
            its own text only.
        is_causal: of the model's configuration, if it says so. Overrides that of the module.

    The other arguments are those of `Scores`.
    """
    if key.shape[1] < query.shape[1]:  # grouped-query attention
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))
    scale = None
    if module.training and drophead_rate:
        rows = len(query) if packed is None else len(packed.lengths)
        scale = drophead_scale(rows, query.shape[1], drophead_rate, query.device, paired)  # (rows, H)
    of_module = getattr(module, "is_causal", False)
    causal = of_module if is_causal is None else is_causal
    if sliding_window and of_module and not causal:
        sliding_window += 1  # transformers' window of a decoder that is made bidirectional includes its end
    scores = Scores(scaling or query.shape[-1] ** -0.5, sliding_window, causal, softcap, bias)
    if packed is None:
        output = attend(query, key, value, attention_mask, scale, dropout, scores, paired)
        return output.transpose(1, 2).contiguous(), None
    flat = (x[0].transpose(0, 1) for x in (query, key, value))  # (S, H, d) each
    if query.device.type in BY_LENGTH:
        tokens = attend_by_length(*flat, scale, packed.groups, dropout, scores)
    elif bias is None and has_flash_attention(query):
        tokens = attend_flash(*flat, scale, packed, dropout, scores)
    else:
        tokens = attend_padded(*flat, scale, packed, dropout, scores, paired)
    return tokens[None], None


def has_flash_attention(query: Tensor) -> bool:
    """Return whether flash-attn is installed and supports this GPU (Ampere or newer) and precision."""
    fits = query.device.type == "cuda" and query.dtype in (torch.float16, torch.bfloat16)
    return fits and is_flash_attn_2_available() and torch.cuda.get_device_capability(query.device) >= (8, 0)


def attend_flash(
    query, key, value, scale: Tensor | None, packed: PackedLayout, dropout: float, scores: Scores
) -> Tensor:
    """Return attention of (S, H, d) each as (S, H, d), by flash-attn's kernel for variable lengths."""
    count, longest = len(packed.slots), packed.mask.shape[1]
    options = {"dropout": dropout, "softmax_scale": scores.scaling, "sliding_window": scores.sliding_window}
    options |= {"is_causal": scores.causal} | ({"softcap": scores.softcap} if scores.softcap else {})
    for side in "qk":
        options |= {f"cu_seq_lens_{side}": packed.bounds, f"max_length_{side}": longest}
    inputs = (x[None, :count] for x in (query, key, value))
    tokens = _flash_attention_forward(*inputs, None, count, **options, attn_implementation="flash_attention_2")[0]
    if scale is not None:
        factors = scale.to(tokens.dtype).repeat_interleave(packed.lengths, dim=0, output_size=count)  # (tokens, H)
        tokens = tokens * factors[:, :, None]
    return F.pad(tokens, (0, 0, 0, 0, 0, len(query) - count))


def attend_padded(
    query, key, value, scale: Tensor | None, packed: PackedLayout, dropout: float, scores: Scores, paired: bool = False
) -> Tensor:
    """Return attention of (S, H, d) each as (S, H, d), padded for attention only."""
    # On a GPU one large product is faster than many small ones. At the length of a sentence, attention is a small part of a layer,
    # and everything else still runs on the packed row.
    parts = (packed.pad(x).transpose(1, 2) for x in (query, key, value))  # (N, H, T, d)
    output = attend(*parts, packed.mask[:, None, None].bool(), scale, dropout, scores, paired)
    tokens = output.transpose(1, 2).flatten(0, 1).index_select(0, packed.slots)
    return F.pad(tokens, (0, 0, 0, 0, 0, len(query) - len(tokens)))


def attend(
    query, key, value, mask: Tensor | None, scale: Tensor | None, dropout: float, scores: Scores, paired: bool = False
) -> Tensor:
    """Return attention of (B, H, T, d) each as (B, H, T, d)."""
    length = query.shape[2]
    if (seen := visible(length, scores, query.device)) is not None:
        mask = seen if mask is None else mask & seen
    bias = None if scores.bias is None else scores.bias[None, :, :length, :length]
    if scores.softcap or (dropout and (paired or query.device.type == "cpu")):  # SDPA draws masks slowly on a CPU
        products = (query @ key.transpose(2, 3)).mul_(scores.scaling)  # (B, H, T, T)
        products = (products / scores.softcap).tanh() * scores.softcap if scores.softcap else products
        products = products if bias is None else products + bias
        if mask is not None:
            products = products.masked_fill(~mask, torch.finfo(products.dtype).min)
        weights = products.softmax(dim=-1).to(value.dtype)
        output = (apply_dropout(weights, dropout, paired) if dropout else weights) @ value
    else:
        if bias is not None:
            bias = bias.to(query.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
        output = F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scores.scaling)
    return output if scale is None else output * scale[:, :, None, None].to(output.dtype)


def _padding_mask(attention_mask: Tensor | None = None, **kwargs) -> Tensor | None:
    """Return transformers' mask for a padded batch. None for a packed row, whose mask would be (S, S)."""
    return None if attention_mask is None else sdpa_mask(attention_mask=attention_mask, **kwargs)


class MPNetSelfAttention(mpnet.MPNetSelfAttention):
    """Attention by the function of the configuration (`mirror_attention`), with a bias for each distance."""

    def forward(self, hidden_states, attention_mask=None, position_bias=None, output_attentions=False, **kwargs):
        bias, packed = position_bias
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        inputs = (layer(hidden_states).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        dropout = self.dropout.p if self.training else 0.0
        tokens, _ = attend(self, *inputs, attention_mask, dropout, bias=bias, packed=packed)
        return (self.o(tokens.flatten(2)),)


class MPNetModel(mpnet.MPNetModel):
    """MPNet for padded and packed rows. The bias is the same for every text, so that of the longest holds for all."""

    _supports_attention_backend = True

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        inputs_embeds=None,
        packed: PackedLayout | None = None,
        output_hidden_states=False,
        **kwargs,
    ):
        hidden = self.embeddings(input_ids=input_ids, position_ids=position_ids, inputs_embeds=inputs_embeds)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=hidden, attention_mask=attention_mask)
        longest = hidden.shape[1] if packed is None else packed.mask.shape[1]
        bias = self.encoder.compute_position_bias(hidden.new_empty(1, longest))[0]  # (H, T, T)
        states = [hidden]
        for layer in self.encoder.layer:
            states.append(layer(states[-1], mask, position_bias=(bias, packed))[0])
        pooled = None if self.pooler is None else self.pooler(states[-1])
        return BaseModelOutputWithPooling(states[-1], pooled, tuple(states) if output_hidden_states else None)


class _PackedDisentangled:
    """DeBERTa's attention, which scores the words of a text against distances: on rows that are padded for it alone."""

    def forward(self, hidden_states, attention_mask, *args, **kwargs):
        if not isinstance(attention_mask, PackedLayout):
            return super().forward(hidden_states, attention_mask, *args, **kwargs)
        mask = attention_mask.mask[:, None, None].bool()
        rows = super().forward(attention_mask.pad(hidden_states[0]), mask, *args, **kwargs)[0]
        tokens = rows.flatten(0, 1).index_select(0, attention_mask.slots)
        return F.pad(tokens, (0, 0, 0, hidden_states.shape[1] - len(tokens)))[None], None


class _PackedDeberta:
    takes_packed_rows = True

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, packed=None, output_hidden_states=False, **kwargs
    ):
        if packed is None:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
            return super().forward(**inputs, output_hidden_states=output_hidden_states, **kwargs)
        states: list[Tensor] = [self.embeddings(input_ids=input_ids, position_ids=position_ids)]
        distances = self.encoder.get_rel_pos(torch.empty(1, packed.mask.shape[1], 1, device=input_ids.device))
        embeddings = self.encoder.get_rel_embedding()
        for layer in self.encoder.layer:
            states.append(layer(states[-1], packed, relative_pos=distances, rel_embeddings=embeddings)[0])
        return BaseModelOutput(states[-1], tuple(states) if output_hidden_states else None)


def _packed(attention: type, model: type) -> dict[type, type]:
    return {
        attention: type(attention.__name__, (_PackedDisentangled, attention), {}),
        model: type(model.__name__, (_PackedDeberta, model), {}),
    }


OURS = {mpnet.MPNetModel: MPNetModel, mpnet.MPNetSelfAttention: MPNetSelfAttention}
OURS |= _packed(deberta.DisentangledSelfAttention, deberta.DebertaModel)
OURS |= _packed(deberta_v2.DisentangledSelfAttention, deberta_v2.DebertaV2Model)


def take_packed_rows(model: PreTrainedModel, take: bool = True) -> None:
    """Make an MPNet or a DeBERTa take packed rows, in place, or undo it. Any other model stays as it is."""
    classes = OURS if take else {ours: theirs for theirs, ours in OURS.items()}
    # A convolution reaches from one text of a row into the next, and `z_steps` run the last layer several times.
    is_other = getattr(getattr(model, "encoder", None), "conv", None) or getattr(model, "z_steps", 0) > 1
    if type(model) in classes and not is_other:
        for module in model.modules():
            if type(module) in classes:
                module.__class__ = classes[type(module)]
                module.config = model.config

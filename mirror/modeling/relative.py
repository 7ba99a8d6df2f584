"""Packed rows for MPNet and DeBERTa, which add to their attention what depends on the distance of two tokens.

Their classes are replaced, in a model that is loaded, by subclasses of the same names, so that the model is saved as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deberta import modeling_deberta as deberta
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta_v2
from transformers.models.mpnet import modeling_mpnet as mpnet

from mirror.modeling.attention import PackedLayout


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

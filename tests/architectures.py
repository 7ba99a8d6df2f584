"""Tiny encoders of many families, for tests that must hold for each of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase


VOCABULARY = 60
LAYERS = 3
HEADS = 4
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 48, "initializer_range": 0.3, "pad_token_id": 0}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}
ROBERTA = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
LOCAL = {"local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}
DEBERTA_V3 = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
DEBERTA_V3 |= {"position_biased_input": False, "norm_rel_ebd": "layer_norm", "share_att_key": True}


def config_of(model_type: str, **settings) -> partial:
    return partial(AutoConfig.for_model, model_type, **SIZES | settings)


# Those whose attention goes through transformers' attention interface, and those that compute it themselves.
INTERFACE = {
    "bert": config_of("bert"),
    "roberta": config_of("roberta", **ROBERTA),
    "xlm_roberta": config_of("xlm-roberta", **ROBERTA),
    "camembert": config_of("camembert", **ROBERTA),
    "distilbert": config_of("distilbert", dim=32, n_layers=LAYERS, n_heads=HEADS, hidden_dim=64),
    "electra": config_of("electra", embedding_size=16),
    "albert": config_of("albert", embedding_size=16),
    "modernbert": config_of("modernbert", **SPECIAL, **LOCAL),
    "eurobert": config_of("eurobert", **SPECIAL, mask_token_id=3, num_key_value_heads=2),
    "nomic_bert": config_of("nomic_bert"),
    "mpnet": config_of("mpnet", **ROBERTA),
}
# Packed everywhere but in their attention.
DISENTANGLED = {
    "deberta": config_of("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "deberta_v2": config_of("deberta-v2"),
    "deberta_v3": config_of("deberta-v2", **DEBERTA_V3),
}
OWN_ATTENTION = {
    "deberta_v2_with_convolution": config_of("deberta-v2", **DEBERTA_V3, conv_kernel_size=3, conv_act="gelu"),
    "rembert": config_of("rembert", input_embedding_size=16, output_embedding_size=16),
}
CONFIGS = INTERFACE | DISENTANGLED | OWN_ATTENTION


def tiny(name: str) -> PreTrainedModel:
    """Return a model with the same weights at every call, in training mode."""
    torch.manual_seed(0)
    return AutoModel.from_config(CONFIGS[name]()).train()


def save_tiny(name: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> str:
    """Save an encoder of the family `name` that fits a tokenizer, with the same weights at every call."""
    config = CONFIGS[name]()
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def random_rows(count: int, shortest: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Return rows of random token ids above the special ones."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(5, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def padded(rows: list[list[int]], pad_token_id: int | None) -> dict[str, torch.Tensor]:
    """Return what a padding collator makes of the rows: `input_ids` and `attention_mask`, (N, T) each."""
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([row + [pad_token_id or 0] * (longest - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
    }

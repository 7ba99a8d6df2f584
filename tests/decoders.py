"""Tiny decoders with random weights, in the shapes of Qwen3-Embedding, EmbeddingGemma and plain language models."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from packaging.version import Version
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tests.conftest import make_tokenizer


SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"intermediate_size": 64, "initializer_range": 0.3, "max_position_embeddings": 80}
SIZES |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
LOCAL = {"head_dim": 8, "sliding_window": 4}
GEMMA3 = LOCAL | {"sliding_window_pattern": 2, "query_pre_attn_scalar": 8}
DECODERS = {
    "qwen3": ("qwen3", {"head_dim": 8}),
    "llama": ("llama", {}),
    "mistral": ("mistral", {"sliding_window": 4}),
    "gemma2": ("gemma2", LOCAL | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 1.5}),
    "gemma3": ("gemma3_text", GEMMA3),
    "embeddinggemma": ("gemma3_text", GEMMA3 | {"use_bidirectional_attention": True, "sliding_window": 8}),
}
# The last transformers for Python 3.10 has an attention of its own in Gemma 2, whose rows are padded there.
if Version(transformers.__version__) < Version("5.21"):
    del DECODERS["gemma2"]
CAUSAL = [name for name in DECODERS if name != "embeddinggemma"]
QWEN_PROMPTS = {"query": "Instruct: find the book\nQuery:", "document": ""}
GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}


def tiny_decoder(name: str, vocabulary: int = 60, **settings) -> PreTrainedModel:
    """Return a model with the same weights at every call."""
    torch.manual_seed(0)
    model_type, own = DECODERS[name]
    config = AutoConfig.for_model(model_type, **SIZES | own | {"vocab_size": vocabulary} | settings)
    return AutoModel.from_config(config).eval()


def make_decoder_tokenizer(name: str, raw: bool = False, padding_side: str = "left") -> PreTrainedTokenizerFast:
    """Return a tokenizer without a mask: Gemma's begins and ends a text, others end it, and those of raw models do neither."""
    backend = make_tokenizer().backend_tokenizer
    gemma = name.startswith(("gemma", "embeddinggemma"))
    around = "[CLS] $A" if raw and gemma else "$A" if raw else "[CLS] $A [SEP]" if gemma else "$A [SEP]"
    ids = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = TemplateProcessing(single=around, pair="$A $B", special_tokens=ids)
    special = {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "[UNK]"} | (
        {} if raw else {"pad_token": "[PAD]"}
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, padding_side=padding_side, model_max_length=64, **special
    )
    if gemma:  # as in the tokenizers of Gemma's text models, which have no embedding for it
        tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    return tokenizer


def save_raw(folder: Path, name: str) -> str:
    """Save a language model with its head, as its authors do, with a tokenizer that has no padding token."""
    torch.manual_seed(0)
    model_type, own = DECODERS[name]
    tokenizer = make_decoder_tokenizer(name, raw=True)
    settings = SIZES | own | {"vocab_size": len(make_tokenizer()), "pad_token_id": None}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_embedder(folder: Path, name: str, padding_side: str = "left", include_prompt: bool = True) -> str:
    """Save a checkpoint of sentence-transformers with the modules and prompts of Qwen3-Embedding or EmbeddingGemma."""
    model, tokenizer = (
        tiny_decoder(name, len(make_tokenizer())),
        make_decoder_tokenizer(name, padding_side=padding_side),
    )
    model.save_pretrained(folder / "backbone")
    tokenizer.save_pretrained(folder / "backbone")
    first = Transformer(str(folder / "backbone"))
    torch.manual_seed(1)
    if name == "embeddinggemma":
        dense = [Dense(32, 64, bias=False, activation_function=torch.nn.Identity()) for _ in range(1)]
        dense += [Dense(64, 32, bias=False, activation_function=torch.nn.Identity())]
        modules, prompts = (
            [first, Pooling(32, "mean", include_prompt=include_prompt), *dense, Normalize()],
            GEMMA_PROMPTS,
        )
    else:
        modules, prompts = [first, Pooling(32, "lasttoken"), Normalize()], QWEN_PROMPTS
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder / "model"))
    return str(folder / "model")

"""Static encoders: one vector for each token, whose mean is the vector of a text. No layers, no attention.

They are `StaticEmbedding` of sentence-transformers and the folders of model2vec. A saved folder is read by both.
"""

from __future__ import annotations

import json
from itertools import accumulate, chain
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput


UNLIMITED = 1_000_000  # tokens: of a text that is not cut


class StaticConfig(PretrainedConfig):
    """Sizes of a static encoder: `vocab_size` V, `hidden_size` D."""

    model_type = "static"


class StaticModel(PreTrainedModel):
    """A table of vectors, (V, D), under the name that model2vec and sentence-transformers read."""

    config_class = StaticConfig

    def __init__(self, config: StaticConfig):
        super().__init__(config)
        self.embeddings = nn.Parameter(torch.zeros(config.vocab_size, config.hidden_size))
        self.dropout = nn.Dropout(0.0)  # so that --dropout_rate has a place
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs) -> BaseModelOutput:
        """Return the vectors of the tokens, (B, T, D) for ids of (B, T)."""
        return BaseModelOutput(self.dropout(nn.functional.embedding(input_ids, self.embeddings)))

    def means(self, ids: list[list[int]]) -> Tensor:
        """Return the mean vector of the tokens of each of B texts, (B, D), without vectors of (B, T, D). Zeros for no tokens."""
        starts = torch.tensor([0, *accumulate(map(len, ids[:-1]))], device=self.device)
        flat = torch.tensor([*chain.from_iterable(ids)], dtype=torch.long, device=self.device)
        return nn.functional.embedding_bag(flat, self.embeddings, starts, mode="mean")


def load_static(name_or_path: str, subfolder: str, dtype: torch.dtype) -> tuple[StaticModel, PreTrainedTokenizerFast]:
    """Load a static encoder and its tokenizer, which adds no special tokens."""
    from sentence_transformers.models import StaticEmbedding

    loaded = StaticEmbedding.load(name_or_path, subfolder=subfolder)
    weights = loaded.embedding.weight.detach()
    model = StaticModel(StaticConfig(vocab_size=len(weights), hidden_size=weights.shape[1]))
    model.embeddings.data = weights.to(dtype, copy=True)
    return model.eval(), _wrap(loaded.tokenizer, name_or_path)


def _wrap(tokenizer: Tokenizer, name_or_path: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of transformers that gives the ids that both libraries give. Its mask would mean nothing."""
    limit = (tokenizer.truncation or {}).get("max_length", UNLIMITED)
    tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    rules = json.loads(tokenizer.to_str())["model"]
    unknown = rules.get("unk_token") or (tokenizer.id_to_token(rules["unk_id"]) if rules.get("unk_id") else None)
    named = {"unk_token": unknown} if unknown in tokenizer.get_vocab() else {}
    padding = "[PAD]" if tokenizer.token_to_id("[PAD]") is not None else tokenizer.id_to_token(0)  # any: it is masked
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=padding, model_max_length=limit, name_or_path=name_or_path, **named
    )


def save_static(folder: Path, model: StaticModel, tokenizer: PreTrainedTokenizerFast, normalize: bool) -> None:
    """Write weights, tokenizer and model2vec's configuration. `normalize`: the vectors have unit length."""
    save_file({"embeddings": model.embeddings.detach().float().cpu().contiguous()}, folder / "model.safetensors")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())  # transformers changes its own at each call
    backend.no_padding()
    backend.no_truncation()
    if tokenizer.model_max_length < UNLIMITED:
        backend.enable_truncation(tokenizer.model_max_length)
    backend.save(str(folder / "tokenizer.json"))
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": normalize}
    config |= {"hidden_dim": model.config.hidden_size, "embedding_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

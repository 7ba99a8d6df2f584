"""Conditional masked language modelling: a masked LM that predicts one segment given the vector of its neighbour.

Yang, Yang, Cer, Law & Darve (2021), "Universal Sentence Representation Learning with Conditional Masked Language Model".
Knows tensors; knows nothing of text, files or optimisers. docs/cmlm.md has the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel

from mirror.common.errors import InputError
from mirror.modeling.pooling import pair_features, pool


NLI_LABELS = ("entailment", "neutral", "contradiction")
IGNORED = -100  # the label of a token that is not to be predicted


class CMLMModelConfig(PreTrainedConfig):
    """The encoder's own configuration as a dict, and what CMLM adds to it."""

    model_type = "cmlm"

    def __init__(
        self,
        backbone: dict | None = None,
        num_projections: int = 15,
        skip_connection: bool = False,
        pooling: str = "mean",
        **kwargs,
    ):
        self.backbone = backbone or {}
        self.num_projections = num_projections
        self.skip_connection = skip_connection
        self.pooling = pooling
        super().__init__(**kwargs)


class Projection(nn.Module):
    """P: a sentence vector becomes N vectors, of which the first is the vector itself (N counts it).

    The other N - 1 come out of one three-layer perceptron. Its hidden layers are as wide as the vector, with ReLU between.
    """

    def __init__(self, width: int, num_projections: int):
        super().__init__()
        self.width, self.num_projections = width, num_projections
        learned = num_projections - 1
        self.mlp = three_layer_perceptron(width, learned * width) if learned > 0 else None

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, D) to (B, N, D)."""
        identity = vectors[:, None, :]  # (B, 1, D)
        if self.mlp is None:
            return identity[:, : self.num_projections]
        learned = self.mlp(vectors).unflatten(1, (-1, self.width))  # (B, N - 1, D)
        return torch.cat([identity, learned.to(vectors.dtype)], dim=1)


def three_layer_perceptron(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))


class CMLMModel(PreTrainedModel):
    """Sentence s1 to a vector, the vector to N prefix vectors, the prefix before the masked s2, one encoder for both.

    The prefix takes the place of word embeddings, so the encoder adds position, token type and layer norm as to any token:
    prefix vector i has position i, s2 starts at position N (RoBERTa counts from its padding index, as always), the token
    type is always 0, and the attention mask of the prefix is 1. s2 sees nothing else of s1.

    `mlm` is the library's masked LM with its own head; `encoder` is the model inside it, which is saved in the end.
    With `num_projections` 0 there is no prefix and s1 is not used: a plain masked LM, as a control.
    """

    config_class = CMLMModelConfig
    base_model_prefix = "cmlm"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: CMLMModelConfig, mlm: PreTrainedModel | None = None):
        super().__init__(config)
        if mlm is None:
            mlm = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**config.backbone))
        self.mlm = mlm
        width = check_widths(mlm)
        self.projection = Projection(width, config.num_projections)
        self.skip = nn.Linear(config.num_projections * width, width) if config.skip_connection else None
        self.nli = nn.Linear(4 * width, len(NLI_LABELS))
        self.post_init()

    @property
    def encoder(self) -> PreTrainedModel:
        return self.mlm.base_model

    def get_input_embeddings(self) -> nn.Module:
        return self.mlm.get_input_embeddings()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: new parts keep torch's initialization, and the masked LM is initialized or loaded already."""

    def forward(
        self,
        cmlm: dict[str, dict[str, Tensor] | Tensor] | None = None,
        pairs: dict[str, Tensor] | None = None,
        nli: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Everything that the losses of the stage need, in one call: wrappers such as DDP expect one forward per step.

        Args:
            cmlm: `first` and `second`, each `input_ids` and `attention_mask` of (B, T), and `labels` of s2, (B, T).
            pairs: `input_ids` and `attention_mask` of 2B rows, sources before targets: translations, or neighbours.
            nli: the same of 2B rows, premises before hypotheses.

        Returns:
            `token_loss`: sum over the masked tokens, and their number `num_masked`; `pair_vectors`: (2B, D);
            `nli_logits`: (B, 3).
        """
        outputs = {}
        if cmlm is not None:
            outputs["token_loss"], outputs["num_masked"] = self.conditional_loss(**cmlm)
        if pairs is not None:
            outputs["pair_vectors"] = self.sentence_vectors(pairs)
        if nli is not None:
            outputs["nli_logits"] = self.nli(pair_features(*self.sentence_vectors(nli).chunk(2)))
        return outputs

    def conditional_loss(self, first: dict[str, Tensor], second: dict[str, Tensor], labels: Tensor) -> tuple:
        """Cross-entropy summed over the masked tokens of s2 given s1, in float32, and their number."""
        masked = labels != IGNORED  # (B, T)
        logits = self.predict(self.prefix(first), second, masked)  # (M, V)
        return F.cross_entropy(logits.float(), labels[masked], reduction="sum"), masked.sum()

    def prefix(self, first: dict[str, Tensor]) -> Tensor:
        """P(v) of each s1, (B, N, D)."""
        if self.config.num_projections == 0:
            rows, width = len(first["input_ids"]), self.projection.width
            return torch.empty(rows, 0, width, device=first["input_ids"].device)
        return self.projection(self.sentence_vectors(first))

    def sentence_vectors(self, texts: dict[str, Tensor]) -> Tensor:
        """v of each text, (B, D), by the pooling of the configuration."""
        output = self.encoder(input_ids=texts["input_ids"], attention_mask=texts["attention_mask"])
        return pool(output, texts["attention_mask"], self.config.pooling)

    def predict(self, prefix: Tensor, second: dict[str, Tensor], where: Tensor) -> Tensor:
        """Logits of the tokens of s2 at the M positions where `where` (B, T) is true, in order: (M, V).

        The head is applied at those positions only, which saves vocabulary-sized products for the rest of s2.
        """
        words = self.get_input_embeddings()(second["input_ids"])  # (B, T, D)
        mask = second["attention_mask"]  # (B, T)
        count = prefix.shape[1]
        embeddings = torch.cat([prefix.to(words.dtype), words], dim=1)  # (B, N + T, D)
        attention_mask = torch.cat([mask.new_ones(len(mask), count), mask], dim=1)  # (B, N + T)

        def wanted(hidden: Tensor) -> Tensor:
            own = hidden[:, count:]  # (B, T, D)
            if self.skip is not None:
                own = own + self.skip(prefix.flatten(1))[:, None].to(own.dtype)
            return own[where][None]  # (1, M, D)

        with transform_last_hidden_state(wanted, self.encoder):
            return self.mlm(inputs_embeds=embeddings, attention_mask=attention_mask).logits[0]


@contextmanager
def transform_last_hidden_state(function: Callable[[Tensor], Tensor], encoder: PreTrainedModel) -> Iterator[None]:
    """Context in which `function` is applied to the last hidden state of `encoder`, before any architecture's MLM head."""

    def change(module, arguments, output):
        output.last_hidden_state = function(output.last_hidden_state)
        return output

    handle = encoder.register_forward_hook(change)
    try:
        yield
    finally:
        handle.remove()


def check_widths(mlm: PreTrainedModel) -> int:
    """The width D of sentence vectors, which must equal that of word embeddings, as P includes the identity.

    Raises:
        InputError: they differ, as in ALBERT and the smaller ELECTRA models.
    """
    words, width = mlm.get_input_embeddings().weight.shape[1], mlm.config.hidden_size
    if words != width:
        raise InputError(
            f"{mlm.config.model_type}: word embeddings of width {words} and hidden states of width {width}; CMLM puts "
            "sentence vectors among word embeddings, so give a model in which the two are equal"
        )
    return width

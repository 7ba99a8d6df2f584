"""Conditional masked language model: a masked LM that predicts one segment given the vector of its neighbor, its losses and checkpoints.

Yang, Yang, Cer, Law & Darve (2021), "Universal Sentence Representation Learning with Conditional Masked Language Model".
docs/cmlm.md has the picture. A checkpoint is an encoder that every library loads, and in `cmlm/` the parts that only
training needs. A later stage, or a resumed run, restores both bit for bit.
"""

from __future__ import annotations

import logging
from dataclasses import field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from mirror.cmlm.options import POOLINGS
from mirror.common import trust
from mirror.common.errors import InputError
from mirror.common.files import follow_umask
from mirror.modeling.backbone import keep_pooler, load_tokenizer
from mirror.modeling.pooling import pair_features, pool
from mirror.modeling.read_checkpoint import check_size, checkpoint_settings, load_config, loading, quiet
from mirror.modeling.save_checkpoint import append_layers, dense, save_encoder


NLI_LABELS = ("entailment", "neutral", "contradiction")
IGNORED = -100  # the label of a token that is not to be predicted
logger = logging.getLogger(__name__)

PARTS_FOLDER = "cmlm"
PARTS_FILE = "model.safetensors"


class CMLMModelConfig(PreTrainedConfig):
    """The encoder's own configuration as a dict, and what CMLM adds to it."""

    model_type = "cmlm"

    backbone: dict = field(default_factory=dict)  # transformers makes a dataclass of every configuration
    num_projections: int = 15
    skip_connection: bool = False
    pooling: str = "mean"


class Projection(nn.Module):
    """The projection P of section 2: a sentence vector becomes N vectors, of which the first is the vector itself.

    The other N - 1 are the output of one three-layer perceptron. Its hidden layers are as wide as the vector, with ReLU
    between; the paper prints neither.
    """

    def __init__(self, width: int, num_projections: int):
        super().__init__()
        self.width, self.num_projections, self.mlp = width, num_projections, None
        if num_projections > 1:
            hidden = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
            self.mlp = nn.Sequential(*hidden, nn.Linear(width, (num_projections - 1) * width))

    def forward(self, vectors: Tensor) -> Tensor:
        """Project (B, D) to (B, N, D)."""
        identity = vectors[:, None, :]  # (B, 1, D)
        if self.mlp is None:
            return identity[:, : self.num_projections]
        learned = self.mlp(vectors).unflatten(1, (-1, self.width))  # (B, N - 1, D)
        return torch.cat([identity, learned.to(vectors.dtype)], dim=1)


class CMLMModel(PreTrainedModel):
    """Encode s1 to a vector, project it to N prefix vectors, and predict the masked s2 after the prefix, with one encoder.

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
        self.mlm = mlm or AutoModelForMaskedLM.from_config(AutoConfig.for_model(**config.backbone))
        width, words = self.mlm.config.hidden_size, self.get_input_embeddings().weight.shape[1]
        if words != width:  # as in ALBERT and the smaller ELECTRA models
            raise InputError(
                f"{self.mlm.config.model_type}: word embeddings of width {words} and hidden states of width {width}; CMLM puts "
                "sentence vectors among word embeddings, so give a model in which the two are equal"
            )
        self.projection = Projection(width, config.num_projections)
        self.skip = nn.Linear(config.num_projections * width, width) if config.skip_connection else None
        self.nli = nn.Linear(4 * width, len(NLI_LABELS))  # section 4.3
        self.post_init()

    @property
    def encoder(self) -> PreTrainedModel:
        return self.mlm.base_model

    def get_input_embeddings(self) -> nn.Module:
        return self.mlm.get_input_embeddings()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: new parts keep torch's initialization, and the masked LM is initialized or loaded already."""

    def forward(
        self,
        cmlm: dict[str, dict[str, Tensor] | Tensor] | None = None,
        pairs: dict[str, Tensor] | None = None,
        nli: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Compute everything that the losses of the stage need in one call: DDP expects one forward call per step.

        The arguments are those of `StageCollator`. Returns `token_loss`, the sum over the masked tokens, and their number
        `num_masked`; `pair_vectors`: (2B, D); `nli_logits`: (B, 3).
        """
        outputs = {}
        if cmlm is not None:
            outputs["token_loss"], outputs["num_masked"] = self.conditional_loss(**cmlm)
        if pairs is not None:
            outputs["pair_vectors"] = self.sentence_vectors(pairs)
        if nli is not None:
            outputs["nli_logits"] = self.nli(pair_features(*self.sentence_vectors(nli).chunk(2)))
        return outputs

    def conditional_loss(
        self, first: dict[str, Tensor], second: dict[str, Tensor], labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over the masked tokens of s2 given s1, in float32, and their number."""
        masked = labels != IGNORED  # (B, T)
        logits = self.predict(self.prefix(first), second, masked)  # (M, V)
        return F.cross_entropy(logits.float(), labels[masked], reduction="sum"), masked.sum()

    def prefix(self, first: dict[str, Tensor]) -> Tensor:
        """Return P(v) of each s1, (B, N, D)."""
        if self.config.num_projections == 0:
            return first["input_ids"].new_empty(len(first["input_ids"]), 0, self.projection.width, dtype=torch.float32)
        return self.projection(self.sentence_vectors(first))

    def sentence_vectors(self, texts: dict[str, Tensor]) -> Tensor:
        """Return v of each text, (B, D), by the pooling of the configuration."""
        output = self.encoder(input_ids=texts["input_ids"], attention_mask=texts["attention_mask"])
        return pool(output, texts["attention_mask"], self.config.pooling)

    def predict(self, prefix: Tensor, second: dict[str, Tensor], where: Tensor) -> Tensor:
        """Return the logits of the M tokens of s2 where `where` (B, T) is true, in order: (M, V)."""
        words, mask = self.get_input_embeddings()(second["input_ids"]), second["attention_mask"]  # (B, T, D), (B, T)
        count = prefix.shape[1]
        embeddings = torch.cat([prefix.to(words.dtype), words], dim=1)  # (B, N + T, D)
        attention_mask = torch.cat([mask.new_ones(len(mask), count), mask], dim=1)  # (B, N + T)

        def select(module, arguments, output):
            own = output.last_hidden_state[:, count:]  # (B, T, D)
            if self.skip is not None:
                own = own + self.skip(prefix.flatten(1))[:, None].to(own.dtype)
            output.last_hidden_state = own[where][None]  # (1, M, D)
            return output

        # A hook between encoder and head works for the head of any architecture. The head then sees the wanted positions
        # only, which saves vocabulary-sized products for the rest of s2.
        handle = self.encoder.register_forward_hook(select)
        try:
            return self.mlm(inputs_embeds=embeddings, attention_mask=attention_mask).logits[0]
        finally:
            handle.remove()


def additive_margin_softmax(
    sources: Tensor,
    targets: Tensor,
    margin: float,
    scale: float = 1.0,
    normalize: bool = False,
    all_sources: Tensor | None = None,
    all_targets: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    """Return the retrieval loss: each text must retrieve its partner among all partners, by a margin.

    The score of two texts is `scale` times the inner product of their vectors, from which `margin` is subtracted for the
    true pair; both directions are added (Yang et al. 2019; CMLM, section 4.2, Eq. 1). With `normalize` they are cosines, as
    in LaBSE (Feng et al. 2020), and need a scale, because a softmax over values in [-1, 1] is nearly uniform.

    Args:
        sources, targets: (B, D), this process's pairs; row i of one belongs to row i of the other.
        all_sources, all_targets: (N, D), the rows of all processes, gathered with gradient; by default this process's.
        offset: where this process's rows start in them.

    Returns a float32 scalar: the mean over the B pairs of both directions' sum.
    """
    with torch.autocast(sources.device.type, enabled=False):
        sources, targets = sources.float(), targets.float()
        all_sources = sources if all_sources is None else all_sources.float()
        all_targets = targets if all_targets is None else all_targets.float()
        own = torch.arange(offset, offset + len(sources), device=sources.device)  # (B,)
        margins = margin * F.one_hot(own, len(all_sources))  # (B, N)
        if normalize:
            sources, targets = F.normalize(sources, dim=1), F.normalize(targets, dim=1)
            all_sources, all_targets = F.normalize(all_sources, dim=1), F.normalize(all_targets, dim=1)
        there = F.cross_entropy(scale * (sources @ all_targets.T - margins), own)
        back = F.cross_entropy(scale * (targets @ all_sources.T - margins), own)
        return there + back


def save_cmlm(
    folder: str | Path,
    model: CMLMModel,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    sentence_vector: str,
    settings: dict | None = None,
) -> None:
    """Save the encoder in `folder`, as run_mirror.py does, and MLM head, projection and classifier in `cmlm/`."""
    folder = Path(folder)
    save_encoder(folder, model.encoder, tokenizer, model.config.pooling, max_seq_length, settings)
    if sentence_vector == "proj":
        append_layers(folder, mean_projection(model.projection))
    parts = folder / PARTS_FOLDER
    parts.mkdir(exist_ok=True)
    model.config.save_pretrained(parts)
    save_file({name: value.detach().cpu().contiguous() for name, value in parts_of(model).items()}, parts / PARTS_FILE)
    follow_umask(parts)


def mean_projection(projection: Projection) -> list[nn.Module]:
    """Return the mean of the N projected vectors ('proj' in Table 7) as three dense layers, exactly.

    The identity, one of the N, passes the two ReLUs as its positive and its negative part.
    """
    if projection.mlp is None:
        return []
    count, width = projection.num_projections, projection.width
    first, second, third = (
        (layer.weight.detach().cpu(), layer.bias.detach().cpu())
        for layer in projection.mlp
        if isinstance(layer, nn.Linear)
    )
    eye, zeros = torch.eye(width), torch.zeros(2 * width)
    blocks = third[0].view(count - 1, width, width).sum(0) / count  # (D, D)
    bias = third[1].view(count - 1, width).sum(0) / count  # (D,)
    return [
        dense(torch.cat([first[0], eye, -eye]), torch.cat([first[1], zeros]), nn.ReLU()),  # (3D, D)
        dense(torch.block_diag(second[0], torch.eye(2 * width)), torch.cat([second[1], zeros]), nn.ReLU()),  # (3D, 3D)
        dense(torch.cat([blocks, eye / count, -eye / count], dim=1), bias, nn.Identity()),  # (D, 3D)
    ]


def parts_of(model: CMLMModel) -> dict[str, Tensor]:
    """Return the parameters outside the encoder by name, without those that the head shares with it."""
    inside = {id(parameter) for parameter in model.encoder.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in inside}


def load_cmlm(
    name_or_path: str,
    num_projections: int = 15,
    skip_connection: bool = False,
    pooling: str | None = None,
    from_scratch: bool = False,
) -> tuple[CMLMModel, PreTrainedTokenizerBase]:
    """Load a model to train, and its tokenizer: any masked LM, or an encoder or earlier stage, by default with its pooling."""
    mlm, tokenizer = load_mlm(name_or_path, from_scratch)
    keep_pooler(mlm.base_model, name_or_path, from_scratch)
    known = {} if from_scratch else checkpoint_settings(name_or_path)
    if lost := [type(each).__name__ for each in known.get("head", ()) if type(each).__name__ != "Normalize"]:
        logger.warning("%s: CMLM trains the vector before its modules %s, which are not saved", name_or_path, lost)
    pooling = pooling or (known["pooling"] if known.get("pooling") in POOLINGS else "mean")
    settings = {"num_projections": num_projections, "skip_connection": skip_connection, "pooling": pooling}
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    model = CMLMModel(CMLMModelConfig(backbone=mlm.config.to_dict(), **settings, **ids), mlm)
    if not from_scratch and trust.model_file(name_or_path, PARTS_FILE, PARTS_FOLDER):
        load_parts(model, name_or_path)
    return model, tokenizer


def load_mlm(name_or_path: str, from_scratch: bool = False) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a masked LM and its tokenizer. A checkpoint without an MLM head gets a new one."""
    config = load_config(name_or_path, masked=True)
    with loading(name_or_path):
        tokenizer = load_tokenizer(name_or_path, config)
        if from_scratch:
            return AutoModelForMaskedLM.from_config(config, dtype=torch.float32, **trust.remote_code()), tokenizer
        trust.check_weights(name_or_path)
        check_size(name_or_path, config)
        options = {"dtype": torch.float32, "output_loading_info": True} | trust.weights()
        with quiet():
            model, report = AutoModelForMaskedLM.from_pretrained(name_or_path, **options)
    inside = {name for name, _ in model.base_model.named_parameters(prefix=model.base_model_prefix)}
    if lost := sorted(inside & set(report["missing_keys"])):
        raise InputError(f"{name_or_path} lacks {len(lost)} weights of the encoder, first {lost[0]}")
    if report["missing_keys"] and not trust.model_file(name_or_path, PARTS_FILE, PARTS_FOLDER):
        logger.info("%s has no MLM head: using a new one", name_or_path)
    return model, tokenizer


@torch.no_grad()
def load_parts(model: CMLMModel, name_or_path: str | Path) -> None:
    """Load MLM head, projection and classifier of a checkpoint, in a folder or on the Hub, into `model`."""
    with loading(f"{name_or_path}/{PARTS_FOLDER}"):
        stored = load_file(trust.model_file(str(name_or_path), PARTS_FILE, PARTS_FOLDER))
    own = parts_of(model)
    shapes, expected = ({name: value.shape for name, value in parts.items()} for parts in (stored, own))
    if differ := sorted(name for name, _ in shapes.items() ^ expected.items()):
        was = CMLMModelConfig.from_pretrained(str(name_or_path), subfolder=PARTS_FOLDER)
        flags = f"--num_projections {was.num_projections}{' --skip_connection' if was.skip_connection else ''}"
        raise InputError(
            f"{name_or_path} was trained with {flags}; give the same, or remove its folder {PARTS_FOLDER} "
            f"to initialize that part again (first difference: {differ[0]})"
        )
    for name, value in stored.items():
        own[name].copy_(value)

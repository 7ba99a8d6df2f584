"""Distillation: a smaller student of an encoder, trained on the vectors that its teacher has for the same texts.

A student has fewer layers, one vector for each token (static), or fewer dimensions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from mirror.common.errors import InputError
from mirror.common.files import text_digest
from mirror.common.vectors import unit_length
from mirror.data.augmentation import crop
from mirror.data.cleaning import Corpus, even_places
from mirror.data.views import special_tokens_around
from mirror.evaluation.encoding import EmbeddingCache, fingerprint, fit_components
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.read_checkpoint import checkpoint_settings
from mirror.modeling.save_checkpoint import dense, save_encoder
from mirror.modeling.static import UNLIMITED, StaticConfig, StaticModel
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


TEMPERATURE = 0.05  # of the softmax over the cosines of a batch
SIDES = ("document", "query")  # roles of a text and of a piece of it
RARE = 1e-3  # share of the corpus at which a token gets half the weight of one that never occurs (Arora et al. 2017)
TOKENS = 512  # encoded at once
FITTED = 20_000  # texts whose vectors give the principal components
PROMPTS = ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name")


def distillation(vectors: Tensor, targets: Tensor, components: Tensor | None = None) -> Tensor:
    """Compute 1 - cosine of each vector and its target, and how differently they rank the other texts of the batch.

    The first part is `EmbedDistillLoss` of sentence-transformers. The second is the Kullback-Leibler divergence of the
    softmax of the cosines with the other texts, which vectors of fewer dimensions can match better than the targets.

    Args:
        vectors: (B, K), of the student.
        targets: (B, D), of unit length.
        components: (K, D), in which vectors of fewer dimensions are compared with their targets.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        vectors = F.normalize(vectors.float())
        near = targets if components is None else targets @ components.T
        itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
        ours, theirs = ((v @ v.T / TEMPERATURE).masked_fill(itself, -1e4).log_softmax(1) for v in (vectors, targets))
        ranking = F.kl_div(ours, theirs, log_target=True, reduction="batchmean")
        return (1 - F.cosine_similarity(vectors, near)).mean() + ranking


def cached(teacher: Encoder, role: str) -> EmbeddingCache:
    """Return what encodes texts as a role, "document" or "query", and keeps the vectors for the next student.

    A teacher without prompts for roles encodes them with its default prompt.
    """
    side = teacher.for_role(role) if any(teacher.role_prompts.values()) else teacher
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "mirror-teacher" / fingerprint(side)[:16]
    return EmbeddingCache(folder, side.encode)


def piece(text: str) -> str:
    """Return consecutive words of a text, one to all of them, which depend on the text alone."""
    rng = np.random.default_rng(list(text_digest(text)))
    return crop(text, rng.random(), rng)[0]


class DistillationTrainer(MirrorTrainer):
    """Train a student on its teacher's vectors of texts and of pieces of them: long texts say nothing of short queries.

    Args:
        student: folder of the student to start from.
        args: the configuration, without noise and held-out texts. `pair_prompts` are `SIDES` if the teacher has prompts
            for roles.
        texts: N texts.
        teacher: the encoder to learn from, `name` its Hub id or path.
        kind: the student in a word, for the card.
        components: as for `distillation`, (K, D).
    """

    method = "distilled"

    def __init__(
        self,
        student: str,
        args: MirrorConfig,
        texts: Sequence[str],
        teacher: Encoder,
        name: str,
        kind: str,
        components: np.ndarray | None = None,
    ):
        columns = [list(texts), [piece(text) for text in texts]]
        corpus = Corpus(Dataset.from_dict(dict(zip(("text", "text_pair"), columns, strict=True))))
        super().__init__(student, args, corpus, loss=distillation)
        self.base_model, self.components = name, None
        self.settings |= {"model_name_or_path": Path(name).name, "student": kind}
        targets = [unit_length(cached(teacher, role)(column)) for role, column in zip(SIDES, columns, strict=True)]
        self.targets = torch.from_numpy(np.stack(targets))  # (2, N, D)
        if components is not None:
            self.components = torch.from_numpy(components).to(self.args.device)

    def contrast(self, first: Tensor, second: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compare the vectors of B texts and of B pieces of them, (B, K) each, with the teacher's."""
        targets = self.targets[:, rows.cpu()].flatten(0, 1).to(first.device)  # (2B, D)
        loss = self.loss(torch.cat([first, second]), targets, self.components)
        return self.check_finite(loss, "a lower --learning_rate")


def parse_student(text: str) -> tuple[str, int | None]:
    """Return the kind of a student as `--student` names it, and how many layers or dimensions. None: the teacher's."""
    if found := re.fullmatch(r"(layers|static|dimensions):([1-9][0-9]{0,5})", text):
        return found[1], int(found[2])
    if text != "static":
        raise InputError(f"--student {text}: give layers:N, static, static:N or dimensions:N")
    return text, None


def save_student(
    folder: Path, kind: str, number: int | None, name: str, teacher: Encoder, texts: Sequence[str]
) -> np.ndarray | None:
    """Write the student that training starts from.

    Args:
        kind, number: the student, as from `parse_student`.
        name: Hub id or path of the teacher.
        texts: the corpus, for principal components and the frequencies of tokens.

    Returns:
        The principal components that the teacher's vectors, (N, D), are compared in, (K, D). None: all dimensions.

    Raises:
        InputError: the teacher has as few layers or dimensions itself, or cannot have such a student.
    """
    known, components = checkpoint_settings(name), None
    model, tokenizer = load_backbone(name, teacher.pooling)
    settings, head, pooling = {key: known[key] for key in PROMPTS if known.get(key)}, [*teacher.head], teacher.pooling
    settings |= {} if teacher.include_prompt or kind == "static" else {"include_prompt": False}
    if any(teacher.role_prompts.values()):
        settings["prompts"] = known["prompts"] | teacher.role_prompts  # one of them may be empty and not written
    normalize = [module for module in head if type(module).__name__ == "Normalize"][:1]
    if kind == "layers":
        drop_layers(model, number, name)
    elif number:
        if number >= teacher.dimension:
            has = f"the vectors of {name} have {teacher.dimension} dimensions"
            raise InputError(f"--student {kind}:{number}: {has}; give fewer")
        some = [texts[place] for place in even_places(len(texts), FITTED)]
        components = fit_components(cached(teacher, "document")(some), number)
        settings.pop("truncate_dim", None)  # of the teacher, before these components
    length = teacher.max_seq_length
    if kind == "static":
        model, pooling, head = static_student(teacher, components, texts, name), "mean", normalize
        length = tokenizer.model_max_length = UNLIMITED
    elif kind == "dimensions":
        whole = copy.copy(teacher)
        whole.truncate_dim = None
        padded = np.pad(components, ((0, 0), (0, whole.dimension - teacher.dimension)))
        head += [dense(torch.from_numpy(padded), None, nn.Identity()), *normalize]
    with torch.no_grad():
        save_encoder(folder, model, tokenizer, pooling, length, head=head, prompts=settings)
    return components


def drop_layers(model: PreTrainedModel, number: int, name: str) -> None:
    """Keep `number` evenly spread layers of a model, in place, from the first to the last."""
    count = getattr(model.config, "num_hidden_layers", None)
    stacks = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) == count]
    if len(stacks) != 1:
        reason = f"{name} ({model.config.model_type}) has no list of layers of its own"
        raise InputError(f"--student layers:{number}: {reason}; use static or dimensions:N")
    if number >= count:
        raise InputError(f"--student layers:{number}: {name} has {count} layers; give fewer")
    # The first layer of ModernBERT is without the norm that the others have, so it cannot be left out.
    kept = [round(at * (count - 1) / max(1, number - 1)) for at in range(number)]
    for at in sorted({*range(count)} - {*kept}, reverse=True):
        del stacks[0][at]
    model.config.num_hidden_layers = number
    if kinds := getattr(model.config, "layer_types", None):
        model.config.layer_types = [kinds[at] for at in kept]


@torch.inference_mode()
def static_student(teacher: Encoder, components: np.ndarray | None, texts: Sequence[str], name: str) -> StaticModel:
    """Return a table of the teacher's vectors of single tokens, centered, by the recipe of model2vec.

    They are reduced to the components, if there are any, and scaled by a / (a + p), where p is the share of the corpus that
    a token has (model2vec guesses it by Zipf's law). The rows of special tokens are 0.
    """
    tokenizer = teacher.tokenizer
    if not tokenizer.is_fast:
        raise InputError(f"--student static: the tokenizer of {name} has no fast version, which static encoders need")
    before, after = special_tokens_around(tokenizer)
    size = getattr(teacher.model.config, "vocab_size", None) or len(tokenizer)
    rows = [[*before, token, *after] for token in range(size)]
    starts = range(0, size, TOKENS)
    vectors = np.concatenate([teacher.forward(rows[i : i + TOKENS]).float().cpu().numpy() for i in starts])  # (V, D)
    vectors -= vectors.mean(axis=0)
    if components is not None:
        vectors = vectors @ components.T
    counts = np.zeros(size)
    for start in range(0, len(texts), 1000):
        ids = tokenizer(list(texts[start : start + 1000]), add_special_tokens=False, verbose=False)["input_ids"]
        np.add.at(counts, [token for row in ids for token in row], 1)
    vectors *= (RARE / (RARE + counts / max(1, counts.sum())))[:, None]
    vectors[[token for token in tokenizer.all_special_ids if token < size]] = 0
    model = StaticModel(StaticConfig(vocab_size=size, hidden_size=vectors.shape[1]))
    model.embeddings.data = torch.from_numpy(vectors.astype(np.float32))
    return model

"""Distillation: an encoder is trained on the vectors that another one, its teacher, has for the same texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor

from mirror.common.vectors import unit_length
from mirror.data.augmentation import crop
from mirror.data.cleaning import Corpus
from mirror.modeling.embedding_cache import EmbeddingCache, fingerprint
from mirror.modeling.encoder import Encoder
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


TEMPERATURE = 0.05  # of the softmax over the cosines of a batch
SIDES = ("document", "query")  # roles of a text and of a piece of it


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
        ours, theirs = (
            (each @ each.T / TEMPERATURE).masked_fill(itself, -1e4).log_softmax(1) for each in (vectors, targets)
        )
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
    seed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    rng = np.random.default_rng(list(seed))
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

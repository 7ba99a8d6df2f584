"""Contrastive losses: pure functions on embeddings. They know nothing of models, tokens or processes.

All normalize the vectors, compute in float32 (in float64 if that comes in), and return a scalar: the mean over the anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mirror.training.choices import InfoNCE


def info_nce(
    first: Tensor,
    second: Tensor,
    temperature: float | Tensor,
    form: InfoNCE = "nt_xent",
    all_first: Tensor | None = None,
    all_second: Tensor | None = None,
    offset: int = 0,
    negatives: Tensor | None = None,
    false_negative_cosine: float | None = None,
    hardness: float | None = None,
) -> Tensor:
    """InfoNCE in one of three named forms.

    - `nt_xent` (the released code; SimCLR): every one of the 2B views is an anchor, its positive is the other view of the same text,
      and the denominator runs over all other views, the positive included.
    - `decoupled` (Eq. (1) of the paper as printed): the same anchors, but the denominator runs over the negatives only.
    - `one_way` (SimCSE): the first views are the anchors and the second views the candidates.

    Args:
        first, second: (B, D), the two views of this process's rows; row i of one is the positive of row i of the other.
        temperature: tau > 0; the logits are cosines divided by it.
        all_first, all_second: (N, D), the views of all processes, gathered with gradient; by default this process's.
        offset: where this process's rows start in them.
        negatives: (M, D), further negatives of every anchor: a queue (ESimCSE, section 3.2), noise (DCLR).
        false_negative_cosine: negatives whose cosine with the anchor is above it are left out (DCLR's weights, with the encoder
            that is trained as its own guide).
        hardness: a negative's logit gets its cosine times this, as a constant (Lan et al. 2025, Eq. 5; in sentence-transformers
            `hardness_strength`, in the mode `all_negatives`).

    Returns:
        Scalar float32 (float64 of float64 vectors). `decoupled` can be negative.
    """
    with torch.autocast(first.device.type, enabled=False):
        first, second = _unit(first), _unit(second)
        all_first = first if all_first is None else _unit(all_first)
        all_second = second if all_second is None else _unit(all_second)
        rows = torch.arange(
            offset, offset + len(first), device=first.device
        )  # (B,) positions of the own rows among the N
        if form == "one_way":
            anchors, candidates, positive = first, [all_second], rows
        else:
            anchors, candidates = torch.cat([first, second]), [all_first, all_second]
            positive = torch.cat([rows + len(all_first), rows])  # (A,)
        candidates += [] if negatives is None else [_unit(negatives)]
        cosines = anchors @ torch.cat(candidates).T  # (A, C): B or 2B anchors, N or 2N candidates and M negatives
        logits = cosines / temperature
        if hardness is not None:
            logits = logits + (hardness * cosines.detach()).scatter(1, positive[:, None], 0.0)
        if false_negative_cosine is not None:
            is_false = (cosines > false_negative_cosine).scatter(1, positive[:, None], False)
            logits = logits.masked_fill(is_false, float("-inf"))
        if form == "one_way":
            return F.cross_entropy(logits, positive)

        own = torch.cat([rows, rows + len(all_first)])  # (2B,)
        logits = logits.scatter(1, own[:, None], float("-inf"))
        if form == "nt_xent":
            return F.cross_entropy(logits, positive)
        positives = logits.gather(1, positive[:, None]).squeeze(1)  # (2B,)
        without_positive = logits.scatter(1, positive[:, None], float("-inf"))
        return (without_positive.logsumexp(dim=1) - positives).mean()


def at_every_dimension(loss: Callable[..., Tensor], dims: Sequence[int], **vectors: Tensor) -> Tensor:
    """The sum of `loss` on whole vectors and on their first d coordinates, for each d (Matryoshka, Kusupati et al. 2022, Eq. 1,
    with weights 1).

    Args:
        loss: a function of the named `vectors` that normalizes them itself.
        vectors: (any, D) each.
    """
    return sum((loss(**{name: each[:, :d] for name, each in vectors.items()}) for d in dims), loss(**vectors))


def multi_similarity(
    first: Tensor,
    second: Tensor,
    all_first: Tensor | None = None,
    all_second: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    """Multi-similarity loss on hard triplets, as in SapBERT (Liu et al. 2021; Mirror-BERT, footnote 2), from the library.

    Only the triplets count in which the positive is not closer than the negative by the margin; an anchor without any
    counts as 0. All numbers are those of SapBERT's released code. The miner compares all triplets of the 2N views at
    once, in some (2N)^3 bytes, while that is under 2^31, and otherwise one anchor at a time, slowly.

    Args:
        first, second, all_first, all_second, offset: as in `info_nce`.
    """
    from pytorch_metric_learning.losses import (
        MultiSimilarityLoss,  # a second of imports that the other losses do not need
    )
    from pytorch_metric_learning.miners import TripletMarginMiner

    with torch.autocast(first.device.type, enabled=False):
        all_first = first if all_first is None else all_first
        all_second = second if all_second is None else all_second
        anchors = torch.cat([first, second]).float()  # (2B, D)
        candidates = torch.cat([all_first, all_second]).float()  # (2N, D)
        total = len(all_first)
        labels = torch.arange(total, device=first.device).repeat(2)  # (2N,)
        rows = torch.arange(offset, offset + len(first), device=first.device)
        own = torch.cat([rows, rows + total])  # (2B,) positions of the anchors among the candidates

        # Mined among all candidates, where the library knows that a view is not its own positive.
        anchor, positive, negative = TripletMarginMiner(margin=0.2, type_of_triplets="all")(candidates, labels)
        place = torch.full_like(labels, -1).scatter(0, own, torch.arange(len(own), device=first.device))
        mine = place[anchor] >= 0
        triplets = (place[anchor[mine]], positive[mine], negative[mine])
        loss = MultiSimilarityLoss(alpha=1, beta=60, base=0.5)
        value = loss(anchors, indices_tuple=triplets, ref_emb=candidates)
        # Without a triplet the library's loss does not depend on the candidates, and this process would skip the backward
        # pass of their gathering, in which the others wait for it.
        return value + 0.0 * candidates.sum()


def share_above(vectors: Tensor, cosine: float) -> Tensor:
    """Share of the pairs of different rows of (B, D) vectors whose cosine is above a number: a scalar."""
    with torch.autocast(vectors.device.type, enabled=False):
        unit, count = _unit(vectors), len(vectors)
        above = (unit @ unit.T > cosine).fill_diagonal_(False)
        return above.sum() / (count * (count - 1))


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors if vectors.dtype == torch.float64 else vectors.float(), dim=1)

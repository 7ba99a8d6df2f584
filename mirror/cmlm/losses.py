"""The losses of the multilingual stages: pure functions on vectors, in float32. They know nothing of models or processes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def additive_margin_softmax(
    sources: Tensor,
    targets: Tensor,
    margin: float,
    all_sources: Tensor | None = None,
    all_targets: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    """Bitext retrieval: each text must retrieve its translation among all translations, by a margin.

    CMLM, Eq. (1): the score of two texts is the inner product of their vectors, and `margin` is subtracted
    from the score of the true pair. Both directions are added, as in the origin of the loss (Yang et al. 2019, "Improving
    Multilingual Sentence Embedding using Bi-directional Dual Encoder with Additive Margin Softmax").

    Args:
        sources, targets: (B, D), this process's pairs; row i of one translates row i of the other.
        margin: of the inner product; the paper uses 0.3.
        all_sources, all_targets: (N, D), the rows of all processes, gathered with gradient; by default this process's.
        offset: where this process's rows start in them.

    Returns:
        Scalar: the mean over the B pairs of both directions' sum.
    """
    with torch.autocast(sources.device.type, enabled=False):
        sources, targets = sources.float(), targets.float()
        all_sources = sources if all_sources is None else all_sources.float()
        all_targets = targets if all_targets is None else all_targets.float()
        own = torch.arange(offset, offset + len(sources), device=sources.device)  # (B,)
        margins = margin * F.one_hot(own, len(all_sources))  # (B, N)
        there = F.cross_entropy(sources @ all_targets.T - margins, own)
        back = F.cross_entropy(targets @ all_sources.T - margins, own)
        return there + back

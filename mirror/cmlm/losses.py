"""The loss of the stages that compare texts: a pure function of vectors, in float32; knows no models or processes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """Retrieval: each text must retrieve its partner among all partners, by a margin.

    The score of two texts is `scale` times the inner product of their vectors, from which `margin` is subtracted for the
    true pair. Both directions are added (Yang et al. 2019, "Improving Multilingual Sentence Embedding using Bi-directional
    Dual Encoder with Additive Margin Softmax"; CMLM, section 4.2). The defaults are CMLM's Eq. (1) as printed: inner
    products. With `normalize` they are cosines, as in LaBSE (Feng et al. 2020), and need a scale, because a softmax over
    values in [-1, 1] is nearly uniform.

    Args:
        sources, targets: (B, D), this process's pairs; row i of one belongs to row i of the other.
        margin: subtracted before scaling; 0.3 in CMLM, section 4.4.
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
        if normalize:
            sources, targets, all_sources, all_targets = (
                F.normalize(vectors, dim=1) for vectors in (sources, targets, all_sources, all_targets)
            )
        there = F.cross_entropy(scale * (sources @ all_targets.T - margins), own)
        back = F.cross_entropy(scale * (targets @ all_sources.T - margins), own)
        return there + back

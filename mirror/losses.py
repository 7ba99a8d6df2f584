"""Contrastive losses: pure functions on embeddings. They know nothing of models, tokens or processes.

All compare by cosine, compute in float32 whatever comes in, and return a scalar: the mean over the anchors.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor


Loss = Literal["nt_xent", "decoupled", "one_way"]
LOSSES: tuple[str, ...] = get_args(Loss)


def info_nce(
    first: Tensor,
    second: Tensor,
    temperature: float | Tensor,
    form: Loss = "nt_xent",
    all_first: Tensor | None = None,
    all_second: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    """InfoNCE in one of three named forms.

    - `nt_xent` (the released code; SimCLR): every one of the 2B views is an anchor, its twin is the target, and the
      denominator runs over all other views, the twin included.
    - `decoupled` (Eq. (1) of the paper as printed): the same anchors, but the denominator runs over the negatives only.
    - `one_way` (SimCSE): the first views are the anchors and the second views the candidates.

    Args:
        first, second: (B, D), the two views of this process's rows; row i of one is the twin of row i of the other.
        temperature: tau > 0; the logits are cosines divided by it.
        all_first, all_second: (N, D), the views of all processes, gathered with gradient; by default this process's.
        offset: where this process's rows start in them.

    Returns:
        Scalar float32. `decoupled` can be negative.
    """
    with torch.autocast(first.device.type, enabled=False):
        first, second = _unit(first), _unit(second)
        all_first = first if all_first is None else _unit(all_first)
        all_second = second if all_second is None else _unit(all_second)
        rows = torch.arange(offset, offset + len(first), device=first.device)  # (B,) own places among the N
        if form == "one_way":
            return F.cross_entropy(first @ all_second.T / temperature, rows)

        total = len(all_first)
        anchors = torch.cat([first, second])  # (2B, D)
        logits = anchors @ torch.cat([all_first, all_second]).T / temperature  # (2B, 2N)
        own = torch.cat([rows, rows + total])  # (2B,)
        twin = torch.cat([rows + total, rows])  # (2B,)
        logits = logits.scatter(1, own[:, None], float("-inf"))
        if form == "nt_xent":
            return F.cross_entropy(logits, twin)
        positives = logits.gather(1, twin[:, None]).squeeze(1)  # (2B,)
        negatives = logits.scatter(1, twin[:, None], float("-inf"))
        return (negatives.logsumexp(dim=1) - positives).mean()


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared distance of twins on the unit sphere, 0 to 4 (Wang & Isola 2020, alpha = 2); lower is closer."""
    return (_unit(first) - _unit(second)).square().sum(dim=1).mean()


def uniformity(views: Tensor) -> Tensor:
    """Log of the mean Gaussian potential of all pairs (Wang & Isola 2020, t = 2); 0 is collapsed, lower is more even."""
    distances = torch.pdist(_unit(views)).square()  # (N (N - 1) / 2,)
    return distances.mul(-2).exp().mean().log()


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.float(), dim=1)

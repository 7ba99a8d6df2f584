"""Alignment and uniformity of embeddings (Wang & Isola 2020): the only definition, for training and scoring."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared distance of positive pairs on the unit sphere, 0 to 4 (alpha = 2); lower is closer.

    Args:
        first, second: (N, D), row n of one with row n of the other.

    Returns:
        Scalar, float32 or, for float64 vectors, float64.
    """
    return (_unit(first) - _unit(second)).square().sum(dim=1).mean()


def uniformity(vectors: Tensor, block_rows: int = 1024) -> Tensor:
    """Log of the mean of exp(-2 |x - y|^2) over all pairs of (N, D) on the unit sphere (t = 2).

    0 if all vectors point the same way; lower is more even, about -4 for an even distribution in many dimensions.

    Args:
        block_rows: rows that are compared with all N at once.
    """
    unit = _unit(vectors)
    with torch.autocast(vectors.device.type, enabled=False):
        # |x - y|^2 is 2 - 2 cos; a vector with itself adds exp(0) = 1, which is subtracted again.
        total = sum((4 * (block @ unit.T) - 4).exp().sum() for block in unit.split(block_rows))
    return ((total - len(unit)) / (len(unit) * (len(unit) - 1))).log()


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=1)

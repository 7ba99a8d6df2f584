"""Names that a user can choose for a model. Imports no torch, so that command lines can check them at once."""

from __future__ import annotations

from typing import Literal, get_args


Pooling = Literal["cls", "mean", "mean_padded", "first_last_mean", "max", "pooler"]
POOLING_MODES: tuple[str, ...] = get_args(Pooling)
Packing = Literal["auto", "on", "off"]
Attention = Literal["kernels"]

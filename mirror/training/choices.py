"""Names that a user can choose for a training. Imports no torch, so that command lines can check them at once."""

from __future__ import annotations

from typing import Literal, get_args


InfoNCE = Literal["nt_xent", "decoupled", "one_way"]
LOSSES: tuple[str, ...] = (*get_args(InfoNCE), "multi_similarity")
CRITERION = "alignment_uniformity"  # of `--select_by`; lower is better

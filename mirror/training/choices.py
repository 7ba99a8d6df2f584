"""Names that a user can choose for a training. Imports no torch, so that command lines can check them at once."""

from __future__ import annotations

from typing import Literal, get_args


InfoNCE = Literal["nt_xent", "decoupled", "one_way"]
LOSSES: tuple[str, ...] = (*get_args(InfoNCE), "multi_similarity")
PROJECTION_HEADS = ("mlp",)
BATCHINGS = ("length",)
OWN_TEXT, ALIGNMENT_UNIFORMITY = "own_text", "alignment_uniformity"
KEEP, KEEP_STEP = "keep", "keep_step"  # the score of `--keep`, and the last step that kept enough of it
KEEP_WITHIN = 0.01  # how much may be lost of a score
KEEP_WITHIN_TEXTS = 0.05  # and of the order of the cosines of a file of texts
CRITERIA = {OWN_TEXT: "higher", ALIGNMENT_UNIFORMITY: "lower"}  # of `--select_by`, and what is better

"""How well the label-free criterion orders the checkpoints of a run, against a dev task that has labels."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import spearmanr

from mirror.errors import InputError
from mirror.selection import CRITERION


def agreement(log_history: Sequence[dict], task: str) -> dict:
    """The fields of a result, from what the Trainer logged at each evaluation.

    `main_score` is Spearman's rho over the checkpoints between minus the criterion, which is better when lower, and the
    dev score.

    Raises:
        InputError: fewer than three evaluations, which have no order to speak of.
    """
    points = [row for row in log_history if f"eval_{CRITERION}" in row and f"eval_{task}" in row]
    if len(points) < 3:
        raise InputError(f"{len(points)} checkpoints were scored, at least 3 are needed; train longer")
    criterion, dev = ([row[f"eval_{name}"] for row in points] for name in (CRITERION, task))
    chosen = min(range(len(points)), key=criterion.__getitem__)
    return {
        "main_score": float(spearmanr([-value for value in criterion], dev).statistic),
        "num_examples": len(points),
        "dev_of_chosen": dev[chosen],
        "dev_of_best": max(dev),
        "dev_of_last": dev[-1],
        "steps": [row["step"] for row in points],
        "criterion": criterion,
        "dev": dev,
    }

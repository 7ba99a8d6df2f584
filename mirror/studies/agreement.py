"""Rank correlation over a run's checkpoints between a label-free selection criterion and a labelled dev task."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import spearmanr

from mirror.common.errors import InputError
from mirror.training.choices import CRITERIA


def agreement(log_history: Sequence[dict], criterion: str, task: str) -> dict:
    """Compute the rank correlation from the evaluations that the Trainer logged.

    `main_score` is Spearman's rho over the checkpoints between the criterion, negated if lower is better, and the dev
    score.

    Args:
        log_history: the field of that name in trainer_state.json.
        criterion: one of `CRITERIA`.
        task: name of the dev task.

    Returns:
        The fields of a result, as in results.json.

    Raises:
        InputError: fewer than three checkpoints were evaluated.
    """
    evaluated = [row for row in log_history if row.get("step") != 0]  # the base model is no checkpoint
    points = [row for row in evaluated if f"eval_{criterion}" in row and f"eval_{task}" in row]
    if len(points) < 3:
        raise InputError(
            f"{len(points)} checkpoints were scored, at least 3 are needed; train longer or lower --eval_steps"
        )
    values, dev = ([row[f"eval_{name}"] for row in points] for name in (criterion, task))
    better = [-value for value in values] if CRITERIA[criterion] == "lower" else values
    chosen = max(range(len(points)), key=better.__getitem__)
    return {
        "main_score": float(spearmanr(better, dev).statistic),
        "num_examples": len(points),
        "dev_of_chosen": dev[chosen],
        "dev_of_best": max(dev),
        "dev_of_last": dev[-1],
        "steps": [row["step"] for row in points],
        "criterion": values,
        "dev": dev,
    }

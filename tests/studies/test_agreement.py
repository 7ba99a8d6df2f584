"""Rank correlation of the label-free criteria with a dev score."""

from __future__ import annotations

import pytest

from mirror.common.errors import InputError
from mirror.studies.agreement import agreement


def history(points):
    """One criterion in which lower is better, and one in which higher is."""
    return [
        {"step": n, "eval_alignment_uniformity": criterion, "eval_own_text": -criterion, "eval_dev": dev}
        for n, (criterion, dev) in enumerate(points, start=1)
    ]


@pytest.mark.parametrize("criterion", ["alignment_uniformity", "own_text"])
def test_a_better_criterion_should_mean_a_higher_dev_score(criterion):
    perfect = agreement(history([(-1.0, 0.5), (-2.0, 0.6), (-3.0, 0.9)]), criterion, "dev")
    assert perfect["main_score"] == pytest.approx(1) and perfect["dev_of_chosen"] == 0.9
    # ranks of the criterion, the best highest, 1 3 2, of dev 2 1 3: rho = 1 - 6 * (1 + 4 + 1) / 24 = -0.5
    mixed = agreement([{"loss": 1.0, "step": 3}, *history([(-1.0, 0.6), (-3.0, 0.5), (-2.0, 0.9)])], criterion, "dev")
    assert mixed["main_score"] == pytest.approx(-0.5)
    assert (mixed["dev_of_chosen"], mixed["dev_of_best"], mixed["dev_of_last"]) == (0.5, 0.9, 0.9)


def test_the_base_model_is_no_checkpoint():
    before = [{"step": 0, "eval_own_text": 9.0, "eval_dev": 0.1}]
    points = history([(-1.0, 0.5), (-2.0, 0.6), (-3.0, 0.9)])
    assert agreement(before + points, "own_text", "dev") == agreement(points, "own_text", "dev")


def test_two_checkpoints_are_too_few():
    with pytest.raises(InputError, match="2 checkpoints were scored, at least 3"):
        agreement(history([(-1.0, 0.5), (-2.0, 0.6)]), "own_text", "dev")

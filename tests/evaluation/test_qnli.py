from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import qnli
from tests.evaluation.folder import write_tsv


def test_auc_counts_a_tie_as_half():
    """Positives .9 .5, negatives .5 .1: of four comparisons three are correct and one is a tie, 3.5 / 4."""
    curve = qnli.thinned_roc_curve(np.array([True, True, False, False]), np.array([0.9, 0.5, 0.5, 0.1]))
    assert curve == {"false_positive_rate": [0.0, 0.0, 0.5, 1.0], "true_positive_rate": [0.0, 0.5, 1.0, 1.0]}
    assert np.trapezoid(curve["true_positive_rate"], curve["false_positive_rate"]) == 3.5 / 4


def on_half_a_circle(texts):
    """Encode "a n" as the x axis and "b n" at an angle of n/2000 radian from it: 2.7 at row 5,462."""
    angles = np.array([0.0005 * int(text.split()[1]) * text.startswith("b") for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def write_dev(folder, labels):
    rows = [(f"a {n}", f"b {n}", label) for n, label in enumerate(labels)]
    write_tsv(folder / "qnli/dev.tsv", ("question", "sentence", "label"), rows)


def test_entailed_pairs_are_the_positives(tmp_path):
    """Cosines decrease from row to row; rows 1 to 2,000 are entailed, row 0 is not."""
    write_dev(tmp_path, ["not_entailment"] + ["entailment"] * 2000 + ["not_entailment"] * 3462)
    [task] = qnli.tasks(tmp_path)
    task.check(tmp_path)
    fields = task.score(on_half_a_circle, tmp_path)
    assert fields["main_score"] == pytest.approx(1 - 1 / 3463, abs=1e-9)  # each positive is below the first row only
    assert (fields["num_examples"], fields["positive"]) == (5463, 2000)


def test_the_curve_is_subsampled_from_corner_to_corner():
    generator = np.random.default_rng(0)
    positive, scores = generator.random(5000) < 0.5, generator.random(5000)
    curve = qnli.thinned_roc_curve(positive, scores)
    x, y = curve["false_positive_rate"], curve["true_positive_rate"]
    assert 150 < len(x) <= 200
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert np.all(np.diff(x) >= 0) and np.all(np.diff(y) >= 0)


def test_numbered_labels_are_refused(tmp_path):
    """In GLUE's numbering 0 means entailment, so numeric labels could be misinterpreted."""
    write_dev(tmp_path, ["entailment"] * 5462 + ["0"])
    with pytest.raises(InputError, match=r"dev\.tsv, line 5464: label '0', expected 'entailment'"):
        qnli.tasks(tmp_path)[0].score(on_half_a_circle, tmp_path)

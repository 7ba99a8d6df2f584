from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import qqp
from tests.evaluation.folder import on_a_circle, write_tsv


def test_auc_gap_and_histograms_by_hand():
    fields = qqp.compare(np.array([0.9, 0.5, 0.5, -1.0]), np.array([True, True, False, False]))
    assert fields["main_score"] == 3.5 / 4
    assert fields["mean_cosine"] == {"positive": pytest.approx(0.7), "negative": pytest.approx(-0.25)}
    assert fields["gap"] == pytest.approx(0.95)
    histogram = fields["histogram"]
    assert len(histogram["bin_edges"]) == 81
    assert sum(histogram["positive"]) == sum(histogram["negative"]) == 2
    assert histogram["negative"][0] == 1


def test_a_cosine_slightly_above_one_is_in_the_last_bin():
    fields = qqp.compare(np.array([1 + 1e-7, 0.0]), np.array([True, False]))
    assert fields["histogram"]["positive"][-1] == 1


def test_the_sample_is_fixed_and_without_duplicates():
    rows = qqp.sample_rows(5000)
    assert len(set(rows.tolist())) == 1000
    assert rows.max() > 4000
    np.testing.assert_array_equal(rows, qqp.sample_rows(5000))
    np.testing.assert_array_equal(qqp.sample_rows(7), np.arange(7))


def write_pairs(folder, labels):
    rows = [(f"a {n}", f"b {n}", label) for n, label in enumerate(labels)]
    write_tsv(folder / "qqp/qqp.tsv", ("question1", "question2", "label"), rows)


def test_a_thousand_pairs_are_scored(tmp_path):
    write_pairs(tmp_path, [1] * 600 + [0] * 900)
    [task] = qqp.tasks(tmp_path)
    fields = task.score(on_a_circle, tmp_path)
    assert fields["num_examples"] == 1000
    assert fields["main_score"] == 1


@pytest.mark.parametrize(
    ("labels", "message"),
    [([1, 0, "yes"], r"qqp\.tsv, line 4: label 'yes', expected 0 or 1"), ([1, 1], "every label is 1")],
)
def test_invalid_labels_are_an_error(tmp_path, labels, message):
    write_pairs(tmp_path, labels)
    with pytest.raises(InputError, match=message):
        qqp.tasks(tmp_path)[0].score(on_a_circle, tmp_path)

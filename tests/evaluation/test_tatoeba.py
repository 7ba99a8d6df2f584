from __future__ import annotations

import numpy as np
import pytest

from mirror.evaluation import tatoeba
from tests.evaluation.folder import write_tsv


def encode(texts):
    """Encode "s n" at n degrees from the x axis, "e n" at 10 n degrees: "s 0" retrieves "e 0", "s 9" "e 1"."""
    angles = np.radians([int(text[2:]) * (1 if text[0] == "s" else 10) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_accuracy_in_both_directions_by_hand(tmp_path):
    """Rows 0, 1 and 9. Into English, angles 0, 1, 9 retrieve 0, 0, 10; out of English, 0, 10, 90 retrieve 0, 9, 9."""
    write_tsv(tmp_path / "tatoeba/xxx-eng.tsv", ("source", "english"), [(f"s {n}", f"e {n}") for n in (0, 1, 9)])
    task = next(task for task in tatoeba.tasks(tmp_path) if task.name == "tatoeba_xxx")
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert fields["main_score"] == fields["accuracy_to_english"] == pytest.approx(1 / 3)
    assert fields["accuracy_from_english"] == pytest.approx(2 / 3)
    assert fields["accuracy_mean"] == pytest.approx(1 / 2)
    assert fields["num_examples"] == 3
    assert task.groups == ("tatoeba",)


def test_the_36_languages_of_xtreme_are_a_group(tmp_path):
    *tasks, projection = tatoeba.tasks(tmp_path)
    assert len(tasks) == len(set(tatoeba.XTREME)) == 36
    assert (projection.name, projection.groups) == ("tatoeba_projection", ())
    assert all(task.groups == ("tatoeba", "tatoeba_xtreme") for task in tasks)
    rows = {task.name: task.files[0].rows for task in tasks}
    assert rows["tatoeba_fra"] == (1000,)
    assert rows["tatoeba_jav"] == (205,)


def test_a_collapsed_encoder_is_right_for_one_row_only():
    assert tatoeba.retrieval_accuracy(*[np.ones((50, 4), dtype=np.float32)] * 2) == 1 / 50


def test_languages_that_lie_apart_have_no_neighbour_in_the_other_one():
    generator = np.random.default_rng(0)
    one, other = (
        tatoeba.unit_length(np.append(generator.normal(size=(20, 3)), np.full((20, 1), 9 * sign), 1))
        for sign in (1, -1)
    )
    assert tatoeba.nearest_in_other_language(np.stack([one, other])) == 0
    assert tatoeba.nearest_in_other_language(np.stack([one, one + 1e-4])) == 1


def test_the_points_of_figure_3_are_the_first_two_principal_components(tmp_path):
    for code in tatoeba.PICTURED:
        write_tsv(
            tmp_path / f"tatoeba/{code}-eng.tsv",
            ("source", "english"),
            [(f"s {n % 90}", f"e {n}") for n in range(1000)],
        )
    task = tatoeba.tasks(tmp_path)[-1]
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert set(fields["points"]) == set(fields["mixed"]) == {"fra", "deu", "rus", "spa"}
    points = np.array(fields["points"]["rus"])
    assert points.shape == (2, 300, 2)
    np.testing.assert_allclose(points.reshape(-1, 2).mean(axis=0), 0, atol=1e-3)
    assert points[..., 0].std() >= points[..., 1].std()

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
    assert fields["num_examples"] == 3
    assert task.groups == ("tatoeba",)


def test_the_36_languages_of_xtreme_are_a_group(tmp_path):
    tasks = tatoeba.tasks(tmp_path)
    assert len(tasks) == len(set(tatoeba.XTREME)) == 36
    assert all(task.groups == ("tatoeba", "tatoeba_xtreme") for task in tasks)
    rows = {task.name: task.files[0].rows for task in tasks}
    assert rows["tatoeba_fra"] == (1000,)
    assert rows["tatoeba_jav"] == (205,)


def test_a_collapsed_encoder_is_right_for_one_row_only():
    assert tatoeba.retrieval_accuracy(*[np.ones((50, 4), dtype=np.float32)] * 2) == 1 / 50

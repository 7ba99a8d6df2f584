from __future__ import annotations

import numpy as np
import pytest

from mirror.evaluation import tatoeba
from tests.evaluation.folder import write_tsv


def turned(texts):
    """ "s n" lies n degrees from the x axis, "e n" 10 n degrees: so "s 0" finds "e 0", and "s 9" finds "e 1"."""
    angles = np.radians([int(text[2:]) * (1 if text[0] == "s" else 10) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_accuracy_both_ways_by_hand(tmp_path):
    """Rows 0, 1, 9. Into English: 0 finds 0; 1 degree finds 0; 9 degrees finds 10. Back: 0, 10, 90 find 0, 9, 9."""
    write_tsv(tmp_path / "tatoeba/xxx-eng.tsv", ("source", "english"), [(f"s {n}", f"e {n}") for n in (0, 1, 9)])
    task = next(task for task in tatoeba.tasks(tmp_path) if task.name == "tatoeba_xxx")
    task.check(tmp_path)
    fields = task.score(turned, tmp_path)
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


def test_a_collapsed_encoder_finds_one_row_only():
    assert tatoeba.retrieval_accuracy(*[np.ones((50, 4), dtype=np.float32)] * 2) == 1 / 50

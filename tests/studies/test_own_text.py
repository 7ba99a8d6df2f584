"""The study of the test on held-out texts: its grid, its rank correlations and its figure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mirror.studies.grids_own_text import CORPORA, OWN_TEXT
from mirror.studies.own_text import (
    correlations,
    format_choices,
    format_correlations,
    format_runs,
    own_text_of,
    scatter,
)
from mirror.training.run_record import RunRecord


def record(row: str, words: float, halves: float, uniformity: float, score: float, part: str = "docstrings") -> dict:
    """What `cell.json` holds of a run."""
    own_text = {
        "main_score": (words * halves) ** 0.5,
        "tests": {"words": words, "halves": halves},
        "alignment_uniformity": uniformity,
    }
    return {"row": row, "part": part, "tasks": {"own_text": own_text, "stsb_dev": {"main_score": score}}}


RUNS = [
    record("one, a", 0.1, 0.3, -1.0, 0.1),
    record("one, b", 0.2, 0.4, -2.0, 0.2),
    record("one, c", 0.3, 0.2, -3.0, 0.3),
    record("two, a", 0.4, 0.9, -3.0, 0.9),
    record("two, b", 0.5, 0.8, -2.0, 0.8),
    record("two, c", 0.6, 0.7, -1.0, 0.7),
]


def test_rank_correlations_are_over_all_runs_and_within_a_base():
    found = correlations(RUNS, "stsb_dev")
    assert list(found) == ["own_text", "words", "halves", "alignment_uniformity"]
    assert found["words"] == (pytest.approx(0.771, abs=1e-3), pytest.approx(0.0))
    assert found["halves"][1] == pytest.approx((-0.5 + 1) / 2)
    assert found["alignment_uniformity"][1] == pytest.approx(1.0)  # lower is better


def test_without_enough_runs_or_differences_there_is_no_number():
    assert correlations(RUNS[:2], "stsb_dev")["own_text"] == (None, None)
    equal = [record("one, x", 0.2, 0.2, -1.0, score) for score in (0.1, 0.2, 0.3)]
    assert correlations(equal, "stsb_dev")["own_text"] == (None, None)
    assert correlations(RUNS, "simlex999")["own_text"] == (None, None)


def test_the_table_and_the_figure_have_every_corpus_and_task(tmp_path):
    runs = [*RUNS, *(run | {"part": "words"} for run in RUNS), {"row": "one, before", "part": "", "tasks": {}}]
    table = format_correlations(OWN_TEXT, runs)
    for corpus in ("docstrings", "words"):
        (line,) = (line for line in table.splitlines() if line.startswith(f"| {corpus} | stsb_dev | 6 | "))
        assert line.endswith(" | 0.77 (0.00) | 0.83 (0.25) | 0.48 (1.00) |")
    assert "simlex999" not in table
    scatter(tmp_path / "figure.png", OWN_TEXT, runs)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_run_that_each_criterion_would_choose():
    *_, one, two = format_choices(OWN_TEXT, RUNS).splitlines()
    assert one == "| docstrings | one | stsb_dev | 3 | 0.1000 | 0.2000 | 0.2000 | 0.3000 | 0.3000 |"
    assert two == "| docstrings | two | stsb_dev | 3 | 0.7000 | 0.8000 | 0.7000 | 0.9000 | 0.9000 |"


def test_the_runs_are_listed_by_corpus_after_their_base_model():
    before = {
        "row": "one, before",
        "part": "",
        "tasks": {"stsb_dev": {"main_score": 0.05}, "simlex999": {"main_score": 0}},
    }
    runs = [before, RUNS[0], RUNS[4], RUNS[1] | {"part": "words"}]
    runs[1]["tasks"]["own_text"]["before"] = 0.12
    assert format_runs(OWN_TEXT, runs).splitlines() == [
        "| docstrings | stsb_dev | own_text, before | own_text, after |",
        "| --- | ---: | ---: | ---: |",
        "| one, before | 0.0500 |  |  |",
        "| one, a | 0.1000 | 0.1200 | 0.1732 |",
        "| two, b | 0.8000 |  | 0.6325 |",
        "",
        "| words | stsb_dev | own_text, before | own_text, after |",
        "| --- | ---: | ---: | ---: |",
        "| one, before | 0.0500 |  |  |",
        "| one, b | 0.2000 |  | 0.2828 |",
    ]


def test_the_record_of_a_run_is_read():
    tests = [{"test": "words", "texts": 60, "mrr_before": 0.1, "mrr_after": 0.4},
             {"test": "halves", "texts": 60, "mrr_before": 0.4, "mrr_after": 0.9}]  # fmt: skip
    run = RunRecord("mirror", {}, {}, {}, {}, {}, own_text=tests, held_out_views={"alignment_uniformity": -2.5})
    assert own_text_of(run) == {
        "main_score": pytest.approx(0.6),
        "before": pytest.approx(0.2),
        "num_examples": 60,
        "tests": {"words": 0.4, "halves": 0.9},
        "alignment_uniformity": -2.5,
    }
    assert own_text_of(replace(run, own_text=None)) is None


def test_the_grid_has_runs_that_harm_for_every_base_and_corpus():
    trained = [cell for cell in OWN_TEXT.cells if cell.corpora]
    assert len(trained) >= 40 and len(OWN_TEXT.cells) - len(trained) == 3
    assert set(Counter(cell.part for cell in trained)) == set(CORPORA)
    harmful = {(cell.part, cell.language) for cell in trained if cell.row.endswith("rate x 15")}
    assert harmful == {(cell.part, cell.language) for cell in trained}

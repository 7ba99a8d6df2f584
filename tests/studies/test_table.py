"""The scores of a study's table against values derived by hand."""

from __future__ import annotations

import csv

import pytest

from mirror.studies.cells import Cell, Column, Study
from mirror.studies.table import best_row, collect, format_csv, format_table, published_beside, published_scores


def record(row: str, seed: int | None, part: str = "", **tasks: float) -> dict:
    return {
        "row": row,
        "part": part,
        "seed": seed,
        "seconds_training": 1.5,
        "seconds_scoring": 2.0,
        "tasks": {task: {"main_score": score, "extra": score / 2} for task, score in tasks.items()},
    }


STUDY = Study(
    "A study",
    (Cell("before", ("a", "b")), Cell("after", ("a", "b"), ("corpus.txt",))),
    (Column("a", "a"), Column("b", "b")),
    average=True,
    published={"some-bert": {"before": {"a": 0.25, "b": 0.35}, "after": {"average": 0.5}}},
    baselines={"GloVe": {"a": 0.15}},
)
BESIDE = published_beside(STUDY, lambda cell: "some-bert")
RECORDS = [
    record("before", None, a=0.2, b=0.4),
    record("after", 33, a=0.5, b=0.7),
    record("after", 44, a=0.6, b=0.8),
    record("after", 55, a=0.7, b=1.2),
]


def test_mean_and_sample_standard_deviation_over_seeds():
    scores = collect(STUDY, RECORDS)
    assert scores["after"]["a"].mean == pytest.approx(0.6)
    assert scores["after"]["a"].std == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    # averages per seed: 0.6, 0.7, 0.95; mean 0.75; deviations -.15, -.05, .2; sqrt(.065 / 2)
    assert scores["after"]["average"].mean == pytest.approx(0.75)
    assert scores["after"]["average"].std == pytest.approx(0.0325**0.5)
    assert scores["before"]["average"].std is None


def test_the_table_has_our_scores_published_scores_and_differences():
    lines = format_table(STUDY, collect(STUDY, RECORDS), BESIDE).splitlines()
    assert lines == [
        "| | a | b | average |",
        "| --- | ---: | ---: | ---: |",
        "| before | 0.2000 | 0.4000 | 0.3000 |",
        "| published | 0.2500 | 0.3500 | 0.3000 |",
        "| difference | -0.0500 | +0.0500 | +0.0000 |",
        "| after | 0.6000 ± 0.1000 | 0.9000 ± 0.2646 | 0.7500 ± 0.1803 |",
        "| published |  |  | 0.5000 |",
        "| difference |  |  | +0.2500 |",
        "| GloVe, published | 0.1500 |  |  |",
    ]


def test_of_a_model_without_published_scores_only_ours_are_shown():
    lines = format_table(STUDY, collect(STUDY, RECORDS), published_beside(STUDY, lambda cell: "mine")).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| before", "| after"]


def test_each_cell_is_compared_with_the_numbers_of_its_own_model():
    cells = (Cell("r", ("a",), part="en"), Cell("r", ("b",), part="fr"))
    published = {"english": {"r": {"a": 0.1, "b": 0.2}}, "french": {"r": {"a": 0.3, "b": 0.4}}}
    study = Study("S", cells, STUDY.columns, published=published)
    assert published_beside(study, lambda cell: {"en": "english", "fr": "french"}[cell.part]) == {
        "r": {"a": 0.1, "b": 0.4}
    }


def test_an_average_over_fewer_columns_is_labelled_and_compared_over_the_same_columns():
    partial = [{**r, "tasks": {"a": r["tasks"]["a"]}} for r in RECORDS]
    scores = collect(STUDY, partial)
    lines = format_table(STUDY, scores, BESIDE).splitlines()
    assert lines[0] == "| | a | average of 1 |"
    assert published_scores(STUDY, ["a", "average"], BESIDE["before"]) == {"a": 0.25, "average": 0.25}
    assert published_scores(STUDY, ["a", "average"], BESIDE["after"]) == {}  # .5 is the average over both columns
    assert len(lines) == 7


def test_a_seed_that_lacks_a_column_has_no_average():
    scores = collect(STUDY, [*RECORDS[:3], record("after", 55, a=0.7)])
    assert scores["after"]["a"].values == (0.5, 0.6, 0.7)
    assert scores["after"]["average"].values == pytest.approx((0.6, 0.7))


def test_each_part_of_a_row_fills_its_own_columns():
    columns = (Column("words", "t", part="word"), Column("names", "t", "extra", part="phrase"))
    study = Study("S", (Cell("r", ("t",), part="word"), Cell("r", ("t",), part="phrase")), columns)
    records = [record("r", None, "word", t=0.5), record("r", None, "phrase", t=0.8)]
    scores = collect(study, records)["r"]
    assert (scores["words"].mean, scores["names"].mean) == (0.5, 0.4)
    rows = list(csv.DictReader(format_csv(study, records).splitlines()))
    assert [(row["column"], row["score"], row["seed"], row["seconds"]) for row in rows] == [
        ("words", "0.5", "", "3.5"),
        ("names", "0.4", "", "3.5"),
    ]


def test_the_best_row_is_selected_on_the_dev_column():
    study = Study("S", STUDY.cells, STUDY.columns, choose_on="a")
    assert best_row(study, collect(study, RECORDS)) == "after"
    assert best_row(study, collect(study, [])) is None

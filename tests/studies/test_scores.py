"""Scores, tables and correlations of a study against values derived by hand."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
from scipy.stats import spearmanr

from mirror.common.errors import InputError
from mirror.training.record import RunRecord
from studies.cell import agreement, own_text_of
from studies.scores import (
    collect,
    correlations,
    format_agreement,
    format_csv,
    format_runs,
    format_table,
    published_beside,
    published_scores,
)
from studies.study import STUDIES, Cell, Column, Study


def record(row: str, seed: int | None, part: str = "", **tasks: float) -> dict:
    return {
        **{"row": row, "part": part, "seed": seed, "seconds_training": 1.5, "seconds_scoring": 2.0},
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
BESIDE = published_beside(STUDY, lambda cell: ["some-bert"])
RECORDS = [
    record("before", None, a=0.2, b=0.4),
    record("after", 33, a=0.5, b=0.7),
    record("after", 44, a=0.6, b=0.8),
    record("after", 55, a=0.7, b=1.2),
]

# ---- Tables ----------------------------------------------------------------------------------------------------------


def test_the_table_has_our_scores_published_scores_and_differences():
    assert format_table(STUDY, collect(STUDY, RECORDS), BESIDE).splitlines() == [
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
    lines = format_table(STUDY, collect(STUDY, RECORDS), published_beside(STUDY, lambda cell: ["mine"])).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| before", "| after"]


def test_an_average_over_fewer_columns_is_labeled_and_compared_over_the_same_columns():
    found = collect(STUDY, [{**each, "tasks": {"a": each["tasks"]["a"]}} for each in RECORDS])
    lines = format_table(STUDY, found, BESIDE).splitlines()
    assert lines[0] == "| | a | average of 1 |" and len(lines) == 7
    assert published_scores(STUDY, ["a", "average"], BESIDE["before"]) == {"a": 0.25, "average": 0.25}
    assert published_scores(STUDY, ["a", "average"], BESIDE["after"]) == {}  # .5 is the average over both columns


def test_a_seed_that_lacks_a_column_has_no_average():
    found = collect(STUDY, [*RECORDS[:3], record("after", 55, a=0.7)])
    assert found["after"]["a"].values == (0.5, 0.6, 0.7)
    assert found["after"]["average"].values == pytest.approx((0.6, 0.7))


def test_each_part_of_a_row_fills_its_own_columns_and_further_rows_report_other_fields():
    columns = (Column("words", "t", part="word"), Column("names", "t", "extra", part="phrase"))
    cells = Cell("r", ("t",), part="word"), Cell("r", ("t",), part="phrase")
    study = Study("S", cells, columns, also={"halved": "extra"})
    records = [record("r", None, "word", t=0.5), record("r", None, "phrase", t=0.8)]
    found = collect(study, records)
    nested = replace(study, columns=(Column("b", "t", "a.b"), Column("newer", "t", "a.c")), also={})
    assert collect(nested, [{**records[0], "tasks": {"t": {"a": {"b": 0.3}}}}])["r"]["b"].mean == 0.3
    assert (found["r"]["words"].mean, found["r"]["names"].mean, found["r, halved"]["words"].mean) == (0.5, 0.4, 0.25)
    rows = list(csv.DictReader(format_csv(study, records).splitlines()))
    assert [(row["row"], row["column"], row["field"], row["score"], row["seed"], row["seconds"]) for row in rows] == [
        ("r", "words", "main_score", "0.5", "", "3.5"),
        ("r, halved", "words", "extra", "0.25", "", "3.5"),
        ("r", "names", "extra", "0.4", "", "3.5"),
        ("r, halved", "names", "extra", "0.4", "", "3.5"),
    ]


# ---- Label-free criteria ---------------------------------------------------------------------------------------------


def history(points):
    return [{"step": n, "eval_own_text": -value, "eval_dev": dev} for n, (value, dev) in enumerate(points, start=1)]


def test_a_better_criterion_should_mean_a_higher_dev_score():
    base_model = [{"step": 0, "eval_own_text": 9.0, "eval_dev": 0.1}]  # no checkpoint
    perfect = agreement(base_model + history([(-1.0, 0.5), (-2.0, 0.6), (-3.0, 0.9)]), "dev")
    assert perfect["main_score"] == pytest.approx(1) and perfect["dev_of_chosen"] == 0.9
    # ranks of the criterion, the best highest, 1 3 2, of dev 2 1 3: rho = 1 - 6 * (1 + 4 + 1) / 24 = -0.5
    mixed = agreement([{"loss": 1.0, "step": 3}, *history([(-1.0, 0.6), (-3.0, 0.5), (-2.0, 0.9)])], "dev")
    assert mixed["main_score"] == pytest.approx(-0.5)
    assert (mixed["dev_of_chosen"], mixed["dev_of_best"], mixed["dev_of_last"]) == (0.5, 0.9, 0.9)
    with pytest.raises(InputError, match="2 checkpoints were scored, at least 3"):
        agreement(history([(-1.0, 0.5), (-2.0, 0.6)]), "dev")


def own_text_run(row: str, words: float, halves: float, score: float) -> dict:
    own_text = {"main_score": (words * halves) ** 0.5, "tests": {"words": words, "halves": halves}}
    own_text |= {"before": 0.12}
    return {"row": row, "part": "docstrings", "tasks": {"own_text": own_text, "stsb_dev": {"main_score": score}}}


RUNS = [
    own_text_run("one, a", 0.1, 0.3, 0.1),
    own_text_run("one, b", 0.2, 0.4, 0.2),
    own_text_run("one, c", 0.3, 0.2, 0.3),
    own_text_run("two, a", 0.4, 0.9, 0.9),
    own_text_run("two, b", 0.5, 0.8, 0.8),
    own_text_run("two, c", 0.6, 0.7, 0.7),
]


def test_without_enough_runs_or_differences_there_is_no_correlation():
    assert correlations(RUNS[:2], "stsb_dev")["own_text"] == (None, None)
    equal = [own_text_run(f"one, {score}", 0.2, 0.2, score) for score in (0.1, 0.2, 0.3)]
    assert correlations(equal, "stsb_dev")["own_text"] == (None, None)
    assert correlations(RUNS, "simlex999")["own_text"] == (None, None)


def test_every_seed_of_a_row_counts_in_a_correlation():
    """Three seeds of one row, ordered by the criterion as by the task, and one row against the order."""
    seeds = [own_text_run("one, a", value, value, value) for value in (0.1, 0.2, 0.3)]
    assert correlations(seeds, "stsb_dev")["own_text"] == (pytest.approx(1.0), pytest.approx(1.0))
    runs = [*seeds, own_text_run("two, a", 0.4, 0.4, 0.0)]
    by_hand = spearmanr([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.0]).statistic
    assert correlations(runs, "stsb_dev")["own_text"] == (pytest.approx(by_hand), pytest.approx(1.0))


def test_the_tables_of_own_text_have_correlations_choices_and_runs_by_corpus():
    before = {"row": "one, before", "part": "", "tasks": {"stsb_dev": {"main_score": 0.05}}}
    table = format_runs(STUDIES["own_text"], [before, *RUNS, *(run | {"part": "words"} for run in RUNS)])
    assert table.count(" | 0.77 (0.00) | 0.83 (0.25) |\n") == 2
    for corpus in ("docstrings", "words"):
        assert f"| {corpus} | stsb_dev | 6 | " in table
        assert f"| {corpus} | one | stsb_dev | 3 | 0.1000 | 0.2000 | 0.2000 | 0.3000 |\n" in table
        assert f"| {corpus} | two | stsb_dev | 3 | 0.7000 | 0.8000 | 0.7000 | 0.9000 |\n" in table
        assert f"| {corpus} | stsb_dev | own_text, before | own_text, after |\n" in table
    assert table.count("| one, before | 0.0500 |  |  |\n| one, a | 0.1000 | 0.1200 | 0.1732 |\n") == 2
    assert "simlex999" not in table


def test_the_agreement_of_ways_counts_each_row_once_and_the_base_by_its_own_text_before():
    """Ranks of own text, the base lowest: base, a (mean of two seeds), b, c. Those of the labels: a, base, c, b.

    The second seed of a rises on its own text, and its score is below the base's.
    """
    runs = [run | {"seed": 33} for run in (own_text_run("b", 0.5, 0.5, 0.9), own_text_run("c", 0.6, 0.6, 0.8))]
    runs += [own_text_run("a", 0.1, 0.1, 0.1) | {"seed": 33}, own_text_run("a", 0.5, 0.5, 0.3) | {"seed": 44}]
    with_pairs = own_text_run("d", 0.9, 0.9, 0.0) | {"seed": 33}
    with_pairs["tasks"]["own_text"]["tests"]["pairs"] = 0.9
    base = {"row": "base", "part": "docstrings", "seed": None, "tasks": {"stsb_dev": {"main_score": 0.5}}}
    columns = tuple(Column(each, each, part="docstrings") for each in ("stsb_dev", "own_text", "simlex999"))
    study = replace(STUDIES["rivals"], columns=columns)
    # rho = 1 - 6 * (1 + 1 + 1 + 1) / (4 * 15) = 0.6
    assert format_agreement(study, [base, *runs, with_pairs]).splitlines()[2:] == [
        "| docstrings | stsb_dev | 4 | 0.60 | 3 of 4 runs |"
    ]
    assert format_agreement(study, [base, runs[0]]) == ""


def test_the_record_of_a_run_is_read():
    tests = [{"test": "words", "texts": 60, "mrr_before": 0.1, "mrr_after": 0.4},
             {"test": "halves", "texts": 60, "mrr_before": 0.4, "mrr_after": 0.9}]  # fmt: skip
    run = RunRecord("mirror", {}, {}, {}, {}, {}, own_text=tests)
    assert own_text_of(run) == {
        "main_score": pytest.approx(0.6),
        "before": pytest.approx(0.2),
        "num_examples": 60,
        "tests": {"words": 0.4, "halves": 0.9},
    }
    assert own_text_of(replace(run, own_text=None)) is None

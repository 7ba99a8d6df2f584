"""The verdict on a conclusion of the paper, against intervals derived by hand."""

from __future__ import annotations

import pytest

from mirror.studies.catalogue import STUDIES
from mirror.studies.cells import AVERAGE, Cell, Claim, Column, Study
from mirror.studies.claims import difference, format_claims, interval, judge, printed_difference, verdict
from mirror.studies.table import Score


BASE = Score({None: 0.5})


def scores(*values: float) -> Score:
    return Score(dict(zip((33, 44, 55), values, strict=False)))


def test_seeds_are_compared_pairwise():
    """The seeds vary by far more than the difference, which is the same for each."""
    gain = difference(scores(0.3, 0.5, 0.9), scores(0.2, 0.4, 0.8))
    assert gain.values == pytest.approx((0.1, 0.1, 0.1))
    assert judge(gain) == "agrees"


def test_only_seeds_that_both_have_are_compared():
    assert difference(Score({33: 0.5, 44: 0.7}), Score({44: 0.6, 55: 0.1})).by_seed == pytest.approx({44: 0.1})
    assert difference(Score({33: 0.5}), Score({44: 0.6})) is None


def test_the_base_model_is_compared_with_every_seed():
    assert difference(scores(0.6, 0.7), BASE).by_seed == pytest.approx({33: 0.1, 44: 0.2})
    assert difference(BASE, scores(0.6, 0.7)).by_seed == pytest.approx({33: -0.1, 44: -0.2})


def test_the_interval_is_students():
    # mean .2, standard deviation .1, and the quantile of t with two degrees of freedom is 4.3027
    low, high = interval(scores(0.1, 0.2, 0.3))
    half = 4.302653 * 0.1 / 3**0.5
    assert (low, high) == pytest.approx((0.2 - half, 0.2 + half))
    assert interval(scores(0.1)) is None


@pytest.mark.parametrize(
    ("gain", "judgement"),
    [
        (scores(0.10, 0.11, 0.12), "agrees"),
        (scores(-0.10, -0.11, -0.12), "does not agree"),
        (scores(0.1, 0.2, 0.3), "not shown"),  # from -.05 to .45
        (scores(0.0, 0.0, 0.0), "not shown"),
        (scores(0.3), "one seed"),
        (Score({None: 0.3}), "agrees"),  # two base models
        (Score({None: -0.3}), "does not agree"),
    ],
)
def test_a_difference_is_judged_by_its_interval(gain, judgement):
    assert judge(gain) == judgement


def test_the_verdict_on_all_conclusions():
    assert verdict(["agrees", "agrees"]) == "agrees"
    assert verdict(["agrees", "not shown"]) == verdict(["agrees", "does not agree"]) == "agrees in part"
    assert verdict(["not shown", "does not agree"]) == "does not agree"
    assert verdict(["one seed", "one seed"]) == "not testable with one seed"
    assert verdict(["one seed", "agrees"]) == "agrees" and verdict(["one seed", "not shown"]) == "does not agree"


def test_the_table_of_conclusions():
    study = Study(
        "S",
        (Cell("before", ("a", "b")), Cell("after", ("a", "b"), ("corpus.txt",))),
        (Column("a", "a"), Column("b", "b")),
        published={"bert-base-uncased": {"before": {"a": 0.2}, "after": {"a": 0.5}}},
        claims=(Claim("after", "before", "a"), Claim("before", "after", "b"), Claim("after", "before", "c")),
    )
    found = {"before": {"a": BASE, "b": BASE}, "after": {"a": scores(0.6, 0.6, 0.6), "b": scores(0.4)}}
    assert format_claims(study, found, {}).splitlines() == [
        "",
        "| difference | in the paper | here, 95% interval over seeds | |",
        "| --- | ---: | ---: | --- |",
        "| after above before: a | +0.3000 | +0.1000 (+0.1000 to +0.1000) | agrees |",
        "| before above after: b |  | +0.1000 | one seed |",
        "",
        "Verdict: agrees (1 of 2; 1 with one seed).",
    ]
    beside = {"before": {"a": 0.1}, "after": {"a": 0.15}}  # of the model itself
    assert "| after above before: a | +0.0500 |" in format_claims(study, found, beside)
    assert format_claims(study, {"before": {}, "after": {}}, {}) == ""


def test_a_published_difference_is_within_one_model():
    published = {"some-model": {"one": {"a": 0.1}}, "bert-base-uncased": {"other": {"a": 0.5}}}
    study = Study("S", (), (Column("a", "a"),), published=published)
    assert printed_difference(study, Claim("other", "one", "a"), ["a"], {}) is None
    controlled = Claim("no dropout", "controlled dropout", "sts12")  # of RoBERTa: Table 8 has no BERT
    assert printed_difference(STUDIES["table8"], controlled, ["sts12"], {}) == pytest.approx(0.562 - 0.452)


@pytest.mark.parametrize("name", [name for name in STUDIES if STUDIES[name].claims])
def test_every_conclusion_is_of_rows_and_columns_of_its_study_and_holds_for_what_the_paper_prints(name):
    study = STUDIES[name]
    labels = [*(column.label for column in study.columns), *([AVERAGE] if study.average else [])]
    for claim in study.claims:
        assert {claim.higher, claim.lower} <= set(study.rows)
        assert claim.column in labels
        printed = printed_difference(study, claim, labels, {})
        assert printed is None or printed > 0, claim

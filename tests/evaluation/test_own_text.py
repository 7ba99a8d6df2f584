"""The test without labels on a user's own text: its questions, its numbers, and when there is none."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import own_text
from mirror.evaluation.own_text import OwnTextTest, compare_together, describe_scores, make_tests


LONG = [f"one two three {number} five six seven {number + 1000}" for number in range(60)]


def test_halves():
    assert own_text.halves("the quick brown fox jumps") == ("the quick", "brown fox jumps")
    assert (own_text.halves("a  b"), own_text.halves("我爱你们")) == (("a", "b"), ("我爱", "你们"))


def test_some_words_in_their_order():
    text = "one two  three four five six seven"
    chosen = own_text.some_words(text).split(" ")
    assert own_text.some_words(text) == " ".join(chosen) and len(chosen) == 3
    assert [text.split().index(word) for word in chosen] == sorted(text.split().index(word) for word in chosen)
    assert len({own_text.some_words(f"{text} {number}") for number in range(20)}) > 5


def test_the_tests_fit_the_texts():
    assert [test.kind for test in make_tests(LONG)] == ["words", "halves"]
    names = [f"disease{number} chronic" for number in range(60)]
    (pairs,) = make_tests(LONG, names)
    assert (pairs.kind, pairs.queries[0], pairs.answers[0]) == ("pairs", LONG[0], names[0])


def test_a_text_of_a_chain_is_a_query_or_an_answer_and_does_not_find_itself():
    chain = [f"text {number}" for number in range(101)]
    test = OwnTextTest.of("headings", pairwise(chain))
    assert (test.queries, test.answers) == (tuple(chain[:-1:2]), tuple(chain[1::2]))
    ranks = test.ranks(lambda texts: np.eye(101, dtype=np.float32)[[int(text[5:]) // 2 for text in texts]])
    assert (ranks == 1).all()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((LONG[:50], [LONG[0], *map(str, range(49))]), "only 49 held-out texts"),  # a query that is its answer
        ((LONG[:49],), r"only 4\d held-out texts can be used for the test 'words'"),
        (([f"disease{n} chronic" for n in range(90)],), "names and words are not tested: no test without labels"),
        (([*LONG[:29], *map(str, range(91))],), "names and words are not tested"),  # less than a fourth of six words
        (([*LONG[:30], *map(str, range(90))],), r"only \d\d held-out texts"),
    ],
)
def test_too_few_texts_have_no_test(texts, message):
    with pytest.raises(InputError, match=message):
        make_tests(*texts)


def test_ranks_and_change_by_hand():
    test = OwnTextTest("pairs", ("q0", "q1", "q2"), ("a0", "a1", "a2"))
    space = {"q0": (1, 0, 0), "q1": (0, 1, 0), "q2": (0, 0.9, 1), "a0": (1, 0, 0), "a1": (1, 0.5, 0), "a2": (0, 1, 1)}
    ranks = test.ranks(lambda texts: np.array([space[text] for text in texts], dtype=np.float32))
    assert ranks.tolist() == [1, 2, 1]
    scores = test.compare(np.array([1, 2, 4]), np.array([1, 1, 2]))
    assert (scores["before"], scores["after"], scores["change"]) == pytest.approx((1 / 3, 2 / 3, 1 / 3))
    assert test.compare(ranks, ranks)["margin"] == 0
    assert scores["mrr_before"] == pytest.approx((1 + 1 / 2 + 1 / 4) / 3)


def scores(kind: str, before: float, after: float) -> dict:
    return {"test": kind, "texts": 1000, "before": before, "after": after, "change": after - before, "margin": 0.021}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([("words", 0.412, 0.538)], "on your text: .412 -> .538 (+.126 ± .021) of 1,000 held-out texts are found by 3 of"),
        ([("words", 0.412, 0.420)], "This is not better by more than chance: try "),
        ([("words", 0.412, 0.212)], "This is worse: try "),
        ([("words", 0.412, 0.538), ("halves", 0.128, 0.010)], "less by their meaning: try a lower --learning_rate"),
    ],
)  # fmt: skip
def test_the_lines_at_the_end_of_a_run(results, expected):
    assert expected in describe_scores([scores(*result) for result in results])


def test_the_change_of_all_tests_together_is_that_of_the_geometric_mean():
    one, two = np.array([1, 2]), np.array([4, 4, 4])  # mean reciprocal ranks .75 and .25
    scores = compare_together([one, two], [np.array([1, 1]), np.array([8, 8, 8])])
    before, after = (0.75 * 0.25) ** 0.5, 0.125**0.5
    assert [scores[key] for key in ("before", "after", "change")] == pytest.approx([before, after, after - before])


def test_its_margin_is_that_of_paired_differences_of_each_test():
    """Of two tests, the first with equal ranks: the standard error of the second, times the slope of the geometric mean."""
    generator = np.random.default_rng(1)
    before, after = (generator.integers(1, 4, 1000) for _ in range(2))
    differences = 1 / after - 1 / before
    error = 1.96 * differences.std() / 1000**0.5
    assert compare_together([before], [after])["margin"] == pytest.approx(error, rel=0.1)
    assert compare_together([before], [before])["margin"] == 0
    same = np.full(500, 4)
    slope = (0.25 / (1 / before).mean()) ** 0.5 / 2
    assert compare_together([same, before], [same, after])["margin"] == pytest.approx(error * slope, rel=0.15)


def test_together_they_decide():
    two = [scores("words", 0.412, 0.538), scores("halves", 0.128, 0.120)]
    assert "try" not in describe_scores([two[0], scores("halves", 0.128, 0.138)])
    worse = {"before": 0.277, "after": 0.240, "change": -0.037, "margin": 0.02}
    *_, line, advice = describe_scores(two, worse).splitlines()
    assert line.startswith("on your text: .277 -> .240 (-.037 ± .020) both together")
    assert advice.startswith("  This is worse: try ")
    assert "try" not in describe_scores(two, worse | {"after": 0.317, "change": 0.04})


@pytest.mark.parametrize(
    ("text", "count"),
    [("one{n} two{n} three{n} four{n} one{n} two{n} three{n} four{n}", 0), ("always the same {n}a {n}b {n}c", 1),
     ("a{n} b{n} c{n} one and the same", 1)],
)  # fmt: skip
def test_texts_whose_halves_cannot_be_told_apart_are_found_by_their_words_only(caplog, text, count):
    assert [test.kind for test in make_tests([text.format(n=n) for n in range(60)])] == ["words"]
    assert f"only {count} held-out texts can be used for the test 'halves', and a number needs 50" in caplog.text


def test_the_interval_is_wider_where_texts_of_a_document_go_together():
    """Ten documents of 40 texts that are all gained or all not: as wide as of ten texts, by the error of a share."""
    gained = np.repeat([1, 0] * 5, 40)
    before, after = np.full(400, 2), np.where(gained, 1, 2)
    texts = tuple(f"text {number}" for number in range(400))
    by_text = OwnTextTest("headings", texts, texts).compare(before, after)
    by_document = OwnTextTest("headings", texts, texts, tuple(np.repeat(range(10), 40))).compare(before, after)
    assert by_text["change"] == by_document["change"] == 0.5
    assert by_text["margin"] == pytest.approx(1.96 * 0.5 / 400**0.5, rel=0.15)
    assert by_document["margin"] == pytest.approx(1.96 * 0.5 / 10**0.5, rel=0.15)


@pytest.mark.parametrize("documents", [1, 4])
def test_few_documents_are_no_certainty(documents):
    """Resamples of one document are all the same, so its interval would be zero."""
    before, after = np.full(400, 2), np.tile([1, 2], 200)
    texts = tuple(f"text {number}" for number in range(400))
    test = OwnTextTest("headings", texts, texts, tuple(np.repeat(range(documents), 400 // documents)))
    found = test.compare(before, after)
    assert found["documents"] == documents and found["margin"] == pytest.approx(1.96 * 0.5 / 400**0.5, rel=0.15)
    assert f"of {documents} documents or chapters only, so numbers after ± are too small" in describe_scores([found])


def test_headings_and_passages_of_documents_are_tested_and_bm25_is_beside():
    passages = [f"{text} passage {number}" for number, text in enumerate(LONG)]
    headings = [f"heading {number}" for number in range(len(LONG))]
    seconds = [*passages[:-10], *[""] * 10]
    texts = [*headings[:-10], *passages[-10:]]
    tests = make_tests(texts, seconds, [number // 5 for number in range(len(LONG))])
    assert [test.kind for test in tests] == ["headings", "words", "halves"]
    assert tests[0].queries == tuple(headings[:-10]) and len(tests[1].answers) == len(LONG)
    assert tests[0].documents[5] == 1 and all(len(test.documents) == len(test.answers) for test in tests)
    perfect = OwnTextTest("headings", ("red cat", "old dog"), ("a red cat", "the old dog"))
    assert perfect.bm25() == {"bm25": 1.0, "mrr_bm25": 1.0}
    nothing = OwnTextTest("headings", ("bird", "fish"), ("a red cat", "the old dog"))
    assert nothing.bm25()["bm25"] == 0

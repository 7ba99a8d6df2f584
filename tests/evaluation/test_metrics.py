"""Measures of rankings against trec_eval itself and by hand, the bootstrap against the normal approximation, and BM25 against its formula."""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np
import pytest

from mirror.evaluation.metrics import BM25, MEASURES, Sample, fuse, interval, measure, ranked_ids, summarize, tokens


TREC_NAMES = ("ndcg_cut_10", "recip_rank", "recall_10", "recall_100", "success_1")
TEXTS = ["the cat sat on the mat", "the dog", "a cat and a dog and a cat", "", "rain"]


@pytest.mark.parametrize("seed", range(8))
def test_the_measures_are_those_of_trec_eval_with_ties_and_grades(seed):
    pytrec_eval = pytest.importorskip("pytrec_eval")  # installed by requirements-dev.txt
    rng = np.random.default_rng(seed)
    documents = [f"d{number}" for number in range(300)]
    qrels, runs = {}, {}
    for query in map(str, range(40)):
        judged = rng.choice(documents, rng.integers(1, 40), replace=False).tolist()
        qrels[query] = {id: int(rng.integers(-1, 4)) for id in judged}
        found = rng.choice(documents, rng.integers(1, 300), replace=False).tolist()
        levels = rng.integers(2, 30)  # few levels of score, so most documents are tied with others
        runs[query] = {id: float(rng.integers(levels)) for id in found}
    values = measure([ranked_ids(runs[query]) for query in qrels], list(qrels.values()))
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recip_rank", "recall.10,100", "success.1"})
    theirs = theirs.evaluate(runs)
    for ours, name in zip(MEASURES, TREC_NAMES, strict=True):
        expected = np.array([theirs[query][name] for query in qrels])
        if ours == "mrr@10":
            expected[expected < 0.1] = 0  # trec_eval looks at all ranks
        assert values[ours] == pytest.approx(expected, abs=1e-9), ours


def test_the_measures_by_hand():
    ranked = [["a", "b", "c"], ["x"], []]
    qrels = [{"b": 1, "c": 2, "z": 1, "a": 0}, {"x": 1}, {"y": 0}]
    values = measure(ranked, qrels)
    dcg, ideal = 1 / np.log2(3) + 2 / 2, 2 + 1 / np.log2(3) + 1 / 2
    assert values["ndcg@10"] == pytest.approx([dcg / ideal, 1, 0])
    assert values["mrr@10"].tolist() == [1 / 2, 1, 0]
    assert values["recall@10"] == pytest.approx([2 / 3, 1, 0])
    assert values["accuracy@1"].tolist() == [0, 1, 0]
    entry = summarize(values)
    assert entry["mrr@10"] == 0.5 and entry["intervals"]["mrr@10"] == [0, 1] and set(entry) == {*MEASURES, "intervals"}


def test_eleventh_and_hundred_and_first_do_not_count():
    ids = [str(number) for number in range(150)]
    values = measure([ids, ids], [{"10": 1}, {"100": 1}])
    assert values["recall@100"].tolist() == [1, 0]
    assert not any(values[name].any() for name in ("ndcg@10", "mrr@10", "recall@10"))


def test_equal_scores_rank_by_falling_id():
    assert ranked_ids({"a": 1.0, "10": 2.0, "9": 2.0, "é": 2.0}) == ["é", "9", "10", "a"]


def test_rank_fusion_by_hand():
    # a: 1/61 + 1/63, b: 1/62 + 1/61, c: 1/63, d: 1/62
    assert fuse([["a", "b", "c"]], [["b", "d", "a"]]) == [["b", "a", "d", "c"]]
    assert fuse([["a", "b"]], [["b", "a"]]) == [["b", "a"]]  # a tie


def test_the_interval_of_a_mean_is_seeded_and_near_the_normal_one():
    values = np.random.default_rng(3).random((400, 2))
    low, high = interval(Sample.mean_of(values).draws())
    margins = 1.96 * values.std(axis=0) / 20
    assert (high - low) / 2 == pytest.approx(margins, rel=0.1)
    assert np.array_equal(interval(Sample.mean_of(values).draws()), [low, high])
    assert interval(Sample.mean_of(values[:, 0]).draws()) == pytest.approx((low[0], high[0]))


def test_a_paired_difference_is_narrower_than_two_intervals():
    rng = np.random.default_rng(4)
    before = rng.random(500)
    after = before + 0.03 + 0.01 * rng.standard_normal(500)
    draws = [Sample.mean_of(each).draws() for each in (before, after)]
    low, high = interval(draws[1] - draws[0])  # resamples of the same queries
    assert low < (after - before).mean() < high and low > 0.02 and high - low < 0.004


def by_formula(query: list[str], texts: list[list[str]], k1: float = 1.5, b: float = 0.75) -> np.ndarray:
    """BM25 of Lucene (Kamphuis et al. 2020): each word of the query counts as often as it is there."""
    mean = np.mean([len(text) for text in texts])
    frequency = Counter(word for text in texts for word in set(text))
    scores = np.zeros(len(texts))
    for row, text in enumerate(texts):
        for word in query:
            count = text.count(word)
            weight = np.log(1 + (len(texts) - frequency[word] + 0.5) / (frequency[word] + 0.5))
            scores[row] += weight * count / (count + k1 * (1 - b + b * len(text) / mean))
    return scores


@pytest.mark.parametrize("query", ["cat", "the cat", "dog dog rain", "nothing here", "...", "The CAT!"])
def test_the_scores_are_those_of_the_formula_and_only_documents_with_a_word_are_found(query):
    index = BM25(TEXTS)
    expected = by_formula(tokens(query), [text.split() for text in TEXTS])
    assert index.scores(query) == pytest.approx(expected, abs=1e-5)
    ((found, fewer),) = zip(index.search([query], 5), index.search([query], 2), strict=True)
    assert found == [row for row in np.argsort(-expected, kind="stable") if expected[row] > 0]
    assert fewer == found[:2]


def test_bm25_logs_nothing_about_its_index(caplog):
    logging.getLogger("bm25s").setLevel(logging.DEBUG)  # as the import of bm25s does
    BM25(["rain", "snow"])
    assert not caplog.records


def test_equal_documents_rank_by_row_at_every_depth():
    index = BM25(["rain", "snow", "rain", "rain"])
    assert [index.search(["rain"], k)[0] for k in (1, 2, 9)] == [[0], [0, 2], [0, 2, 3]]


def test_documents_of_punctuation_only():
    assert BM25(["...", "?"]).search(["a", "."], 3) == [[], []]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Read_csv(path), don't", ["read_csv", "path", "don", "t"]),
        ("I love 東京タワー", ["i", "love", *"東京タワー"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("שָׁלוֹם", ["שָׁלוֹם"]),
        ("Größe; naïve-CAFÉ", ["größe", "naïve", "café"]),
        ("a\u200bb 3.5", ["a", "b", "3", "5"]),
    ],
)
def test_tokens_of_any_language(text, expected):
    assert tokens(text) == expected

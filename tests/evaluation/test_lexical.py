"""BM25 against its formula, and tokens of several languages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mirror.evaluation.metrics import BM25, tokens


TEXTS = ["the cat sat on the mat", "the dog", "a cat and a dog and a cat", "", "rain"]


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

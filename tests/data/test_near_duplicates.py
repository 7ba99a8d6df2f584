"""Near-duplicates: what counts as one, by hand, and what a corpus does with them."""

from __future__ import annotations

import pytest
from datasets import Dataset

from mirror.common.errors import InputError
from mirror.data.corpus import CorpusSource, as_corpus
from mirror.data.corpus_report import near_duplicates_of
from mirror.data.near_duplicates import find_near_duplicates


CAT = "The cat sat on the mat and looked at the dog"


def found(*texts: str) -> list[int]:
    return find_near_duplicates(Dataset.from_dict({"text": list(texts)})).rows.tolist()


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (CAT.lower() + "!", [1]),
        ("The  cat, sat on the mat; and looked at the dog", [1]),
        (CAT + " twice", [1]),  # 8 words and 10 pairs of 9 and 11 are shared: 18 / 20
        (
            "The cat sat on the mat and looked at a bird",
            [],
        ),  # 7 words and 8 pairs are shared, 3 and 5 are not: 15 / 23
        ("A dog sat elsewhere", []),
        ("...", []),
    ],
)
def test_what_is_a_near_duplicate(other, expected):
    assert found(CAT, other) == expected


def test_names_that_differ_in_one_word_are_not():
    assert found("type 1 diabetes", "type 2 diabetes", "Type-1 diabetes") == [2]


def test_each_is_compared_with_rows_that_are_kept_and_shown_beside_one():
    result = find_near_duplicates(Dataset.from_dict({"text": [CAT, "a b c", CAT + ".", CAT + "!"]}))
    assert result.rows.tolist() == [2, 3]
    assert result.examples == [(CAT + ".", CAT), (CAT + "!", CAT)]


def test_a_corpus_reports_them_and_drops_them_on_request():
    texts = [CAT, "something else", CAT + "."]
    corpus = as_corpus(texts)
    assert len(corpus.rows) == 3 and near_duplicates_of(corpus).rows.tolist() == [2]
    corpus = as_corpus(texts, CorpusSource(near_duplicates="drop"))
    assert corpus.rows["text"][:] == texts[:2] and len(corpus.near_duplicates.rows) == 1
    assert near_duplicates_of(corpus) is corpus.near_duplicates
    assert near_duplicates_of(as_corpus(texts, CorpusSource(near_duplicates="off"))) is None


def test_what_cannot_be_done_is_said():
    with pytest.raises(InputError, match="--near_duplicates 'remove' is unknown; one of report, drop, off"):
        as_corpus(["a", "b"], CorpusSource(near_duplicates="remove"))
    stream = Dataset.from_dict({"text": ["a", "b"]}).to_iterable_dataset()
    assert near_duplicates_of(as_corpus(stream)) is None
    with pytest.raises(InputError, match="--near_duplicates drop compares all texts; leave out --streaming"):
        as_corpus(stream, CorpusSource(near_duplicates="drop"))

"""Cleaning: blank and repeated rows, and held-out texts that are never on both sides."""

from __future__ import annotations

import pytest
from datasets import Dataset

from mirror.common.errors import InputError
from mirror.data.cleaning import hold_out
from mirror.data.corpus import as_corpus
from mirror.data.source import CorpusSource


def numbered(count: int) -> list[str]:
    return [f"text number {number}" for number in range(count)]


def test_held_out_texts_are_not_trained_on_and_the_order_of_the_texts_does_not_matter():
    corpus, held = hold_out(as_corpus(numbered(240)), 40)
    assert len(held) == 40 and len(corpus.rows) == 200
    assert {*held["text"]} | {*corpus.rows["text"]} == {*numbered(240)}
    _, reversed_order = hold_out(as_corpus(numbered(240)[::-1]), 40)
    assert {*held["text"]} == {*reversed_order["text"]}


@pytest.mark.parametrize(("rows", "expected"), [(499, 0), (500, 50), (2000, 200), (12_000, 1000)])
def test_by_default_a_tenth_at_most_a_thousand_and_nothing_of_a_small_corpus(rows, expected):
    corpus, held = hold_out(as_corpus(numbered(rows)))
    assert len(held or ()) == expected and len(corpus.rows) == rows - expected


def test_no_copy_of_a_held_out_text_is_left():
    source = CorpusSource(keep_duplicates=True)
    corpus, held = hold_out(as_corpus(numbered(100) * 2, source), 10)
    assert len(held) == 10 and len(corpus.rows) == 180
    assert not {*held["text"]} & {*corpus.rows["text"]}


def test_no_pair_of_the_rest_holds_a_held_out_text():
    texts = numbered(100)
    pairs = Dataset.from_dict({"text": texts, "text_pair": texts[1:] + texts[:1]})
    corpus, held = hold_out(as_corpus(pairs), 10)
    assert len(held) == 10 and held.column_names == ["text", "text_pair"]
    left = {*corpus.rows["text"], *corpus.rows["text_pair"]}
    assert not {*held["text"]} & left and 80 <= len(corpus.rows) < 90


def test_a_stream_holds_out_texts_of_its_start():
    stream = Dataset.from_dict({"text": numbered(700)}).to_iterable_dataset(num_shards=2)
    corpus, held = hold_out(as_corpus(stream), 30)
    rest = [row["text"] for row in corpus.rows]
    assert len(held) == 30 and {*held["text"]} <= {*numbered(300)}
    assert rest == [text for text in numbered(700) if text not in {*held["text"]}]


def test_none_is_none_and_too_many_are_refused():
    corpus = as_corpus(numbered(240))
    assert hold_out(corpus, 0) == (corpus, None)
    with pytest.raises(InputError, match="--validation_samples 240: the corpus has only 240"):
        hold_out(corpus, 240)

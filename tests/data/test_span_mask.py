"""Span masking: where it cuts, how often, and that it depends on nothing but (seed, epoch, row)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mirror.data.augmentation import span_mask, view_rng


def test_the_two_segments_are_the_text_without_the_span():
    text = "abcdefghij"
    for row in range(50):
        before, after = span_mask(text, 3, min_chars=5, rng=view_rng(1, 0, row))
        assert text.startswith(before) and text.endswith(after)
        assert len(before) + len(after) == len(text) - 3


def test_every_position_is_equally_likely():
    # "aaaa..." is where the original went wrong: it removed the first occurrence of the span's text.
    starts = Counter(len(span_mask("a" * 10, 4, 0, view_rng(0, 0, row))[0]) for row in range(7000))
    assert sorted(starts) == list(range(7))  # 0 .. 10 - 4
    assert all(abs(count - 1000) < 150 for count in starts.values())  # 5 standard deviations


@pytest.mark.parametrize(
    ("text", "length", "min_chars"),
    [("short", 5, 0), ("shorter than thirty characters", 5, 31), ("anything at all", 0, 0), ("", 2, 0)],
)
def test_texts_that_stay_whole(text, length, min_chars):
    assert span_mask(text, length, min_chars, view_rng(0, 0, 0)) == [text]


def test_the_shortest_texts_and_spans_that_are_masked():
    assert span_mask("ab", 1, 0, view_rng(0, 0, 0)) in (["", "b"], ["a", ""])
    assert len(span_mask("exactly twenty chars", 5, 20, view_rng(0, 0, 0))) == 2


def test_the_second_view_has_the_generator_of_seed_epoch_and_row():
    second, first = (view_rng(3, 1, 7, *more).random(4).tolist() for more in ((), (True,)))
    assert second == np.random.default_rng([3, 1, 7]).random(4).tolist() != first


def test_blanks_beside_the_mask_go():
    views = {tuple(span_mask("ab cde fg", 3, 0, view_rng(0, 0, row))) for row in range(200)}
    assert ("ab", "fg") in views  # the span " cd", "cde" or "de " each leave a blank on one side
    assert all(before == before.rstrip() and after == after.lstrip() for before, after in views)


def test_a_row_of_an_epoch_has_one_view_and_others_differ():
    text = "the quick brown fox jumps over the lazy dog"

    def view(seed: int, epoch: int, row: int) -> list[str]:
        return span_mask(text, 5, 30, view_rng(seed, epoch, row))

    assert view(1, 2, 3) == view(1, 2, 3)
    for other in (view(9, 2, 3), view(1, 9, 3), view(1, 2, 9)):
        assert other != view(1, 2, 3)

"""One padded batch of 2B rows."""

from __future__ import annotations

from mirror.data.collators import TwoViewCollator


ROWS = [{"first_ids": [2, 7, 8, 3], "second_ids": [2, 7, 4, 3]}, {"first_ids": [2, 9, 3], "second_ids": [2, 9, 3]}]


def test_first_views_come_before_second_views(tokenizer):
    batch = TwoViewCollator(tokenizer)(ROWS)
    assert batch["input_ids"].tolist() == [[2, 7, 8, 3], [2, 9, 3, 0], [2, 7, 4, 3], [2, 9, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]


def test_padding_to_a_fixed_length(tokenizer):
    assert TwoViewCollator(tokenizer, pad_to=6)(ROWS)["input_ids"].shape == (4, 6)

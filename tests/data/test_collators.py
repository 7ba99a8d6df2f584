"""One padded batch of 2B rows."""

from __future__ import annotations

from mirror.data.collators import MiniBatchCollator, PackedCollator, TwoViewCollator, both_views
from mirror.data.packing import pack


ROWS = [{"first_ids": [2, 7, 8, 3], "second_ids": [2, 7, 4, 3]}, {"first_ids": [2, 9, 3], "second_ids": [2, 9, 3]}]


def test_first_views_come_before_second_views(tokenizer):
    batch = TwoViewCollator(tokenizer)(ROWS)
    assert batch["input_ids"].tolist() == [[2, 7, 8, 3], [2, 9, 3, 0], [2, 7, 4, 3], [2, 9, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]


def test_padding_to_a_fixed_length(tokenizer):
    padded, plain = TwoViewCollator(tokenizer, pad_to=6)(ROWS), TwoViewCollator(tokenizer)(ROWS)
    for name in ("input_ids", "attention_mask"):
        assert padded[name].shape == (4, 6) and not padded[name][:, 4:].any()
        assert padded[name][:, :4].tolist() == plain[name].tolist()


def test_a_packed_batch_has_the_same_rows_end_to_end():
    batch = PackedCollator(first_position=2, pad_token_id=1)(ROWS * 3)
    expected = pack([[2, 7, 8, 3], [2, 9, 3]] * 3 + [[2, 7, 4, 3], [2, 9, 3]] * 3, 2, 1)
    assert batch["input_ids"].shape == (1, 44) and batch["input_ids"][0, 42:].tolist() == [1, 1]
    assert batch.keys() == expected.keys()
    assert all(batch[name].tolist() == tensor.tolist() for name, tensor in expected.items())


def test_mini_batches_are_the_batch_in_parts():
    rows = [{"first_ids": [number], "second_ids": [number + 10]} for number in range(5)]
    parts = MiniBatchCollator(both_views, size=2)(rows)
    assert parts == {"mini_batches": [[[0], [1], [10], [11]], [[2], [3], [12], [13]], [[4], [14]]]}

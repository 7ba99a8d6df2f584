"""Batches of two views: padded, packed, in mini-batches, and of texts of similar length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset

from mirror.data.batches import LengthGroupedRows, MiniBatchCollator, PackedCollator, TwoViewCollator, both_views, pack
from mirror.data.views import TwoViewDataset, ViewSettings
from mirror.modeling.packing import first_position
from tests.architectures import tiny


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


def test_the_batch_of_the_docstring():
    batch = pack([[5, 6, 7], [8, 9]], first_position=0, pad_token_id=0)
    expected = {
        "input_ids": [[8, 9, 5, 6, 7]],
        "position_ids": [[0, 1, 0, 1, 2]],
        "lengths": [2, 3],
        "starts": [2, 0],
        "slots": [3, 4, 0, 1, 2],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
    }
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected


def test_positions_start_after_the_padding_index_and_filler_is_padding():
    batch = pack([[7] * 10, [8] * 9], first_position=2, pad_token_id=1, round_to=2)  # 19 tokens, one to fill up
    assert batch["input_ids"][0].tolist() == [8] * 9 + [7] * 10 + [1]
    assert batch["position_ids"][0].tolist() == [*range(2, 11), *range(2, 12), 2]
    assert first_position(tiny("roberta")) == 2
    assert first_position(tiny("bert")) == first_position(tiny("modernbert")) == 0


def test_rounding_leaves_few_lengths_and_little_waste():
    lengths = [pack([[3] * tokens], 0, 0)["input_ids"].shape[1] for tokens in range(1024, 2048, 7)]
    assert len(set(lengths)) == 9  # eight steps and the next octave's first
    assert all(length <= tokens * 9 / 8 for tokens, length in zip(range(1024, 2048, 7), lengths, strict=True))


@pytest.fixture
def dataset(tokenizer, sentences) -> TwoViewDataset:
    texts = [" ".join([text] * (1 + row % 3)) + f" {row}" for row, text in enumerate(sentences)]
    settings = ViewSettings(span_mask_length=5, span_mask_min_chars=10, mask_token=None, max_seq_length=64, seed=5)
    return TwoViewDataset(Dataset.from_dict({"text": texts}), tokenizer, settings)


def test_grouped_texts_are_alike_in_length_and_each_comes_once(dataset):
    rows = LengthGroupedRows(dataset, 20, seed=5)
    lengths = np.maximum(dataset.lengths("first_ids"), dataset.lengths("second_ids"))
    spread = [np.ptp(lengths[rows.order[start : start + 20]]) for start in range(0, len(rows), 20)]
    assert sorted(rows.order) == list(range(len(dataset))) and len(rows) == len(dataset)
    assert np.mean(spread) < 0.5 * np.ptp(lengths)
    assert rows.__getitems__([3, 0]) == dataset.__getitems__([rows.order[3], rows.order[0]]) == [rows[3], rows[0]]


def test_the_grouped_order_is_a_function_of_seed_and_epoch(dataset):
    rows = LengthGroupedRows(dataset, 20, seed=5)
    first = rows.order
    torch.manual_seed(99)
    assert LengthGroupedRows(dataset, 20, seed=5).order == first != LengthGroupedRows(dataset, 20, seed=6).order
    rows.set_epoch(1)
    assert rows.order != first and dataset.epoch == 1

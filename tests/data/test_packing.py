"""The first views of a packed or padded batch are what they would be alone."""

from __future__ import annotations

import pytest
import torch

from mirror.data.packing import first_half, pack


@pytest.mark.parametrize("first_position", [0, 2])
@pytest.mark.parametrize("lengths", [[3, 5, 4, 9, 2, 7], [9, 9, 8, 2, 2, 2], [2, 2, 1, 9, 9, 9]])
def test_half_of_a_packed_batch_is_those_rows_packed(lengths, first_position):
    rows = [[10 * row + place + 1 for place in range(length)] for row, length in enumerate(lengths)]
    found = first_half(pack(rows, first_position, 0, round_to=4), round_to=4)
    expected = pack(rows[:3], first_position, 0, round_to=4)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_half_of_a_padded_batch_is_its_first_rows():
    batch = {"input_ids": torch.arange(12).reshape(4, 3), "attention_mask": torch.ones(4, 3, dtype=torch.long)}
    assert torch.equal(first_half(batch)["input_ids"], torch.arange(6).reshape(2, 3))

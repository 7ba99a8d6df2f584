"""Pooling on a hidden state whose values can be added up by hand."""

from __future__ import annotations

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mirror.modeling.pooling import POOLING_MODES, pool


LAST = torch.tensor([[[1.0, 10.0], [2.0, 20.0], [6.0, 0.0], [99.0, 99.0]]])  # (1, 4, 2), the last position is padding
FIRST_LAYER = torch.zeros_like(LAST)
MASK = torch.tensor([[1, 1, 1, 0]])
OUTPUT = BaseModelOutputWithPooling(
    last_hidden_state=LAST, hidden_states=(LAST + 5, FIRST_LAYER, LAST), pooler_output=torch.tensor([[7.0, 8.0]])
)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cls", [1.0, 10.0]),
        ("mean", [3.0, 10.0]),
        ("mean_padded", [27.0, 32.25]),
        ("first_last_mean", [1.5, 5.0]),
        ("max", [6.0, 20.0]),
        ("pooler", [7.0, 8.0]),
    ],
)
def test_each_mode(mode, expected):
    assert pool(OUTPUT, MASK, mode).tolist() == [expected]


def test_all_modes_are_covered():
    assert set(POOLING_MODES) == {"cls", "mean", "mean_padded", "first_last_mean", "max", "pooler"}


@pytest.mark.parametrize("mode", ["cls", "mean", "first_last_mean", "max"])
def test_more_padding_changes_nothing(mode):
    longer = torch.cat([LAST, torch.full((1, 3, 2), 1e4)], dim=1)
    first = torch.cat([FIRST_LAYER, torch.full((1, 3, 2), -1e4)], dim=1)
    padded = BaseModelOutputWithPooling(last_hidden_state=longer, hidden_states=(longer, first, longer))
    mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0]])
    assert torch.equal(pool(padded, mask, mode), pool(OUTPUT, MASK, mode))


@pytest.mark.parametrize("mode", ["mean", "first_last_mean"])
def test_each_row_has_its_own_number_of_tokens(mode):
    hidden = torch.tensor([[[2.0], [4.0]], [[5.0], [99.0]], [[99.0], [99.0]]])  # two tokens, one, none
    output = BaseModelOutputWithPooling(last_hidden_state=hidden, hidden_states=(hidden, hidden, hidden))
    assert pool(output, torch.tensor([[1, 1], [1, 0], [0, 0]]), mode).tolist() == [[3.0], [5.0], [0.0]]


def test_unknown_mode_lists_the_known():
    with pytest.raises(ValueError, match="unknown pooling 'avg'; one of cls, mean"):
        pool(OUTPUT, MASK, "avg")

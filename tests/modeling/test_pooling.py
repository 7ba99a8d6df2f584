"""Pooling on a hidden state whose values can be added up by hand."""

from __future__ import annotations

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mirror.modeling.pooling import pool


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


@pytest.mark.parametrize("mode", ["mean", "first_last_mean"])
def test_each_row_has_its_own_number_of_tokens(mode):
    hidden = torch.tensor([[[2.0], [4.0]], [[5.0], [99.0]], [[99.0], [99.0]]])  # two tokens, one, none
    output = BaseModelOutputWithPooling(last_hidden_state=hidden, hidden_states=(hidden, hidden, hidden))
    assert pool(output, torch.tensor([[1, 1], [1, 0], [0, 0]]), mode).tolist() == [[3.0], [5.0], [0.0]]

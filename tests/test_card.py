"""What the card says of the noise and of the loss."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from mirror.arguments import MirrorArguments
from mirror.card import loss_words, view_words


@pytest.mark.parametrize(
    ("flags", "views", "loss"),
    [
        ({}, "span of 5 characters masked in the second", "nt_xent, temperature 0.04"),
        ({"augmentation": "delete"}, "delete noise at a rate of 0.1 in the second", "nt_xent, temperature 0.04"),
        ({"augment_both_views": True}, "span of 5 characters masked in both", "nt_xent, temperature 0.04"),
        ({"augmentation": "none", "loss": "multi_similarity"}, "text as it is in the second", "multi_similarity"),
        ({"learnable_temperature": True, "loss": "one_way"}, "span of 5 characters masked in the second",
         "one_way, temperature 0.04 at first, then learned"),
    ],
)  # fmt: skip
def test_noise_and_loss_in_words(flags, views, loss):
    settings = asdict(MirrorArguments(**flags))
    assert view_words(settings) == views and loss_words(settings) == loss

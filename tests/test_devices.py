"""Tests that everything is computed on the device of its inputs: another default device, where a mistake shows, changes nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from mirror.cmlm.model import additive_margin_softmax
from mirror.common.vectors import uniformity
from mirror.data.batches import pack
from mirror.modeling.attention import PackedLayout, attend_padded
from mirror.modeling.cpu_kernels import Scores, attend_by_length
from mirror.modeling.dropout import drophead_scale
from mirror.training.losses import info_nce, multi_similarity


def tensors(count: int, *shape: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(count, *shape, device="cpu", generator=torch.Generator("cpu").manual_seed(0)).unbind()


FIRST, SECOND = tensors(2, 6, 5)
BATCH = pack([[5] * length for length in (4, 2, 2, 6)], first_position=0, pad_token_id=0)
LAYOUT = PackedLayout(BATCH["lengths"], BATCH["slots"], BATCH["attention_mask"])
SCALE = torch.tensor([[2.0, 0.0]] * 4)
ROWS = tensors(3, BATCH["input_ids"].shape[1], 2, 3)  # (S, H, d) each

CASES = {
    **{form: partial(info_nce, FIRST, SECOND, 0.1, form) for form in ("nt_xent", "decoupled", "one_way")},
    "multi_similarity": partial(multi_similarity, FIRST, SECOND),
    "additive_margin_softmax": partial(additive_margin_softmax, FIRST, SECOND, 0.3),
    "uniformity": partial(uniformity, FIRST),
    "drophead_scale": partial(drophead_scale, 8, 4, 0.5, torch.device("cpu"), True),
    "attention by length": lambda: attend_by_length(*ROWS, SCALE, LAYOUT.groups, 0.0, Scores(0.6, 3)),
    "padded attention": lambda: attend_padded(*ROWS, SCALE, LAYOUT, 0.0, Scores(0.6, 3)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_no_tensor_lies_on_the_default_device(case):
    torch.manual_seed(0)
    expected = case()
    torch.manual_seed(0)
    with torch.device("meta"):
        result = case()
    assert result.device.type == "cpu" and torch.equal(result, expected)

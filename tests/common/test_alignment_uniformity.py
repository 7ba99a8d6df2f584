"""Alignment and uniformity against values derived by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mirror.common.alignment_uniformity import alignment, uniformity


both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@both_precisions
def test_alignment_by_hand(dtype):
    first = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=dtype)
    second = torch.tensor([[0.0, 5.0], [0.0, 3.0]], dtype=dtype)
    assert alignment(first, second).item() == pytest.approx((2 + 0) / 2)  # squared distances 2 and 0


@both_precisions
def test_uniformity_of_one_pair_by_hand(dtype):
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=dtype)
    assert uniformity(vectors).item() == pytest.approx(-4.0)  # one pair at squared distance 2: log exp(-2 * 2)


def test_uniformity_of_three_pairs_by_hand():
    """Squared distances on the unit circle: 2, 4 and 2."""
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]], dtype=torch.float64)
    assert uniformity(vectors).item() == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3))


def test_uniformity_of_identical_vectors_is_zero():
    assert uniformity(torch.ones(7, 3)).item() == pytest.approx(0, abs=1e-6)
    assert uniformity(torch.ones(7, 3, dtype=torch.float64)).item() == pytest.approx(0)


def test_uniformity_does_not_depend_on_the_blocks():
    vectors = torch.randn(25, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert uniformity(vectors, block_rows=4).item() == pytest.approx(uniformity(vectors).item())


@pytest.mark.parametrize(
    ("given", "returned"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_the_precision_is_that_of_the_vectors_but_at_least_float32(given, returned):
    first = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(given)
    second = first.flip(0)
    with torch.autocast("cpu", torch.bfloat16):
        aligned, uniform = alignment(first, second), uniformity(first)
    assert aligned.dtype == uniform.dtype == returned
    exact = alignment(first.double(), second.double()), uniformity(first.double())
    tolerance = 1e-12 if given == torch.float64 else 1e-5
    assert [aligned.item(), uniform.item()] == pytest.approx([value.item() for value in exact], rel=tolerance)

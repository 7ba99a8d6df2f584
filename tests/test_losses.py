"""InfoNCE against a library, against a double loop over the paper's equation, and across split batches."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import NTXentLoss

from mirror.losses import alignment, info_nce, uniformity


def two_views(rows: int = 6, width: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(rows, width, generator=generator)
    second = first + 0.5 * torch.randn(rows, width, generator=generator)
    return first.requires_grad_(), second.requires_grad_()


@pytest.mark.parametrize("temperature", [0.04, 0.2, 1.0])
def test_nt_xent_is_the_library_s(temperature):
    first, second = two_views()
    loss = info_nce(first, second, temperature)
    gradients = torch.autograd.grad(loss, (first, second))

    labels = torch.arange(len(first)).repeat(2)
    reference = NTXentLoss(temperature)(torch.cat([first, second]), labels)
    expected = torch.autograd.grad(reference, (first, second))

    torch.testing.assert_close(loss, reference)
    assert gradients[0].abs().max() > 1e-4
    torch.testing.assert_close(gradients, expected)


def test_decoupled_is_equation_1():
    first, second = two_views()
    tau, rows = 0.1, len(first)
    views = F.normalize(torch.cat([first, second]), dim=1).tolist()

    def cosine(i: int, j: int) -> float:
        return sum(x * y for x, y in zip(views[i], views[j], strict=True))

    total = 0.0
    for anchor in range(2 * rows):
        twin = (anchor + rows) % (2 * rows)
        negatives = [math.exp(cosine(anchor, j) / tau) for j in range(2 * rows) if j not in (anchor, twin)]
        total -= math.log(math.exp(cosine(anchor, twin) / tau) / sum(negatives))
    assert info_nce(first, second, tau, "decoupled").item() == pytest.approx(total / (2 * rows), rel=1e-5)


def test_one_way_is_cross_entropy_of_the_first_views():
    first, second = two_views()
    logits = F.cosine_similarity(first[:, None], second[None], dim=2) / 0.05
    expected = F.cross_entropy(logits, torch.arange(len(first)))
    torch.testing.assert_close(info_nce(first, second, 0.05, "one_way"), expected)


@pytest.mark.parametrize("form", ["nt_xent", "decoupled", "one_way"])
def test_halves_against_all_are_the_whole(form):
    """What two processes compute with gathered candidates, and DDP then averages."""
    first, second = two_views()
    whole = info_nce(first, second, 0.1, form)
    halves = [
        info_nce(first[rows], second[rows], 0.1, form, all_first=first, all_second=second, offset=rows.start)
        for rows in (slice(0, 3), slice(3, 6))
    ]
    torch.testing.assert_close((halves[0] + halves[1]) / 2, whole)
    gradient = torch.autograd.grad(whole, first, retain_graph=True)[0]
    assert gradient.abs().max() > 1e-4
    torch.testing.assert_close(torch.autograd.grad((halves[0] + halves[1]) / 2, first)[0], gradient)


@pytest.mark.parametrize("form", ["nt_xent", "decoupled", "one_way"])
def test_low_precision_comes_in_and_float32_comes_out(form):
    first, second = two_views()
    with torch.autocast("cpu", torch.bfloat16):
        loss = info_nce(first.bfloat16(), second.bfloat16(), 0.04, form)
    exact = info_nce(first.bfloat16().float(), second.bfloat16().float(), 0.04, form)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact)


def test_alignment_and_uniformity_by_hand():
    first = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    second = torch.tensor([[0.0, 3.0], [0.0, 1.0]])
    assert alignment(first, second).item() == pytest.approx(1.0)  # squared distances 2 and 0
    assert uniformity(first).item() == pytest.approx(-4.0)  # one pair at squared distance 2, log exp(-2 * 2)

"""The loss of the stages that compare texts, against loops that spell them out."""

from __future__ import annotations

import math

import pytest
import torch

from mirror.cmlm.losses import additive_margin_softmax
from mirror.modeling.pooling import pair_features


def vectors(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


def by_loops(sources: torch.Tensor, targets: torch.Tensor, margin: float, scale: float = 1.0) -> float:
    """Eq. (1) of the paper, both directions, one exponential at a time."""
    total = 0.0
    for here, there in ((sources, targets), (targets, sources)):
        for i in range(len(here)):
            true = math.exp(scale * (float(here[i] @ there[i]) - margin))
            others = sum(math.exp(scale * float(here[i] @ there[n])) for n in range(len(there)) if n != i)
            total -= math.log(true / (true + others)) / len(here)
    return total


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
def test_additive_margin_softmax_is_the_double_loop(margin):
    sources, targets = vectors(5, 0), vectors(5, 1)
    expected = by_loops(sources, targets, margin)
    assert additive_margin_softmax(sources, targets, margin).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("margin", "scale"), [(0.0, 1.0), (0.3, 20.0)])
def test_normalized_it_is_the_double_loop_over_cosines(margin, scale):
    sources, targets = vectors(5, 0), vectors(5, 1)
    unit = [texts / texts.norm(dim=1, keepdim=True) for texts in (sources, targets)]
    loss = additive_margin_softmax(3 * sources, targets, margin, scale, normalize=True)
    assert loss.item() == pytest.approx(by_loops(*unit, margin, scale), rel=1e-5)


def test_margin_and_scale_matter_for_cosines_but_hardly_for_large_inner_products():
    """With vectors as long as an encoder's, pairs that are already apart leave Eq. (1) as printed nothing to learn."""
    texts = 10 * torch.eye(16)
    printed = [additive_margin_softmax(texts, texts, margin) for margin in (0.0, 0.3)]
    assert max(printed) < 1e-5
    cosine = {
        (margin, scale): additive_margin_softmax(texts, texts, margin, scale, normalize=True).item()
        for margin in (0.0, 0.3)
        for scale in (1.0, 5.0)
    }
    assert cosine[0.3, 1.0] > cosine[0.0, 1.0] > 1 and cosine[0.3, 5.0] > 2 * cosine[0.0, 5.0]
    assert cosine[0.0, 1.0] > 5 * cosine[0.0, 5.0]


def test_two_pairs_by_hand():
    """Inner products 1 for a pair and 0 across: each of four anchors loses log(1 + e^(margin - 1)), summed over directions."""
    eye = torch.eye(2)
    expected = 2 * math.log(1 + math.exp(0.3 - 1))
    assert additive_margin_softmax(eye, eye, 0.3).item() == pytest.approx(expected, rel=1e-6)


def test_the_scores_are_inner_products_not_cosines():
    sources, targets = vectors(5, 0), vectors(5, 1)
    assert additive_margin_softmax(3 * sources, targets, 0.3) != pytest.approx(
        additive_margin_softmax(sources, targets, 0.3).item(), rel=0.05
    )


@pytest.mark.parametrize(("scale", "normalize"), [(1.0, False), (20.0, True)])
def test_local_rows_against_all_add_up_to_the_joint_loss(scale, normalize):
    sources, targets = vectors(6, 0), vectors(6, 1)
    halves = [
        additive_margin_softmax(sources[part], targets[part], 0.3, scale, normalize, sources, targets, part.start)
        for part in (slice(0, 3), slice(3, 6))
    ]
    joint = additive_margin_softmax(sources, targets, 0.3, scale, normalize)
    assert (halves[0] + halves[1]).item() / 2 == pytest.approx(joint.item(), rel=1e-6)


def test_half_precision_vectors_give_a_float32_loss():
    sources, targets = 10 * vectors(5, 0), 10 * vectors(5, 1)
    loss = additive_margin_softmax(sources.bfloat16(), targets.bfloat16(), 0.3)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(
        by_loops(sources.bfloat16().float(), targets.bfloat16().float(), 0.3), rel=1e-4
    )


def test_pair_features_by_hand():
    features = pair_features(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]]))
    assert features.tolist() == [[1, 2, 3, -1, 2, 3, 3, -2]]

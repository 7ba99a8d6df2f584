"""InfoNCE against a library, against a double loop over the paper's equation, and across split batches."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import MultiSimilarityLoss, NTXentLoss
from pytorch_metric_learning.miners import TripletMarginMiner

from mirror.training.losses import InfoNCE, Matryoshka, info_nce, multi_similarity
from tests.processes import run_two_processes


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


FORMS = [partial(info_nce, temperature=0.1, form=form) for form in ("nt_xent", "decoupled", "one_way")]


@pytest.mark.parametrize("compute", [*FORMS, partial(info_nce, temperature=0.1, hardness=5.0), multi_similarity])
def test_halves_against_all_are_the_whole(compute):
    """What two processes compute with gathered candidates, and DDP then averages."""
    first, second = two_views(12)
    whole = compute(first, second)
    one, other = (
        compute(first[rows], second[rows], all_first=first, all_second=second, offset=rows.start)
        for rows in (slice(0, 6), slice(6, 12))
    )
    torch.testing.assert_close((one + other) / 2, whole)
    gradient = torch.autograd.grad(whole, first, retain_graph=True)[0]
    assert gradient.abs().max() > 1e-4
    torch.testing.assert_close(torch.autograd.grad((one + other) / 2, first)[0], gradient)


@pytest.mark.parametrize("compute", [*FORMS, multi_similarity])
def test_low_precision_comes_in_and_float32_comes_out(compute):
    first, second = (view.bfloat16() for view in two_views(12))
    with torch.autocast("cpu", torch.bfloat16):
        loss = compute(first, second)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, compute(first.float(), second.float()))


def test_multi_similarity_is_the_library_s():
    first, second = two_views(12)
    loss = multi_similarity(first, second)
    gradients = torch.autograd.grad(loss, (first, second))

    views, labels = torch.cat([first, second]), torch.arange(12).repeat(2)
    triplets = TripletMarginMiner(margin=0.2, type_of_triplets="all")(views, labels)
    reference = MultiSimilarityLoss(alpha=1, beta=60, base=0.5)(views, labels, triplets)
    expected = torch.autograd.grad(reference, (first, second))

    assert 0 < len(triplets[0]) < 24 * 22  # some are mined, not all
    torch.testing.assert_close(loss, reference)
    assert gradients[0].abs().max() > 1e-4
    torch.testing.assert_close(gradients, expected)


def test_multi_similarity_by_hand():
    """One hard triplet for each anchor: the loss is that of its twin and of the one near negative."""
    first = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    second = torch.tensor([[0.6, 0.8], [1.0, 0.0]])  # each view lies on the other text's other view
    twin, near, far = 0.6, 1.0, 0.6  # cosines of every anchor; both negatives are within the margin

    positive = math.log(1 + math.exp(0.5 - twin))
    negative = math.log(1 + math.exp(60 * (near - 0.5)) + math.exp(60 * (far - 0.5))) / 60
    assert multi_similarity(first, second).item() == pytest.approx(positive + negative, rel=1e-5)


def test_multi_similarity_of_well_separated_twins_is_nothing():
    first = torch.eye(3).requires_grad_()
    loss = multi_similarity(first, torch.eye(3))
    assert loss.item() == 0 and torch.autograd.grad(loss, first)[0].abs().max() == 0


def test_multi_similarity_of_vectors_that_add_up_to_nothing_is_a_number():
    assert multi_similarity(torch.eye(3), -torch.eye(3)).isfinite()


def test_without_a_hard_triplet_the_loss_still_depends_on_the_candidates():
    """Or this process would skip the backward pass of their gathering, in which the others wait for it."""
    views = torch.eye(2)
    gathered = views.clone().requires_grad_()
    loss = multi_similarity(views, views, all_first=gathered, all_second=views)
    loss.backward()
    assert loss == 0 and gathered.grad is not None and not gathered.grad.any()


@pytest.mark.slow
def test_a_process_without_a_hard_triplet_joins_every_collective(tmp_path):
    run_two_processes("-m", "tests.training.gathered_multi_similarity", str(tmp_path))
    without, with_triplets = (float((tmp_path / f"loss-{rank}").read_text()) for rank in (0, 1))
    assert without == 0 and with_triplets > 0


def by_double_loop(first, second, tau, form, alpha) -> float:
    """InfoNCE (decoupled: Eq. (1)) with hardness, one pair at a time."""
    rows = len(first)
    views = [*first.tolist(), *second.tolist()]

    def cosine(one: list[float], other: list[float]) -> float:
        product = sum(x * y for x, y in zip(one, other, strict=True))
        return product / math.sqrt(sum(x * x for x in one) * sum(y * y for y in other))

    total = 0.0
    anchors = range(rows) if form == "one_way" else range(2 * rows)
    candidates = range(rows, len(views)) if form == "one_way" else range(len(views))
    for anchor in anchors:
        twin = (anchor + rows) % (2 * rows)
        positive = math.exp(cosine(views[anchor], views[twin]) / tau)
        denominator = 0.0 if form == "decoupled" else positive
        for other in candidates:
            if other not in (anchor, twin):
                similarity = cosine(views[anchor], views[other])
                denominator += math.exp(similarity / tau + alpha * similarity)
        total -= math.log(positive / denominator)
    return total / len(anchors)


@pytest.mark.parametrize("form", ["nt_xent", "one_way", "decoupled"])
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_the_forms_and_hardness_are_a_double_loop(form, alpha):
    first, second = (view.detach().double() for view in two_views())
    loss = info_nce(first, second, 0.2, form, hardness=alpha)
    assert loss.item() == pytest.approx(by_double_loop(first, second, 0.2, form, alpha), rel=1e-12)
    plain = info_nce(first, second, 0.2, form).item()
    assert (loss.item() == pytest.approx(plain)) == (alpha == 0)


@pytest.mark.parametrize("form", ["nt_xent", "one_way"])
def test_the_gradient_of_the_forms(form):
    """Without hardness, whose cosine is a constant to the gradient but not to finite differences."""
    views = tuple(view.detach().double().requires_grad_() for view in two_views(4))
    assert torch.autograd.gradcheck(lambda a, b: info_nce(a, b, 0.2, form), views)


def test_hardness_is_the_library_s():
    """sentence-transformers' `hardness_strength`, value and gradient, for pairs."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    first, second = two_views()
    library = MultipleNegativesRankingLoss(None, 20.0, hardness_mode="all_negatives", hardness_strength=9.0)
    expected = library.compute_loss_from_embeddings([first, second], None)
    ours = info_nce(first, second, 0.05, "one_way", hardness=9.0)
    torch.testing.assert_close(ours, expected)
    gradients = [torch.autograd.grad(loss, (first, second)) for loss in (ours, expected)]
    assert gradients[0][0].abs().max() > 1e-4
    torch.testing.assert_close(*gradients)


def test_dimensions_are_the_sum_over_the_first_coordinates():
    """As `MatryoshkaLoss` adds them up, all of them included, with the gradient of `MultipleNegativesRankingLoss`."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    first, second = two_views()
    loss = Matryoshka(InfoNCE(0.05, "one_way"), (2, 3), width=5)(first, second)
    library = MultipleNegativesRankingLoss(None, 20.0)
    parts = [[F.normalize(view[:, :d], dim=1) for view in (first, second)] for d in (2, 3, 5)]
    expected = sum(library.compute_loss_from_embeddings(part, None) for part in parts)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, first), torch.autograd.grad(expected, first))


def test_multi_similarity_of_one_triplet_is_nothing_as_in_the_library():
    from pytorch_metric_learning.miners import TripletMarginMiner

    views = torch.randn(4, 2, generator=torch.Generator().manual_seed(13))
    triplets = TripletMarginMiner(margin=0.2, type_of_triplets="all")(views, torch.tensor([0, 1, 0, 1]))
    assert [len(index) for index in triplets] == [1, 1, 1]
    assert multi_similarity(views[:2], views[2:]) == 0

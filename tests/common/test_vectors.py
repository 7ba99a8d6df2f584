"""Unit length, alignment and uniformity, and nearest neighbors, against values derived by hand and the full matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mirror.common import vectors
from mirror.common.errors import InputError
from mirror.common.vectors import alignment, uniformity


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alignment_by_hand(dtype):
    first = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=dtype)
    second = torch.tensor([[0.0, 5.0], [0.0, 3.0]], dtype=dtype)
    assert alignment(first, second).item() == pytest.approx((2 + 0) / 2)  # squared distances 2 and 0


def test_uniformity_of_three_pairs_by_hand():
    """Squared distances on the unit circle: 2, 4 and 2."""
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]], dtype=torch.float64)
    assert uniformity(vectors).item() == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3))


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
    exact = alignment(first.double(), second.double()), uniformity(first.double(), block_rows=4)
    tolerance = 1e-12 if given == torch.float64 else 1e-5
    assert [aligned.item(), uniform.item()] == pytest.approx([value.item() for value in exact], rel=tolerance)


def random_vectors(rows: int, seed: int, width: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def by_sorting(queries: np.ndarray, entries: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the full matrix in float64, sorted stably: equal scores by lowest index."""
    scores = queries.astype(np.float64) @ entries.astype(np.float64).T
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("block_bytes", [1, 4096, 1 << 28])
def test_blocks_of_any_size_give_the_full_matrix_answer(block_bytes):
    queries, entries = random_vectors(37, 0), random_vectors(501, 1)
    scores, indices = vectors.top_k(queries, entries, 10, block_bytes)
    np.testing.assert_array_equal(indices, by_sorting(queries, entries, 10))
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ entries.T, indices, axis=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block_bytes", [1, 1 << 28])
def test_equal_entries_come_by_lowest_index_also_at_the_last_place(block_bytes):
    entries = np.tile(random_vectors(3, 2), (40, 1))  # 120 entries, 40 of each: many more equals than places
    scores, indices = vectors.top_k(entries[:3], entries, 5, block_bytes)
    for row in range(3):
        np.testing.assert_array_equal(indices[row], row + 3 * np.arange(5))
    assert (scores == scores[:, :1]).all()


def test_there_are_never_more_neighbors_than_entries():
    scores, indices = vectors.top_k(random_vectors(2, 0), random_vectors(3, 1), 10)
    assert scores.shape == indices.shape == (2, 3)


def test_the_full_matrix_is_never_held(monkeypatch):
    largest = 0
    original = vectors._lowest_index_top_k

    def watched(scores, k):
        nonlocal largest
        largest = max(largest, scores.numel() * scores.element_size())
        return original(scores, k)

    monkeypatch.setattr(vectors, "_lowest_index_top_k", watched)
    vectors.top_k(random_vectors(100, 0), random_vectors(5000, 1), 3, block_bytes=200_000)
    assert 0 < largest <= 200_000 < 100 * 5000 * 4


def test_unit_length_leaves_a_zero_row_alone():
    np.testing.assert_allclose(vectors.unit_length(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0.0, 0.0]])


def test_ranks_by_hand_with_ties():
    scores = np.array([[0.1, 0.9, 0.9, 0.5], [0.2, 0.2, 0.2, 0.2]])
    np.testing.assert_array_equal(vectors.ranks_in_scores(scores, np.array([2, 3])), [2, 4])
    np.testing.assert_array_equal(vectors.ranks_in_scores(scores, np.array([0, 0])), [4, 1])


def test_gold_ranks_agree_with_top_k():
    queries, entries = random_vectors(20, 5), random_vectors(60, 6)
    gold = np.arange(20) * 3
    ranks = vectors.gold_ranks(queries, entries, gold, block_bytes=2000)
    order = vectors.top_k(queries, entries, 60)[1]
    np.testing.assert_array_equal(order[np.arange(20), ranks - 1], gold)
    assert len(set(ranks)) > 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unit_length_of_very_small_and_very_large_rows(dtype):
    ordinary = np.random.default_rng(0).normal(size=(7, 5)).astype(dtype)
    alone = vectors.unit_length(ordinary)
    for scale in (1e-40, 1e-30, 1e-22, 1e-10, 1.0, 1e10, 1e25, 1e37):
        rows = np.concatenate([ordinary, (ordinary * scale).astype(dtype), np.zeros((1, 5), dtype)])
        exact = rows.astype(np.longdouble)
        exact /= np.maximum(np.sqrt((exact**2).sum(axis=1, keepdims=True)), np.finfo(np.longdouble).tiny)
        for out in (None, rows.copy()):
            found = vectors.unit_length(rows if out is None else out, out=out)
            np.testing.assert_allclose(found, exact.astype(dtype), rtol=1e-5, atol=1e-7)
            np.testing.assert_array_equal(found[:7], alone)  # bit for bit
            assert not found[-1].any() and (out is None or found is out)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_has_no_rank(value):
    good = np.eye(3, dtype=np.float32)
    bad = good.copy()
    bad[1, 2] = value
    for queries, entries, kind in ((bad, good, "query"), (good, bad, "entry")):
        with pytest.raises(InputError, match=f"the vector of {kind} 1 is not finite"):
            vectors.gold_ranks(queries, entries, np.arange(3))
    scores = np.array([[0.1, 0.2], [0.3, np.nan]])
    with pytest.raises(InputError, match="a score of row 1 is NaN"):
        vectors.ranks_in_scores(scores, np.array([0, 0]))

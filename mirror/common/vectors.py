"""Unit length, alignment and uniformity, and exact nearest neighbors of vectors.

The similarity of neighbors is the inner product. For cosines pass vectors of unit length. The full matrix of scores is never in
memory: blocks of queries are compared with blocks of entries, and only the best entries are kept.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
import xxhash
from torch import Tensor

from mirror.common.cli import at_least
from mirror.common.errors import InputError


DEFAULT_BLOCK_BYTES = 256 << 20
MARGIN = 8  # candidates beyond k, so that float32 rounding does not decide which are the best k


def unit_length(vectors: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of (N, D) scaled to length 1, in `out` (such as `vectors`) if given. A zero row stays zero."""
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))  # np.linalg.norm would store all squares
    limits = np.finfo(vectors.dtype)
    # The squares of very small and very large numbers are lost, so those rows are scaled by their largest number first.
    far = np.flatnonzero((norms < limits.tiny**0.4) | (norms > limits.max**0.4))
    rows = vectors[far].astype(np.float64)
    rows /= np.maximum(np.abs(rows).max(axis=1, keepdims=True, initial=0), np.finfo(np.float64).tiny)
    unit = np.divide(vectors, np.maximum(norms, limits.tiny)[:, None], out=out)
    unit[far] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 0.5)  # 1 or more, but 0 for a zero row
    return unit


def unit_tensor(vectors: Tensor) -> Tensor:
    """Return the rows of (N, D) scaled to length 1, differentiable, in float32 or, for float64 vectors, float64."""
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=1)


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean squared distance of two times (N, D) on the unit sphere (Wang & Isola 2020, alpha = 2).

    It is between 0 and 4, a scalar in float32 or, for float64 vectors, float64. Lower means closer.
    """
    return (unit_tensor(first) - unit_tensor(second)).square().sum(dim=1).mean()


def uniformity(vectors: Tensor, block_rows: int = 1024) -> Tensor:
    """Return the log of the mean of exp(-2 |x - y|^2) over all pairs of (N, D) on the unit sphere (Wang & Isola 2020, t = 2).

    It is 0 if all vectors are equal. Lower is more even, about -4 for an even distribution in many dimensions.
    """
    unit = unit_tensor(vectors)
    with torch.autocast(vectors.device.type, enabled=False):
        # |x - y|^2 is 2 - 2 cos. A vector with itself adds exp(0) = 1, which is subtracted again.
        total = sum((4 * (block @ unit.T) - 4).exp().sum() for block in unit.split(block_rows))
    return ((total - len(unit)) / (len(unit) * (len(unit) - 1))).log()


def top_k(
    queries: np.ndarray, entries: np.ndarray, k: int, block_bytes: int = DEFAULT_BLOCK_BYTES
) -> tuple[np.ndarray, np.ndarray]:
    """Find the `k` entries with the highest inner product for each query, best first, equal ones by lowest index.

    Args:
        queries, entries: (Q, D) and (N, D) float32.
        block_bytes: approximate memory of the search beyond its inputs.

    Returns:
        scores (Q, k) float32 and indices (Q, k) int64, where k is at most N. A k below 1 is an `InputError`.
    """
    at_least(1)("k", k)
    k = min(k, len(entries))
    if not k or not len(queries):
        return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    distinct, groups = distinct_rows(entries)
    entries = entries[distinct] if len(distinct) < len(entries) else entries
    wanted = min(k + MARGIN, len(entries))
    queries, entries = torch.from_numpy(queries), torch.from_numpy(entries)
    # Candidates come from float32 products. Their order and scores come from float64 products of the candidates alone.
    candidates = torch.cat([_candidates(block, entries, wanted, block_bytes) for block in queries.split(8192)])
    scores = torch.empty(candidates.shape)  # filled in place: small results between large ones would fragment the heap
    rows = max(1, min(128, block_bytes // (24 * entries.shape[1] * wanted)))  # three copies of the candidates
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        ordered = candidates[block].sort(dim=1).values
        exact = (entries[ordered].double() * queries[block, None].double()).sum(dim=2)  # (q, wanted)
        order = exact.argsort(dim=1, descending=True, stable=True)
        scores[block], candidates[block] = exact.gather(1, order).float(), ordered.gather(1, order)
    return _repeat_equals(scores.numpy(), candidates.numpy(), distinct, groups, k)


def mean_top_k(queries: np.ndarray, entries: np.ndarray, k: int, block_bytes: int = DEFAULT_BLOCK_BYTES) -> np.ndarray:
    """Return each query's mean similarity to its `k` nearest entries, (Q,): the term r of CSLS (Conneau et al. 2018)."""
    return top_k(queries, entries, k, block_bytes)[0].mean(axis=1)


def gold_ranks(
    queries: np.ndarray, entries: np.ndarray, gold: np.ndarray, block_bytes: int = DEFAULT_BLOCK_BYTES
) -> np.ndarray:
    """Return the rank, from 1, of entry `gold[q]` of (N, D) for each query of (Q, D), (Q,). Ties: by lowest index.

    Raises an `InputError` for a vector that is not finite.
    """
    for kind, vectors in (("query", queries), ("entry", entries)):
        if len(bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
            raise InputError(f"the vector of {kind} {bad[0]} is not finite, so nothing can be ranked with it")
    distinct, groups = distinct_rows(entries)
    columns = entries[distinct].T  # (D, U)
    rows = max(1, block_bytes // (16 * len(entries)))
    blocks = [slice(start, start + rows) for start in range(0, len(queries), rows)]
    return np.concatenate([ranks_in_scores((queries[block] @ columns)[:, groups], gold[block]) for block in blocks])


def ranks_in_scores(scores: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return the rank, from 1, of column `gold[q]` in row q of `scores` (Q, N), as (Q,). Ties rank by lowest index.

    Raises an `InputError` for a score that is NaN.
    """
    if len(bad := np.flatnonzero(np.isnan(scores).any(axis=1))):
        raise InputError(f"a score of row {bad[0]} is NaN, so its answer has no rank")
    of_gold = scores[np.arange(len(gold)), gold][:, None]
    earlier = np.arange(scores.shape[1]) < gold[:, None]
    return 1 + ((scores > of_gold) | ((scores == of_gold) & earlier)).sum(axis=1)


def distinct_rows(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first index of each distinct row of (N, D), (U,) ascending, and the group that each row belongs to, (N,)."""
    # Equal entries are searched once: a matrix product rounds equal columns differently at different places of a block.
    digests = np.fromiter((xxhash.xxh3_128_digest(row) for row in vectors), dtype="S16", count=len(vectors))
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    by_index = first.argsort()
    return first[by_index], by_index.argsort()[group]


def _candidates(queries: Tensor, entries: Tensor, wanted: int, block_bytes: int) -> Tensor:
    """Return the indices of the best entries, (q, wanted), from blocks of scores of at most about `block_bytes`."""
    columns = max(wanted, block_bytes // (8 * len(queries)))
    best, indices = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(entries), columns):
        scores = queries @ entries[start : start + columns].T  # (q, columns)
        block_best, block_indices = _lowest_index_top_k(scores, min(wanted, scores.shape[1]))
        # Earlier candidates have lower indices, and a stable sort keeps them first.
        best, order = torch.cat([best, block_best], dim=1).sort(dim=1, descending=True, stable=True)
        indices = torch.cat([indices, block_indices + start], dim=1).gather(1, order)
        best, indices = best[:, :wanted], indices[:, :wanted]
    return indices


def _lowest_index_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return `scores.topk(k)` of (q, n) with ties broken by lowest index."""
    best, indices = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    shared = ((best[:, k - 1] == best[:, -1]) & (best.shape[1] > k)).nonzero()[:, 0]  # topk chose among their ties
    indices = indices[:, :k].clone()
    for row in shared.tolist():
        last = best[row, k - 1]
        above = int((best[row] > last).sum())
        indices[row, above:] = (scores[row] == last).nonzero()[: k - above, 0]
    indices = indices.sort(dim=1).values
    best, order = scores.gather(1, indices).sort(dim=1, descending=True, stable=True)
    return best, indices.gather(1, order)


def _repeat_equals(
    scores: np.ndarray, indices: np.ndarray, distinct: np.ndarray, groups: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best `k` after expanding each of (Q, c) distinct entries to all entries equal to it."""
    if len(distinct) == len(groups):
        return scores[:, :k], indices[:, :k]
    ends = np.bincount(groups).cumsum()[:-1]
    members = np.split(np.argsort(groups, kind="stable"), ends)  # of each group, ascending
    all_scores, all_indices = np.empty((len(scores), k), scores.dtype), np.empty((len(scores), k), indices.dtype)
    for query, found in enumerate(indices):
        equals = [members[group][:k] for group in found]
        repeated = np.repeat(scores[query], [len(group) for group in equals])
        order = np.lexsort((np.concatenate(equals), -repeated))[:k]
        all_scores[query], all_indices[query] = repeated[order], np.concatenate(equals)[order]
    return all_scores, all_indices

"""Exact nearest neighbours in bounded memory. Knows vectors; knows nothing of texts, tasks or models.

Similarity is the inner product; for cosines pass vectors of unit length (`unit_length`). The full matrix of scores is
never in memory: blocks of queries are compared with blocks of entries, and only the best are kept.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
import xxhash
from torch import Tensor


DEFAULT_BLOCK_BYTES = 256 << 20
QUERIES_AT_ONCE = 8192
MARGIN = 8  # candidates beyond k, so that float32 rounding does not decide which are the best k
FAISS = importlib.util.find_spec("faiss") is not None


def unit_length(vectors: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Rows of (N, D) scaled to length 1; a zero row stays zero.

    Args:
        out: where to write them, for example `vectors` itself where a second copy would be large; default: a new array.
    """
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))  # np.linalg.norm would store all squares
    return np.divide(vectors, np.maximum(norms, np.finfo(vectors.dtype).tiny)[:, None], out=out)


def top_k(
    queries: np.ndarray,
    entries: np.ndarray,
    k: int,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    use_faiss: bool = FAISS,
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` entries with the highest inner product for each query, best first, equal ones by lowest index.

    Candidates come from float32 products, by faiss or torch; their order and scores from float64 products of the candidates
    alone, so both give the same result.

    Args:
        queries: (Q, D) float32.
        entries: (N, D) float32.
        k: at most N are returned.
        block_bytes: about how much memory the search may use beyond its inputs.

    Returns:
        scores (Q, k) float32 and indices (Q, k) int64.
    """
    k = min(k, len(entries))
    if not k or not len(queries):
        return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    distinct, groups = distinct_rows(entries)
    if len(distinct) < len(entries):
        entries = entries[distinct]
    wanted = min(k + MARGIN, len(entries))
    find = _faiss_candidates if use_faiss else _torch_candidates
    queries, entries = torch.from_numpy(queries), torch.from_numpy(entries)
    candidates = torch.cat([find(block, entries, wanted, block_bytes) for block in queries.split(QUERIES_AT_ONCE)])
    scores = torch.empty(candidates.shape)  # filled in place: small results between large ones would split the heap
    rows = max(1, min(128, block_bytes // (24 * entries.shape[1] * wanted)))  # three copies of the candidates
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        scores[block], candidates[block] = _rescore(queries[block], entries, candidates[block])
    return _repeat_equals(scores.numpy(), candidates.numpy(), distinct, groups, k)


def mean_top_k(queries: np.ndarray, entries: np.ndarray, k: int, block_bytes: int = DEFAULT_BLOCK_BYTES) -> np.ndarray:
    """(Q,) mean similarity of each query to its `k` nearest entries: the hubness term r of CSLS (Conneau et al. 2018)."""
    return top_k(queries, entries, k, block_bytes)[0].mean(axis=1)


def gold_ranks(
    queries: np.ndarray, entries: np.ndarray, gold: np.ndarray, block_bytes: int = DEFAULT_BLOCK_BYTES
) -> np.ndarray:
    """(Q,) rank, from 1, of entry `gold[q]` among all entries for query q; equal entries are ranked by lowest index.

    Args:
        queries: (Q, D) float32.
        entries: (N, D) float32.
        gold: (Q,) indices into `entries`.
    """
    distinct, groups = distinct_rows(entries)
    columns = entries[distinct].T  # (D, U)
    rows = max(1, block_bytes // (16 * len(entries)))
    blocks = [slice(start, start + rows) for start in range(0, len(queries), rows)]
    return np.concatenate([ranks_in_scores((queries[block] @ columns)[:, groups], gold[block]) for block in blocks])


def ranks_in_scores(scores: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """(Q,) rank, from 1, of column `gold[q]` in row q of `scores` (Q, N); equal columns are ranked by lowest index."""
    of_gold = scores[np.arange(len(gold)), gold][:, None]
    earlier = np.arange(scores.shape[1]) < gold[:, None]
    return 1 + ((scores > of_gold) | ((scores == of_gold) & earlier)).sum(axis=1)


def distinct_rows(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First index of each distinct row of (N, D), as (U,) ascending, and which of these each row equals, as (N,).

    A matrix product rounds a column differently at different positions of a block, so equal entries would get unequal
    scores; searched once, they get the same.
    """
    digests = np.fromiter((xxhash.xxh3_128_digest(row) for row in vectors), dtype="S16", count=len(vectors))
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    by_index = first.argsort()
    return first[by_index], by_index.argsort()[group]


def _torch_candidates(queries: Tensor, entries: Tensor, wanted: int, block_bytes: int) -> Tensor:
    """(q, wanted) indices of the best entries, from blocks of scores of at most about `block_bytes`."""
    columns = max(wanted, block_bytes // (8 * len(queries)))
    best, indices = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(entries), columns):
        scores = queries @ entries[start : start + columns].T  # (q, columns)
        block_best, block_indices = _lowest_index_top_k(scores, min(wanted, scores.shape[1]))
        # Earlier candidates have lower indices, and a stable sort keeps them first.
        best = torch.cat([best, block_best], dim=1)
        indices = torch.cat([indices, block_indices + start], dim=1)
        order = best.argsort(dim=1, descending=True, stable=True)[:, :wanted]
        best, indices = best.gather(1, order), indices.gather(1, order)
    return indices


def _faiss_candidates(queries: Tensor, entries: Tensor, wanted: int, block_bytes: int) -> Tensor:
    import faiss

    more = min(wanted + 1, len(entries))
    scores, indices = (
        torch.from_numpy(array)
        for array in faiss.knn(queries.numpy(), entries.numpy(), more, metric=faiss.METRIC_INNER_PRODUCT)
    )
    # With a tie for the last place faiss may return any of the equal entries; only those rows are searched again.
    shared = (scores[:, wanted - 1] == scores[:, -1]).nonzero()[:, 0] if more > wanted else torch.empty(0).long()
    indices = indices[:, :wanted]
    if len(shared):
        indices[shared] = _torch_candidates(queries[shared], entries, wanted, block_bytes)
    return indices


def _lowest_index_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` of (q, n) with ties broken by lowest index."""
    more = min(k + 1, scores.shape[1])
    best, indices = scores.topk(more, dim=1)
    shared = best[:, k - 1] == best[:, -1] if more > k else torch.zeros(len(scores), dtype=torch.bool)
    best, indices = best[:, :k], indices[:, :k].clone()
    for row in shared.nonzero()[:, 0].tolist():  # topk chose arbitrarily among the tied entries
        above = int((best[row] > best[row, -1]).sum())
        indices[row, above:] = (scores[row] == best[row, -1]).nonzero()[: k - above, 0]
    by_index = indices.argsort(dim=1)
    best, indices = best.gather(1, by_index), indices.gather(1, by_index)
    by_score = best.argsort(dim=1, descending=True, stable=True)
    return best.gather(1, by_score), indices.gather(1, by_score)


def _rescore(queries: Tensor, entries: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates (q, c) and their scores, sorted by float64 products, equal ones by lowest index."""
    candidates = candidates.sort(dim=1).values
    exact = (entries[candidates].double() * queries[:, None].double()).sum(dim=2)  # (q, c)
    order = exact.argsort(dim=1, descending=True, stable=True)
    return exact.gather(1, order).float(), candidates.gather(1, order)


def _repeat_equals(
    scores: np.ndarray, indices: np.ndarray, distinct: np.ndarray, groups: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best `k` of (Q, c) distinct entries after expanding each to all entries equal to it."""
    if len(distinct) == len(groups):
        return scores[:, :k], indices[:, :k]
    members = np.split(
        np.argsort(groups, kind="stable"), np.bincount(groups).cumsum()[:-1]
    )  # of each group, ascending
    all_scores, all_indices = np.empty((len(scores), k), scores.dtype), np.empty((len(scores), k), indices.dtype)
    for query, found in enumerate(indices):
        equals = [members[group][:k] for group in found]
        repeated = np.repeat(scores[query], [len(group) for group in equals])
        order = np.lexsort((np.concatenate(equals), -repeated))[:k]
        all_scores[query], all_indices[query] = repeated[order], np.concatenate(equals)[order]
    return all_scores, all_indices

"""Texts that are held out of training, chosen by their hashes: no text is on both sides."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from datasets import Dataset, IterableDataset

from mirror.common.errors import InputError
from mirror.data.corpus import READ_ROWS, Corpus


DEFAULT_COUNT = 1000
LARGEST_SHARE = 0.1  # of the corpus, where no number was asked for
SMALLEST_COUNT = 50  # fewer say nothing


def hold_out(corpus: Corpus, count: int | None = None) -> tuple[Corpus, Dataset | None]:
    """Take `count` distinct texts out of the corpus: those with the lowest hashes.

    Args:
        corpus: a stream gives the lowest hashes of its first 10 `count` rows.
        count: default: 1,000, at most a tenth of the corpus, and none of a corpus below 500 rows. 0: none.

    Returns:
        The corpus without these texts, in either column, and their rows; None if there are none.

    Raises:
        InputError: the corpus has not more than `count` texts.
    """
    if count == 0:
        return corpus, None
    rows = corpus.rows
    if isinstance(rows, IterableDataset):
        rows = Dataset.from_list(list(rows.take(10 * (count or DEFAULT_COUNT))))
    hashes = np.stack([_hashes(rows, column) for column in rows.column_names], axis=1)  # (N, columns)
    distinct, first = np.unique(hashes[:, 0], return_index=True)
    if count is None:
        count = min(DEFAULT_COUNT, int(LARGEST_SHARE * len(distinct)))
        if count < SMALLEST_COUNT:
            return corpus, None
    if count >= len(distinct):
        raise InputError(f"--validation_samples {count}: the corpus has only {len(distinct):,} distinct texts")
    chosen = distinct[:count]
    if isinstance(corpus.rows, IterableDataset):
        rest = corpus.rows.filter(_is_for_training, fn_kwargs={"held_out": frozenset(chosen.tolist())})
    else:
        rest = rows.select(np.flatnonzero(~np.isin(hashes, chosen).any(axis=1)))
    return replace(corpus, rows=rest, held_out_rows=count), rows.select(np.sort(first[:count]))


def _hashes(rows: Dataset, column: str) -> np.ndarray:
    """(N,) uint64."""
    batches = rows.select_columns([column]).iter(batch_size=READ_ROWS)
    return np.array([_hash(text) for batch in batches for text in batch[column]], dtype=np.uint64)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _is_for_training(row: dict[str, str], held_out: frozenset[int]) -> bool:
    return not any(_hash(text) in held_out for text in row.values())

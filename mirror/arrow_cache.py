"""The cache of `datasets`, whose files are noticed when they were cut off, and made again.

They are Arrow streams. One that a power cut or a full disk cut off fails to open or, where the cut is between two batches of
rows, opens as a shorter one; but only a whole one closes with the end mark. Changed bytes inside a file are not noticed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
from datasets import Dataset, IterableDataset


logger = logging.getLogger(__name__)

END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream


def load_dataset(*args, **options) -> Dataset | IterableDataset:
    """`datasets.load_dataset` of one split, made again where what the cache holds was cut off."""

    def load(afresh: bool) -> Dataset | IterableDataset:
        mode = {"download_mode": "reuse_cache_if_exists"} if afresh else {}  # downloads are kept
        return datasets.load_dataset(*args, **options, **mode)

    return _whole(load)


def map_rows(rows: Dataset | IterableDataset, function: Callable, **options) -> Dataset | IterableDataset:
    """`rows.map(function, ...)`, made again where what the cache holds was cut off."""
    if isinstance(rows, IterableDataset):
        return rows.map(function, **options)
    return _whole(lambda afresh: rows.map(function, **options, load_from_cache_file=False if afresh else None))


def _whole(make: Callable[[bool], Dataset | IterableDataset]) -> Dataset | IterableDataset:
    try:
        rows = make(False)
        files = [] if isinstance(rows, IterableDataset) else [Path(file["filename"]) for file in rows.cache_files]
        cut = [str(path) for path in files if not _has_end(path)]
    except (OSError, pa.ArrowInvalid) as error:
        if type(error) not in (OSError, pa.ArrowInvalid):  # a file that is missing, or the network
            raise
        cut = [" ".join(str(error).split())[:120]]
    if not cut:
        return rows
    logger.warning("a file of the datasets cache was cut off and is made again (%s)", ", ".join(cut))
    return make(True)


def _has_end(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(END_MARK)))
        return file.read() == END_MARK

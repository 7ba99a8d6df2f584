"""The cache of `datasets`: maps are found again by their code and parameters, and truncated files are written again.

Cache files are Arrow streams. One that was truncated by a power cut or a full disk fails to open or, where the cut is between
two batches of rows, opens as a shorter one; but only a complete one closes with the end mark. Changed bytes inside a file are
not noticed.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
from datasets import Dataset, IterableDataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from mirror.common.errors import one_line


logger = logging.getLogger(__name__)

END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream


def load_dataset(*args, **options) -> Dataset | IterableDataset:
    """`datasets.load_dataset` of one split; truncated cache files are written again."""

    def load(afresh: bool) -> Dataset | IterableDataset:
        mode = {"download_mode": "reuse_cache_if_exists"} if afresh else {}  # downloads are kept
        return datasets.load_dataset(*args, **options, **mode)

    return _retry_truncated(load)


def map_rows(
    rows: Dataset | IterableDataset, function: Callable, calls: tuple[Callable, ...] = (), **options
) -> Dataset | IterableDataset:
    """`rows.map(function, ...)`; truncated cache files are written again.

    The cache file is found by the content of the rows, the source code and the parameters. `datasets` itself would identify
    a function of a module by its name, and find the rows of an older version of its code.

    Args:
        function: a function of a module.
        calls: functions and classes of other modules whose code the result depends on too.
    """
    if isinstance(rows, IterableDataset):
        return rows.map(function, **options)
    key = cache_key(rows, (function, *calls), options)
    return _retry_truncated(
        lambda afresh: rows.map(
            function, **options, new_fingerprint=key, load_from_cache_file=False if afresh else None
        )
    )


def cache_key(rows: Dataset, code: tuple[Callable, ...], options: dict) -> str:
    """Fingerprint of a map: the rows, the source of the modules of `code`, and the options that change the result."""
    modules = [inspect.getsource(sys.modules[item.__module__]) for item in code]
    parameters = {key: value for key, value in options.items() if key not in ("desc", "num_proc", "fn_kwargs")}
    arguments = {
        key: tokenizer_state(value) if isinstance(value, PreTrainedTokenizerBase) else value
        for key, value in options.get("fn_kwargs", {}).items()
    }
    return Hasher.hash((rows._fingerprint, code[0].__qualname__, modules, parameters, arguments))


def tokenizer_state(tokenizer: PreTrainedTokenizerBase) -> str:
    """What token ids depend on: truncation and padding, which earlier calls leave in a tokenizer, are not part of it."""
    if not tokenizer.is_fast:
        return Hasher.hash(tokenizer)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return Hasher.hash((type(tokenizer).__name__, {**state, "truncation": None, "padding": None}))


def _retry_truncated(make: Callable[[bool], Dataset | IterableDataset]) -> Dataset | IterableDataset:
    try:
        rows = make(False)
        files = [] if isinstance(rows, IterableDataset) else [Path(file["filename"]) for file in rows.cache_files]
        truncated = [str(path) for path in files if not _has_end(path)]
    except (OSError, pa.ArrowInvalid) as error:
        if type(error) not in (OSError, pa.ArrowInvalid):  # a file that is missing, or the network
            raise
        truncated = [one_line(error, 120)]
    if not truncated:
        return rows
    logger.warning("a file of the datasets cache is truncated and is written again (%s)", ", ".join(truncated))
    return make(True)


def _has_end(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(END_MARK)))
        return file.read() == END_MARK

"""The cache of `datasets`: maps are found again by their code and parameters, and truncated files are written again.

Cache files are Arrow streams. One that was truncated by a power cut or a full disk fails to open or, where the cut is between
two batches of rows, opens as a shorter one; but only a complete one closes with the end mark. Changed bytes inside a file are
not noticed.
"""

from __future__ import annotations

import errno
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

from mirror.common.errors import InputError, one_line
from mirror.common.tokenizer_state import tokenizer_state


logger = logging.getLogger(__name__)

TRUNCATED = (OSError, pa.ArrowInvalid, json.JSONDecodeError)  # exactly these types; subclasses mean something else
END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream


def load_dataset(*args, **options) -> Dataset | IterableDataset:
    """`datasets.load_dataset` of one split; truncated cache files are written again."""

    def load(afresh: bool) -> Dataset | IterableDataset:
        if afresh:
            _remove_damaged_infos()
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


def _retry_truncated(make: Callable[[bool], Dataset | IterableDataset]) -> Dataset | IterableDataset:
    try:
        rows = make(False)
        files = [] if isinstance(rows, IterableDataset) else [Path(file["filename"]) for file in rows.cache_files]
        truncated = [str(path) for path in files if not _has_end(path)]
    except (OSError, pa.ArrowInvalid, json.JSONDecodeError) as error:
        _explain_read_only(error)
        if type(error) not in TRUNCATED or getattr(error, "errno", None):  # a file that is missing, or the network
            raise
        if isinstance(error, json.JSONDecodeError) and not _damaged_infos():  # it is the user's file
            raise
        truncated = [one_line(error, 120)]
    if not truncated:
        return rows
    logger.warning("a file of the datasets cache is truncated and is written again (%s)", ", ".join(truncated))
    return make(True)


def _explain_read_only(error: Exception) -> None:
    """
    Raises:
        InputError: `error` is that the cache cannot be written.
    """
    cache = str(datasets.config.HF_DATASETS_CACHE)
    if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS) and cache in str(error):
        raise InputError(
            f"the datasets cache {cache} cannot be written ({error.strerror}); set HF_DATASETS_CACHE to another folder"
        ) from error


def _remove_damaged_infos() -> None:
    for path in _damaged_infos():
        path.unlink()


def _damaged_infos() -> list[Path]:
    """Descriptions of cached datasets that are no JSON, with which `datasets` opens none of them again."""
    return [path for path in Path(datasets.config.HF_DATASETS_CACHE).rglob("dataset_info.json") if not _is_json(path)]


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def _has_end(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(END_MARK)))
        return file.read() == END_MARK

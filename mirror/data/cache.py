"""The cache of `datasets`: rows of files are found again by content, maps by their code and parameters.

Cache files are Arrow streams. A file that was truncated by a power failure or a full disk fails to open or, if the cut is between
two batches of rows, opens as a shorter one. Only a complete file ends with the end mark; others are written again. Changed bytes are not detected.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import datasets
import pyarrow as pa
from datasets import Dataset, IterableDataset
from datasets.fingerprint import Hasher, generate_random_fingerprint, get_temporary_cache_files_directory
from transformers import PreTrainedTokenizerBase

from mirror.common.errors import InputError, one_line
from mirror.common.files import atomic_write_text, digest, file_digest
from mirror.data.files import LEFT_OUT, log_left_out, reading


logger = logging.getLogger(__name__)

BATCH_ROWS = 1000
BATCH_CHARACTERS = 1 << 24
TRUNCATED = "a file of the datasets cache is truncated and is written again (%s)"
END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream


def load_dataset(*args, **options) -> Dataset | IterableDataset:
    """Call `datasets.load_dataset` for one split. Truncated cache files are written again.

    The rows of a local folder are found again by the content of its files. `datasets` would go by path and time.
    """
    if (folder := Path(args[0])).is_dir() and not options.get("streaming"):
        content = digest_of_files(folder, sorted(path for path in folder.rglob("*") if path.is_file()))
        options["cache_dir"] = str(Path(datasets.config.HF_DATASETS_CACHE) / "mirror-folders" / content)

    def load(afresh: bool) -> Dataset | IterableDataset:
        where = {name: value for name, value in options.items() if name not in ("split", "streaming")}
        builder = datasets.load_dataset_builder(*args, **where)
        # Rows with `type` and `payload` would be read as the trace of an agent, without their other columns.
        mode = {"parse_agent_traces": False} if hasattr(builder.config, "parse_agent_traces") else {}
        mode |= {"download_mode": "reuse_cache_if_exists"} if afresh else {}  # downloads are kept
        return datasets.load_dataset(*args, **options, **mode)

    return _retry_truncated(load)


def stored_rows(
    path: Path,
    generate: Callable[[], Iterable[list[str]]],
    columns: Sequence[str],
    arguments: object,
    modules: Sequence[ModuleType],
) -> Dataset:
    """Return the rows of strings that `generate()` makes of a file. They are written once, as a file of the cache.

    The cache file is identified by the content of the file, the columns, the arguments and the source of the modules.
    """
    sources = [inspect.getsource(module) for module in modules]
    before = path.stat()
    key = Hasher.hash((digest_of_files(path.parent, [path]), list(columns), arguments, sources))
    place = Path(datasets.config.HF_DATASETS_CACHE) / "mirror-texts" / f"{key}.arrow"
    note = place.with_suffix(".txt")  # what was left out, to warn of it again
    # A process id would not keep two containers apart that share the folder.
    temporary = place.with_name(f"_{key}.{uuid.uuid4().hex}.tmp")
    LEFT_OUT.pop(path, None)  # of what the file was before
    with reading(str(path)):
        place.parent.mkdir(parents=True, exist_ok=True)
        is_stored = place.is_file() and _has_end(place)
        if place.is_file() and not is_stored:
            logger.warning(TRUNCATED, place)
        if not is_stored:
            try:
                with temporary.open("wb") as file, pa.ipc.new_stream(file, text_schema(columns)) as writer:
                    for batch in arrow_batches(generate(), columns):
                        writer.write_batch(batch)
                after = path.stat()
                if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                    raise InputError(f"{path} changed while it was read; run the same command again")
                if path in LEFT_OUT:
                    atomic_write_text(note, LEFT_OUT[path])
                temporary.replace(place)
            finally:
                temporary.unlink(missing_ok=True)
        if note.is_file():
            LEFT_OUT[path] = note.read_text(encoding="utf-8")
            log_left_out(path)
    rows = Dataset.from_file(str(place))
    rows._fingerprint = key  # `from_file` takes the time of the file, which says nothing about the rows
    return rows


def arrow_batches(rows: Iterable[list[str]], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows of strings as batches: a thousand rows, or fewer if they are long."""
    schema, batch, size = text_schema(columns), [], 0
    for row in chain(rows, [None]):
        if row is not None:
            batch.append(row)
            size += len(row[0])
        if batch and (row is None or len(batch) == BATCH_ROWS or size > BATCH_CHARACTERS):
            yield pa.record_batch([pa.array(cells, pa.string()) for cells in zip(*batch, strict=True)], schema=schema)
            batch, size = [], 0


def text_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of columns of strings."""
    return pa.schema([(name, pa.string()) for name in columns])


def digest_of_files(folder: Path, paths: Iterable[Path]) -> str:
    """Return a digest of the content of files, and of their names in the folder."""
    return digest([(str(path.relative_to(folder)), file_digest(path)) for path in paths])


def map_rows(
    rows: Dataset | IterableDataset,
    function: Callable,
    calls: tuple[Callable, ...] = (),
    user_function: Callable | None = None,
    **options,
) -> Dataset | IterableDataset:
    """Call `rows.map(function, ...)`. Truncated cache files are written again.

    The cache file is identified by the content of the rows, the source code and the parameters.

    `function` is one of a module. The result also depends on the modules of `calls`, and on the `user_function`: if that
    cannot be hashed, nothing is cached, and the rows are made in one process, because it cannot be sent to others either.
    """
    if isinstance(rows, IterableDataset):
        return rows.map(function, **options)
    try:
        content = [content_of(user_function)] if user_function else []
    except Exception as error:  # pickling fails with as many types as there are objects
        name = getattr(user_function, "__name__", type(user_function).__name__)
        logger.warning("The rows made by %s are not cached: it cannot be hashed (%s)", name, one_line(error, 120))
        options |= {"num_proc": None, "load_from_cache_file": False}
        # `datasets` removes this folder when the process ends.
        place = Path(get_temporary_cache_files_directory()) / f"cache-{generate_random_fingerprint()}.arrow"
        return rows.map(function, **options, new_fingerprint=generate_random_fingerprint(), cache_file_name=str(place))
    # `datasets` identifies a function of a module by its name, so it would find the rows of an older version of the code.
    modules = [inspect.getsource(sys.modules[item.__module__]) for item in (function, *calls)]
    parameters = {key: value for key, value in options.items() if key not in ("desc", "num_proc", "fn_kwargs")}
    arguments = {
        key: tokenizer_state(value) if isinstance(value, PreTrainedTokenizerBase) else value
        for key, value in options.get("fn_kwargs", {}).items()
    }
    key = Hasher.hash((rows._fingerprint, function.__qualname__, modules, parameters, arguments, *content))
    options["new_fingerprint"] = key
    return _retry_truncated(lambda new: rows.map(function, **options, load_from_cache_file=False if new else None))


def content_of(function: Callable) -> str:
    """Return a hash of a user's function: its code, what it closes over, and the source of its module if it has one.

    Not included: modules that it imports. Raises an exception of any type if the function cannot be pickled.
    """
    # A function of a script or notebook, a lambda and a closure are hashed by their code and the globals that they
    # use. The name of a function of a module would be all that is hashed of it.
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    module = getattr(inner, "__module__", None) or type(inner).__module__
    try:
        source = inspect.getsource(sys.modules[module]) if module != "__main__" else ""
    except (OSError, TypeError, KeyError):  # built in, or defined where there is no file
        source = ""
    return Hasher.hash((function, source))


def tokenizer_state(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return class, vocabulary, rules and settings of a tokenizer as a string to hash."""
    if tokenizer.is_fast:
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        # Earlier calls leave their truncation and padding in a tokenizer. They do not change the ids of a text.
        state |= {"truncation": tokenizer.truncation_side, "padding": None, "mask": tokenizer.mask_token_id}
        return repr((type(tokenizer).__name__, state))
    with TemporaryDirectory() as folder:  # a tokenizer in Python has no state to ask for but the files that it saves
        tokenizer.save_pretrained(folder)
        return repr([(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())])


def _retry_truncated(make: Callable[[bool], Dataset | IterableDataset]) -> Dataset | IterableDataset:
    try:
        rows = make(False)
        files = [] if isinstance(rows, IterableDataset) else [Path(file["filename"]) for file in rows.cache_files]
        truncated = [str(path) for path in files if not _has_end(path)]
    except json.JSONDecodeError as error:  # of a user's file, or of a description in the cache, which is not named
        fix = f"if your files are right, delete the dataset_info.json cut in {datasets.config.HF_DATASETS_CACHE}"
        raise InputError(f"not JSON ({one_line(error)}); {fix}") from error
    except (OSError, pa.ArrowInvalid) as error:
        # Subclasses of these mean something else: a missing file, or the network.
        if type(error) not in (OSError, pa.ArrowInvalid) or getattr(error, "errno", None):
            raise
        truncated = [one_line(error, 120)]
    if not truncated:
        return rows
    logger.warning(TRUNCATED, ", ".join(truncated))
    return make(True)


def _has_end(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(END_MARK)))
        return file.read() == END_MARK

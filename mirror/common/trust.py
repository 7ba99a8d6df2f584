"""Policy for untrusted models: safetensors only, no remote code, and nothing that makes a library allocate without end.

Every loader of this project uses it. Only the command line can allow more, through `grant`. A recipe or a checkpoint cannot.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from transformers.utils import cached_file

from mirror.common.errors import InputError


logger = logging.getLogger(__name__)

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
MAX_COUNT = 500_000  # labels or layers, for each of which transformers makes an entry before anything is checked
MAX_GROWTH = 100  # of the length of a text by the replacements of a tokenizer
_granted = {"allow_pickle": False, "trust_remote_code": False}


def grant(allow_pickle: bool = False, trust_remote_code: bool = False) -> None:
    """Set what the command line allows, for all models that this process loads from now on."""
    _granted.update(allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)


def remote_code() -> dict[str, bool]:
    """Return the arguments for `from_pretrained` of a configuration or a tokenizer."""
    return {"trust_remote_code": _granted["trust_remote_code"]}


def weights() -> dict[str, bool | None]:
    """Return the arguments for `from_pretrained` of weights."""
    return {**remote_code(), "use_safetensors": None if _granted["allow_pickle"] else True}


def check_weights(name_or_path: str, subfolder: str = "") -> None:
    """Raise an `InputError` if weights exist only as a pickle. With --allow_pickle, log a warning instead.

    Even then transformers unpickles only tensors (`torch.load(weights_only=True)`).
    """
    if any(model_file(name_or_path, name, subfolder) for name in SAFE_WEIGHTS):
        return
    if not any(model_file(name_or_path, name, subfolder) for name in PICKLED_WEIGHTS):
        return
    place = f"{name_or_path}/{subfolder}" if subfolder else name_or_path
    if not _granted["allow_pickle"]:
        reason = f"{place}: the weights are a pickle (.bin), a format that can run code"
        raise InputError(f"{reason}; convert them to safetensors, or pass --allow_pickle if you trust their author")
    logger.warning("%s: reading a pickle (--allow_pickle); safetensors cannot run code", place)


def model_file(name_or_path: str, filename: str, subfolder: str = "") -> str | None:
    """Return the local path of a file of a model, downloaded from the Hub if necessary. None: it does not exist.

    Raises an OSError if the name is neither a folder nor a valid Hub id.
    """
    silent = ("missing_entries", "connection_errors", "gated_repo")
    options = {f"_raise_exceptions_for_{what}": False for what in silent}
    return cached_file(name_or_path, filename, subfolder=subfolder, **options)


def weights_bytes(name_or_path: str, subfolder: str = "") -> int | None:
    """Return the size of the stored weights in bytes. None: there are no weights."""
    for name in (SAFE_WEIGHTS[0], PICKLED_WEIGHTS[0], SAFE_WEIGHTS[1], PICKLED_WEIGHTS[1]):
        if path := model_file(name_or_path, name, subfolder):
            if name.endswith(".json"):  # its `total_size` may be anything
                shards = set(json.loads(Path(path).read_text(encoding="utf-8"))["weight_map"].values())
                found = (model_file(name_or_path, shard, subfolder) for shard in shards)
                return sum(Path(shard).stat().st_size for shard in found if shard)
            return Path(path).stat().st_size
    return None


def check_counts(name_or_path: str, config: dict) -> None:
    """Refuse a config.json, as JSON reads it, with more labels or layers than any model has."""
    for key, value in (item for mapping in _mappings(config) for item in mapping.items()):
        if type(value) is int and value > MAX_COUNT and (key == "num_labels" or "layer" in key):
            most = f"more than the {MAX_COUNT:,} that are allowed"
            raise InputError(f"{name_or_path}: its config.json has {key} {value:,}, {most}")


def check_normalizer(name_or_path: str, tokenizer: dict) -> None:
    """Refuse a tokenizer.json, as JSON reads it, whose replacements make a text longer without end."""
    # Each step multiplies what the one before it made, and Rust ends the process where memory does.
    growth = 1.0
    for step in _mappings(tokenizer.get("normalizer")):
        if step.get("type") == "ByteLevel":
            growth *= 2
        if step.get("type") == "Replace":
            ((kind, pattern),) = step["pattern"].items()
            # A regular expression that matches nothing inserts the content between all characters.
            matched, kept = (len(pattern), 0) if kind == "String" and pattern else (1, _matches_nothing(pattern))
            growth *= max(1.0, len(step["content"]) / matched + kept)
    if growth > MAX_GROWTH:
        makes = f"the normalizer of its tokenizer.json makes texts up to {growth:,.0f} times as long"
        raise InputError(f"{name_or_path}: {makes}, more than the {MAX_GROWTH} times that are allowed")


def _matches_nothing(pattern: str) -> bool:
    try:
        return bool(re.match(pattern, ""))
    except re.error:  # of another dialect
        return True


def _mappings(content: object) -> Iterator[dict]:
    """Yield all mappings in the content of a JSON file."""
    if isinstance(content, dict):
        yield content
        content = list(content.values())
    for value in content if isinstance(content, list) else ():
        yield from _mappings(value)

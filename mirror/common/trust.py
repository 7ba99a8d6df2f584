"""Policy for untrusted models: safetensors only, no remote code.

Every loader of this project uses it. Only the command line can allow more, through `grant`. A recipe or a checkpoint cannot.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from transformers.utils import cached_file

from mirror.common.errors import InputError


logger = logging.getLogger(__name__)

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
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
            if name.endswith(".json"):
                return json.loads(Path(path).read_text(encoding="utf-8"))["metadata"]["total_size"]
            return Path(path).stat().st_size
    return None

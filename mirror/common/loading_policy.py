"""Policy for untrusted models: safetensors only, no remote code.

Only the command line can allow more, through `grant`; a recipe or a checkpoint cannot. Every loader of this project uses it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from transformers.utils import cached_file

from mirror.common.errors import InputError


logger = logging.getLogger(__name__)

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass
class Trust:
    allow_pickle: bool = False
    trust_remote_code: bool = False


_trust = Trust()


def grant(allow_pickle: bool = False, trust_remote_code: bool = False) -> None:
    """Set what the command line allows, for all models that this process loads from now on."""
    _trust.allow_pickle, _trust.trust_remote_code = allow_pickle, trust_remote_code


def remote_code() -> dict[str, bool]:
    """Arguments for `from_pretrained` of a configuration or a tokenizer."""
    return {"trust_remote_code": _trust.trust_remote_code}


def weights() -> dict[str, bool | None]:
    """Arguments for `from_pretrained` of weights."""
    return {**remote_code(), "use_safetensors": None if _trust.allow_pickle else True}


def check_weights(name_or_path: str, subfolder: str = "") -> None:
    """Refuse weights that exist only as a pickle; with --allow_pickle, warn.

    Even then transformers unpickles only tensors (`torch.load(weights_only=True)`).

    Raises:
        InputError
    """
    if _has(name_or_path, subfolder, SAFE_WEIGHTS) or not _has(name_or_path, subfolder, PICKLED_WEIGHTS):
        return
    place = f"{name_or_path}/{subfolder}" if subfolder else name_or_path
    if not _trust.allow_pickle:
        raise InputError(
            f"{place}: the weights are a pickle (.bin), a format that can run code; convert them to safetensors, "
            "or pass --allow_pickle if you trust their author"
        )
    logger.warning("%s: reading a pickle (--allow_pickle); safetensors cannot run code", place)


def model_file(name_or_path: str, filename: str, subfolder: str = "") -> str | None:
    """Local path of a file of a model, downloaded from the Hub if necessary; None if it does not exist.

    Raises:
        OSError: the name is neither a folder nor a valid Hub id.
    """
    quietly = {
        f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors", "gated_repo")
    }
    return cached_file(name_or_path, filename, subfolder=subfolder, **quietly)


def weights_bytes(name_or_path: str, subfolder: str = "") -> int | None:
    """Size of the weights as stored; None if there are none."""
    for name in (SAFE_WEIGHTS[0], PICKLED_WEIGHTS[0]):
        if path := model_file(name_or_path, name, subfolder):
            return Path(path).stat().st_size
    for name in (SAFE_WEIGHTS[1], PICKLED_WEIGHTS[1]):
        if path := model_file(name_or_path, name, subfolder):
            return json.loads(Path(path).read_text(encoding="utf-8"))["metadata"]["total_size"]
    return None


def _has(name_or_path: str, subfolder: str, names: tuple[str, ...]) -> bool:
    return any(model_file(name_or_path, name, subfolder) for name in names)

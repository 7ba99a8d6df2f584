"""What a model from a stranger may do in this process: hand over tensors, and nothing else.

Only the command line can allow more, through `grant`: a recipe and a checkpoint cannot. Every loader of this project asks here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from transformers.utils import cached_file

from mirror.errors import InputError


logger = logging.getLogger(__name__)

FLAGS = {
    "allow_pickle": "Also read weights that are a pickle (.bin) only. Of the command line, never of a recipe.",
    "trust_remote_code": "Run the Python code that a model brings along. Of the command line, never of a recipe.",
}
SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass
class Trust:
    allow_pickle: bool = False
    trust_remote_code: bool = False


_trust = Trust()


def grant(allow_pickle: bool = False, trust_remote_code: bool = False) -> None:
    """What the command line allows, for all models that this process loads from now on."""
    _trust.allow_pickle, _trust.trust_remote_code = allow_pickle, trust_remote_code


def remote_code() -> dict[str, bool]:
    """For a `from_pretrained` of a configuration or a tokenizer."""
    return {"trust_remote_code": _trust.trust_remote_code}


def weights() -> dict[str, bool | None]:
    """For a `from_pretrained` of weights."""
    return {**remote_code(), "use_safetensors": None if _trust.allow_pickle else True}


def check_weights(name_or_path: str, subfolder: str = "") -> None:
    """Refuse weights that are there as a pickle only, and warn of them with --allow_pickle.

    Even then transformers unpickles tensors only (`torch.load(weights_only=True)`); a safe format needs no such promise.

    Raises:
        InputError
    """
    if _has(name_or_path, subfolder, SAFE_WEIGHTS) or not _has(name_or_path, subfolder, PICKLED_WEIGHTS):
        return
    place = f"{name_or_path}/{subfolder}" if subfolder else name_or_path
    if not _trust.allow_pickle:
        raise InputError(
            f"{place}: the weights are a pickle (.bin), a format that can run code; convert them to safetensors, "
            "or pass --allow_pickle if you trust their maker"
        )
    logger.warning("%s: reading a pickle, as --allow_pickle says; safetensors would be safe from anyone", place)


def _has(name_or_path: str, subfolder: str, names: tuple[str, ...]) -> bool:
    quietly = {
        f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors", "gated_repo")
    }
    return any(cached_file(name_or_path, name, subfolder=subfolder, **quietly) for name in names)

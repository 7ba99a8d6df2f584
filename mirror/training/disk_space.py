"""A full disk: said before the training if it is foreseeable, and in one line that names the disk if it happens."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError
from torch import nn

from mirror.common.distributed import describe_peer_failure
from mirror.common.errors import InputError, one_line
from mirror.training.manifest import describe_last


logger = logging.getLogger(__name__)

SAVE_ERRORS = (OSError, SafetensorError, RuntimeError)  # torch.save reports a full disk as a RuntimeError
RUST_ERROR = "(os error "  # tokenizers raises a plain Exception
LITTLE_SPACE = 50e6  # bytes


def needed_bytes(model: nn.Module) -> int:
    """Size of a checkpoint (weights, and two moments of every weight that is trained) and of the encoder at the end."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return weights + 2 * trained + weights


def warn_of_little_space(folder: str | Path, model: nn.Module) -> None:
    """Say before the training that the disk has no room for a checkpoint and the encoder."""
    needed, free = needed_bytes(model), shutil.disk_usage(folder).free
    if free < needed:
        logger.warning(
            "%s has %s left, but a checkpoint and the encoder at the end need about %s: free some space, or choose another "
            "--output_dir",
            _disk_of(folder),
            _megabytes(free),
            _megabytes(needed),
        )


def raise_save_error(error: Exception, folder: str | Path, run_dir: str | Path) -> NoReturn:
    """
    Raises:
        InputError: what could not be saved, why, and which checkpoint is left.
        Exception: `error` itself, where it does not come from writing.
    """
    of_writing = isinstance(error, SAVE_ERRORS) or RUST_ERROR in str(error)
    if not of_writing or (isinstance(error, RuntimeError) and describe_peer_failure(error)):
        raise error
    reason = one_line(error, 200)
    if is_full_disk(error, run_dir):
        reason = f"{_disk_of(run_dir)} is full, {_megabytes(shutil.disk_usage(run_dir).free)} are left"
    raise InputError(f"cannot save {folder}: {reason}; {describe_last(run_dir)}") from error


def is_full_disk(error: Exception, folder: str | Path) -> bool:
    """Libraries that write files themselves do not always say so."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOSPC
    return shutil.disk_usage(folder).free < LITTLE_SPACE


def _disk_of(folder: str | Path) -> str:
    place = Path(folder).resolve()
    while not os.path.ismount(place):
        place = place.parent
    return f"the disk of {folder} (mounted at {place})"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"

"""Checkpoints of a run on the disk: which one to resume from, which to delete, and what a failed save means."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError
from torch import nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from mirror.common.distributed import describe_peer_failure
from mirror.common.errors import InputError, one_line
from mirror.common.reuse import MANIFEST, is_complete


logger = logging.getLogger(__name__)

AUTO = "auto"
IDENTITY = "run_identity.json"  # what a run is, in each of its checkpoints
SAVE_ERRORS = (OSError, SafetensorError, RuntimeError)  # torch.save reports a full disk as a RuntimeError
RUST_ERROR = "(os error "  # tokenizers raises a plain Exception
LITTLE_SPACE = 50e6  # bytes


def find_checkpoint(asked: str | bool | None, output_dir: str | Path) -> str | None:
    """Return the checkpoint folder that `--resume_from_checkpoint` means. None where nothing is asked for.

    `asked` is a folder, True for the newest complete checkpoint of `output_dir`, or "auto" for the same or None.
    """
    if not asked:
        return None
    if asked in (True, AUTO):
        found = last_complete_checkpoint(output_dir)
        if found is None and asked is True:
            raise InputError(f"--resume_from_checkpoint: no checkpoint in {output_dir}; leave it out to start anew")
        return found
    if not Path(asked).is_dir():
        raise InputError(f"--resume_from_checkpoint {asked} is not a folder; give a folder checkpoint-N, or true")
    if not (Path(asked) / IDENTITY).exists() and (inside := numbered_checkpoints(asked)):
        raise InputError(f"--resume_from_checkpoint {asked} holds checkpoints and is none; give {inside[max(inside)]}")
    if not is_complete(asked):
        raise InputError(
            f"--resume_from_checkpoint {asked} is incomplete: its {MANIFEST}, or files that it lists, are missing or damaged"
        )
    return str(asked)


def last_complete_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest complete checkpoint of a run. Skip later incomplete ones with a warning."""
    for _, path in sorted(numbered_checkpoints(output_dir).items(), reverse=True):
        if is_complete(path):
            return str(path)
        logger.warning("%s is incomplete (its save was interrupted, or files are missing or damaged); skipped", path)
    return None


def numbered_checkpoints(output_dir: str | Path) -> dict[int, Path]:
    """Return the folders `checkpoint-N` of a run by their steps."""
    return {
        int(match[1]): path
        for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)) and path.is_dir()
    }


def rotate(output_dir: str | Path, limit: int | None, protected: Collection[str | None], step: int) -> None:
    """Delete the oldest checkpoints of a run, but none that is `protected`, until `limit` are left (0: no limit).

    They are ordered by step and not by time, because clocks go back. Those of later steps than the newest one's are of a
    run that was overwritten, or left behind by going back, so they are the oldest.
    """
    numbered = numbered_checkpoints(output_dir)
    oldest_first = sorted(numbered, key=lambda number: (number <= step, number))
    free = [numbered[number] for number in oldest_first if str(numbered[number]) not in protected]
    surplus = len(numbered) - limit if limit and limit > 0 else 0
    for path in free[: max(0, surplus)]:
        shutil.rmtree(path, ignore_errors=True)


def warn_of_little_space(folder: str | Path, model: nn.Module) -> None:
    """Warn before training if the disk has no room for a checkpoint and the encoder."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    needed = 2 * weights + 2 * trained  # a checkpoint, with two moments of every trained weight, and the encoder
    free = shutil.disk_usage(folder).free
    if free < needed:
        needs = f"a checkpoint and the encoder at the end need about {_megabytes(needed)}"
        message = "%s has %s left, but %s: free some space, or choose another --output_dir"
        logger.warning(message, _disk_of(folder), _megabytes(free), needs)


def raise_save_error(error: Exception, folder: str | Path, run_dir: str | Path) -> NoReturn:
    """Raise an `InputError` that says why a save failed and what is left, or `error` where it is not of writing."""
    of_writing = isinstance(error, SAVE_ERRORS) or RUST_ERROR in str(error)
    if not of_writing or (isinstance(error, RuntimeError) and describe_peer_failure(error)):
        raise error
    reason = one_line(error, 200)
    if is_full_disk(error, run_dir):
        reason = f"{_disk_of(run_dir)} is full, {_megabytes(shutil.disk_usage(run_dir).free)} are left"
    last = last_complete_checkpoint(run_dir)
    left = f"the last complete checkpoint is {last}" if last else "there is no earlier complete checkpoint"
    raise InputError(f"cannot save {folder}: {reason}; {left}") from error


def is_full_disk(error: Exception, folder: str | Path) -> bool:
    """Return whether a full disk caused an error. Libraries that write files themselves do not always say so."""
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

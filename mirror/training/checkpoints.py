"""Checkpoints of a run on the disk: saved when a signal stops it, found to resume from, deleted, and what a failed save means."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import nn
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from mirror.common.distributed import describe_peer_failure, exit_process, world_size
from mirror.common.errors import InputError, one_line
from mirror.common.files import MANIFEST, is_complete


logger = logging.getLogger(__name__)

AUTO = "auto"
IDENTITY = "run_identity.json"  # what a run is, in each of its checkpoints
SAVE_ERRORS = (OSError, SafetensorError, RuntimeError)  # torch.save reports a full disk as a RuntimeError
RUST_ERROR = "(os error "  # tokenizers raises a plain Exception
LITTLE_SPACE = 50e6  # bytes
SIGNALS = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name))


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
        what = f"its {MANIFEST}, or files that it lists, are missing or damaged"
        raise InputError(f"--resume_from_checkpoint {asked} is incomplete: {what}")
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
    names = {Path(path).name for path in protected if path}  # not paths: ./out and out are one folder
    free = [numbered[number] for number in oldest_first if numbered[number].name not in names]
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


class StopOnSignal(TrainerCallback):
    """Save a checkpoint after the current step, then exit with 128 + the number of the signal, as a shell reports it.

    The processes of a run receive a signal at different steps, so after each step they agree whether any of them has.
    Before the first step there is nothing to save, and signals do what they do elsewhere.
    """

    def __init__(self):
        self.received = self.agreed = 0
        self.previous: dict[int, object] = {}
        # One tensor for the whole run. A new one at each step would be freed by gloo's thread, which needs the
        # interpreter's lock; at the end of the run the interpreter holds it while it waits for that thread.
        self.flag: torch.Tensor | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.received = self.agreed = 0
        self.flag = torch.zeros((), dtype=torch.int32, device=args.device)

    def on_step_begin(self, args, state, control, **kwargs):
        if self.previous or threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            # Ignored: nohup, and the background jobs of a shell. None: a handler that Python does not know.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self.previous[number] = signal.signal(number, self._request)

    def on_step_end(self, args, state, control, **kwargs):
        self.agreed = self.received
        if world_size() > 1:
            self.flag.fill_(self.received)
            dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
            self.agreed = int(self.flag)
        control.should_save = control.should_save or bool(self.agreed)

    def on_save(self, args, state, control, **kwargs):
        if not self.agreed:
            return
        self.restore()
        if state.is_world_process_zero:
            name, step, last = signal.Signals(self.agreed).name, state.global_step, state.max_steps
            advice = "continue with the same command and --resume_from_checkpoint true"
            logger.warning("stopped by %s after step %d of %d, which is saved; %s", name, step, last, advice)
        exit_process(128 + self.agreed)

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        while self.previous:
            signal.signal(*self.previous.popitem())

    def _request(self, number: int, frame) -> None:
        if not self.received:  # a step can take long; logging is not safe in a signal handler
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: finishing this step and saving, then the run ends\n".encode())
        self.received = number


def outlast_signals(then: Callable[[int], None] | None, worker: int) -> None:
    """Ignore signals in a worker of the data loader, which the run needs for its step. A second SIGTERM ends it."""
    for number in SIGNALS[1:]:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    if then is not None:
        then(worker)

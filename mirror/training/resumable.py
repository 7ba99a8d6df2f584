"""Crash-safe checkpoints and SIGTERM handling.

A checkpoint gets a manifest, the list of its files and their sizes, after its last file; training resumes only from a folder
that matches its manifest. A save that was killed, a full disk and a half-deleted folder all fail that check. An interruption
thus costs the steps since the last complete checkpoint, and SIGTERM costs none. transformers' --enable_jit_checkpoint saves on
SIGTERM too, but its processes do not agree on the step, and it exits with status 0.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints

from mirror.common.atomic_files import atomic_path
from mirror.common.distributed import describe_peer_failure, exit_process, world_size
from mirror.common.errors import InputError, one_line


logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SAVE_ERRORS = (OSError, SafetensorError, RuntimeError)  # torch.save reports a full disk as a RuntimeError
LITTLE_SPACE = 50e6  # bytes
TERMINATED = 128 + signal.SIGTERM  # the exit status by which a shell and Slurm know a process that SIGTERM ended


class ResumableTrainer(Trainer):
    """A `Trainer` that can be stopped at any moment: complete checkpoints only, and a clean exit after SIGTERM."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.was_complete = False  # whether `train` resumed from the last step, and so had nothing to do
        self.add_callback(StopIfComplete())
        self.add_callback(StopOnSigterm())
        self.add_callback(FiniteGradients())

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        """As in transformers; but resuming from the last step trains nothing, where transformers would train one more."""
        try:
            return super().train(resume_from_checkpoint, **kwargs)
        except RunIsComplete:
            self.was_complete = True
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self._load_best_model()
        losses = [entry["loss"] for entry in self.state.log_history if "loss" in entry]
        metrics = {"epoch": self.state.epoch} | ({"train_loss": sum(losses) / len(losses)} if losses else {})
        return TrainOutput(self.state.global_step, metrics.get("train_loss"), metrics)

    def get_train_dataloader(self) -> DataLoader:
        """As in transformers; its workers survive a SIGTERM that all processes of a job receive (Slurm, `timeout`)."""
        loader = super().get_train_dataloader()
        bare = getattr(loader, "base_dataloader", loader)  # inside accelerate's
        bare.worker_init_fn = partial(ignore_first_sigterm, bare.worker_init_fn)
        return loader

    def _save_checkpoint(self, model, trial) -> None:
        """As in transformers, then the manifest, and only then are older checkpoints deleted.

        Raises:
            InputError: the disk is full or cannot be written; what was saved before is still there.
        """
        run_dir = self._get_output_dir(trial=trial)
        folder = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)  # of an earlier run that was at this step
        self.accelerator.wait_for_everyone()
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                write_manifest(folder)
        except SAVE_ERRORS as error:
            raise_save_error(error, folder, run_dir)
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            rotate_checkpoints(run_dir, limit, self.state.best_model_checkpoint, use_mtime=True)


class RunIsComplete(Exception):
    """The checkpoint to resume from is that of the last step."""


class StopIfComplete(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if 0 < state.max_steps <= state.global_step:
            raise RunIsComplete


def raise_save_error(error: Exception, folder: str | Path, run_dir: str) -> NoReturn:
    """
    Raises:
        InputError: what could not be saved, why, and which checkpoint is left.
    """
    if isinstance(error, RuntimeError) and describe_peer_failure(error):
        raise error
    reason = one_line(error, 200)
    free = shutil.disk_usage(run_dir).free
    if free < LITTLE_SPACE:
        reason = f"the disk is full, {free / 1e6:.0f} MB are left ({reason})"
    raise InputError(f"cannot save {folder}: {reason}; {_describe_last(run_dir)}") from error


class FiniteGradients(TrainerCallback):
    """Stops a run before a gradient that is not finite reaches the weights; in fp16 the gradient scaler skips the step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if args.fp16:
            return
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        # Either is finite only if all gradients are. A CPU sums in half the time of a norm; a GPU has one kernel for many norms.
        on_cpu = gradients[0].device.type == "cpu"
        total = sum(g.sum() for g in gradients) if on_cpu else torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(total):
            raise InputError(
                f"the gradient is not finite at step {state.global_step + 1}; try --bf16 false, a lower --learning_rate "
                "or a higher --temperature"
            )


class StopOnSigterm(TrainerCallback):
    """SIGTERM (Slurm, spot machines, `docker stop`): a checkpoint after the step in work, then exit status 143.

    The processes of a run receive the signal at different steps, so after each step they agree whether any of them has.
    """

    def __init__(self):
        self.requested = self.stopping = False
        self.previous_handler = None
        # One tensor for the whole run. A new one at each step would be freed by gloo's thread, which needs the
        # interpreter's lock; at the end of the run the interpreter holds it while it waits for that thread.
        self.flag: torch.Tensor | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.requested = self.stopping = False
        self.flag = torch.zeros((), dtype=torch.int32, device=args.device)
        if threading.current_thread() is threading.main_thread():
            self.previous_handler = signal.signal(signal.SIGTERM, self._request)

    def on_step_end(self, args, state, control, **kwargs):
        self.stopping = self._any_process_requested()
        control.should_save = control.should_save or self.stopping

    def on_save(self, args, state, control, **kwargs):
        if not self.stopping:
            return
        self._restore()
        if state.is_world_process_zero:
            logger.warning(
                "stopped by SIGTERM after step %d of %d, which is saved; continue with the same command and "
                "--resume_from_checkpoint true",
                state.global_step,
                state.max_steps,
            )
        exit_process(TERMINATED)

    def on_train_end(self, args, state, control, **kwargs):
        self._restore()

    def _any_process_requested(self) -> bool:
        if world_size() == 1:
            return self.requested
        self.flag.fill_(int(self.requested))
        dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
        return bool(self.flag)

    def _request(self, signum, frame) -> None:
        self.requested = True

    def _restore(self) -> None:
        if self.previous_handler is not None:
            signal.signal(signal.SIGTERM, self.previous_handler)
            self.previous_handler = None


def ignore_first_sigterm(then: Callable[[int], None] | None, worker: int) -> None:
    """In a worker of the data loader: ignore the first SIGTERM, for the run still finishes its step; a second one ends it."""
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    if then is not None:
        then(worker)


def write_manifest(folder: Path) -> None:
    """Flush all files of a finished checkpoint to the disk, then list them in its manifest, atomically."""
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sizes = _sizes(folder)
    with atomic_path(folder / MANIFEST) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(sizes, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def is_complete(folder: str | Path) -> bool:
    """Whether a checkpoint holds every file of its manifest at its size."""
    try:
        listed = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(listed) and listed.items() <= _sizes(Path(folder)).items()


def last_complete_checkpoint(output_dir: str | Path) -> str | None:
    """The newest complete checkpoint of a run; later incomplete ones are skipped with a warning."""
    numbered = {
        int(match[1]): path
        for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)) and path.is_dir()
    }
    for _, path in sorted(numbered.items(), reverse=True):
        if is_complete(path):
            return str(path)
        logger.warning("%s is incomplete (its save was interrupted, or files are missing); skipped", path)
    return None


def _sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in _files(folder)}


def _files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST and path.suffix != ".tmp"
    )


def _describe_last(run_dir: str) -> str:
    last = last_complete_checkpoint(run_dir)
    return f"the last complete checkpoint is {last}" if last else "there is no earlier complete checkpoint"

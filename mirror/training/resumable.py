"""`Trainer` with crash-safe checkpoints and bit-identical resume.

A checkpoint gets a manifest (`mirror.common.reuse`) after its last file, and training resumes only from a folder that
matches its manifest. A save that was killed, a full disk, a half-deleted folder and a damaged file all fail that
check. So an interruption costs the steps since the last complete checkpoint, and a signal (`mirror.training.signals`)
costs none. transformers' --enable_jit_checkpoint saves on SIGTERM too, but its processes do not agree on the step, and
it exits with status 0.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints

from mirror.common import trust
from mirror.common.distributed import describe_peer_failure, mean_over_processes
from mirror.common.errors import InputError, one_line
from mirror.common.files import atomic_write_text
from mirror.common.reuse import MANIFEST, is_complete, write_manifest
from mirror.training.signals import StopOnSignal, outlast_signals


logger = logging.getLogger(__name__)

AUTO = "auto"
# Files of a checkpoint beside transformers' own: totals of the run, what it is, and the state of its loss.
TOTALS, IDENTITY, LOSS_STATE = "run_totals.json", "run_identity.json", "loss.safetensors"
SAVE_ERRORS = (OSError, SafetensorError, RuntimeError)  # torch.save reports a full disk as a RuntimeError
RUST_ERROR = "(os error "  # tokenizers raises a plain Exception
LITTLE_SPACE = 50e6  # bytes


class ResumableTrainer(Trainer):
    """`Trainer` with complete checkpoints only, a clean exit after a signal, and totals of a run over its resumes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.was_complete = False  # whether `train` resumed from the last step and had nothing to do
        self.totals = RunTotals()
        self.on_signal = StopOnSignal()
        for callback in (self.totals, StopIfComplete(), self.on_signal, FiniteGradients()):
            self.add_callback(callback)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        """Train as in transformers, but resume from the last step without training one step more.

        Args:
            resume_from_checkpoint: a folder, True for the newest complete checkpoint of the output folder, or "auto"
                for the same if there is one and otherwise a new run.

        Raises:
            InputError: there is no checkpoint, it is incomplete or of another run, or its weights are a pickle.
        """
        checkpoint = find_checkpoint(resume_from_checkpoint, self.args.output_dir)
        if checkpoint:
            trust.check_weights(checkpoint)
        if self.is_world_process_zero():
            warn_of_little_space(self.args.output_dir, self.model)
        self.totals.checkpoint = checkpoint
        self.before_training(checkpoint)
        try:
            metrics = super().train(checkpoint, **kwargs).metrics
        except RunIsComplete:
            self.was_complete = True
            if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
                self._load_best_model()
            metrics = {"epoch": self.state.epoch} | self.totals.of_complete_run(self.state.global_step)
        finally:
            self.on_signal.restore()
        self.after_training()
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    def before_training(self, checkpoint: str | None) -> None:
        """Prepare a run, or its continuation from a complete checkpoint. Called by `train` before anything is trained."""

    def after_training(self) -> None:
        """Measure what training changed. Called by `train` with the weights that are kept."""

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch: Tensor | None = None) -> Tensor:
        """Train on one batch, or on the mini-batches of one, and add the loss to the totals of the run."""
        if "mini_batches" in inputs:
            model.train()
            # accelerate's data loader has moved them to the device already.
            loss = self.train_mini_batches(model, inputs["mini_batches"])
            loss = loss / self.current_gradient_accumulation_steps
        else:
            loss = super().training_step(model, inputs, num_items_in_batch)
        self.totals.add(loss)
        return loss

    def train_mini_batches(self, model: nn.Module, mini_batches: list[dict]) -> Tensor:
        """Accumulate the gradient of all mini-batches as of one batch, and return the loss, detached."""
        raise NotImplementedError

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["loss"] = self.totals.mean_since_last_log(self.state.global_step)
        if "train_runtime" in logs:
            logs |= self.totals.of_run(logs, self.state.global_step)
        super().log(logs, start_time)

    def get_train_dataloader(self) -> DataLoader:
        """Return transformers' loader, with workers that survive a signal to all processes of a job (Slurm, Ctrl-C)."""
        loader = super().get_train_dataloader()
        bare = getattr(loader, "base_dataloader", loader)  # inside accelerate's
        bare.worker_init_fn = partial(outlast_signals, bare.worker_init_fn)
        return loader

    def describe_checkpoint(self, folder: Path) -> None:
        """Write this project's own files into a checkpoint. Called on every process."""
        self.totals.save(folder, self.args.should_save)

    def push_checkpoint(self, folder: str) -> None:
        """Push a complete checkpoint, with `--push_to_hub`."""

    # Overrides a private method: a manifest is worth something only if it is written after the last file and before
    # older checkpoints are deleted, and transformers calls nothing public between the two.
    def _save_checkpoint(self, model, trial) -> None:
        """Save as in transformers, then write the manifest, and only then push and delete older checkpoints.

        Raises:
            InputError: the disk is full or cannot be written. Earlier checkpoints are still there.
        """
        run_dir = self.args.output_dir
        folder = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        push, self.args.push_to_hub = self.args.push_to_hub, False
        try:
            if self.args.should_save:
                (folder / MANIFEST).unlink(missing_ok=True)  # of an earlier run that was at this step
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self.describe_checkpoint(folder)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                write_manifest(folder)
        except Exception as error:
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)  # its space may be what the next save needs
            raise_save_error(error, folder, run_dir)
        finally:
            self.args.save_total_limit, self.args.push_to_hub = limit, push
        if push:
            self.push_checkpoint(str(folder))
        if self.args.should_save:
            rotate_checkpoints(run_dir, limit, self.state.best_model_checkpoint, use_mtime=True)


class RunTotals(TrainerCallback):
    """Loss and duration of a run over all its parts, stored in every checkpoint and restored at a resume.

    `Trainer` starts both anew at a resume, so it is counted here. The time between a checkpoint and an interruption
    does not count: those steps are made again.
    """

    def __init__(self):
        self.checkpoint: str | None = None
        self._reset()

    def _reset(
        self, seconds: float = 0.0, logged_loss: float = 0.0, loss_since: float = 0.0, last_logged_step: int = 0
    ):
        self.seconds, self.start = seconds, time.time()  # of earlier parts, and when this one began
        self.logged_loss, self.last_logged_step = logged_loss, last_logged_step
        self.loss_since = torch.tensor(loss_since)  # sum since the last line of the log
        self.first_step = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self._reset(**(self._read() if self.checkpoint else {}))
        self.first_step = state.global_step

    def add(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch. It stays on its device: to read it would wait for the step."""
        self.loss_since = self.loss_since.to(loss.device) + loss.detach()

    def mean_since_last_log(self, step: int) -> float:
        """Return the mean loss of the steps since the last line of the log, over all processes."""
        loss = mean_over_processes(self.loss_since).item()
        mean = loss / (step - self.last_logged_step)
        self.logged_loss, self.last_logged_step = self.logged_loss + loss, step
        self.loss_since = torch.zeros_like(self.loss_since)
        return mean

    def save(self, folder: Path, writes: bool) -> None:
        loss = mean_over_processes(self.loss_since).item()  # on every process
        content = {
            "seconds": self.seconds + time.time() - self.start,
            "logged_loss": self.logged_loss,
            "loss_since": loss,
            "last_logged_step": self.last_logged_step,
        }
        if writes:
            atomic_write_text(folder / TOTALS, json.dumps(content) + "\n")

    def of_run(self, metrics: dict[str, float], steps: int) -> dict[str, float]:
        """Return duration, speeds and mean loss of the whole run, from those of its last part."""
        part, whole = metrics["train_runtime"], metrics["train_runtime"] + self.seconds
        ratio = steps / max(steps - self.first_step, 1) * part / whole
        speeds = ("train_samples_per_second", "train_steps_per_second")
        return {
            "train_runtime": round(whole, 4),
            **{name: round(metrics[name] * ratio, 3) for name in speeds if name in metrics},
            "train_loss": (self.logged_loss + self.loss_since.item()) / max(steps, 0.001),
        }

    def of_complete_run(self, steps: int) -> dict[str, float]:
        """Return what the last part returned, from the last checkpoint."""
        stored = self._read()
        loss = (stored["logged_loss"] + stored["loss_since"]) / steps
        return {"train_runtime": round(stored["seconds"], 4), "train_loss": loss}

    def _read(self) -> dict[str, float]:
        try:
            return json.loads((Path(self.checkpoint) / TOTALS).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.checkpoint}: no readable {TOTALS}, which every checkpoint of this project has"
            ) from error


class RunIsComplete(Exception):
    """Raised where the checkpoint to resume from is that of the last step."""


class StopIfComplete(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if 0 < state.max_steps <= state.global_step:
            raise RunIsComplete


class FiniteGradients(TrainerCallback):
    """Stop a run before a gradient that is not finite reaches the weights. In fp16 the scaler skips such a step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if args.fp16:
            return
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        # A sum or a norm is finite only if all gradients are. A CPU sums in half the time of a norm; a GPU has one
        # kernel for many norms.
        on_cpu = gradients[0].device.type == "cpu"
        total = sum(g.sum() for g in gradients) if on_cpu else torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(total):
            raise InputError(
                f"the gradient is not finite at step {state.global_step + 1}; try --bf16 false, a lower --learning_rate "
                "or a higher --temperature"
            )


def find_checkpoint(asked: str | bool | None, output_dir: str | Path) -> str | None:
    """Return the checkpoint folder that `--resume_from_checkpoint` means. None where nothing is asked for.

    Args:
        asked: a folder, True for the newest complete checkpoint of `output_dir`, or "auto" for the same or None.

    Raises:
        InputError: there is none, or it is incomplete.
    """
    if not asked:
        return None
    if asked in (True, AUTO):
        found = last_complete_checkpoint(output_dir)
        if found is None and asked is True:
            raise InputError(f"--resume_from_checkpoint: no checkpoint in {output_dir}")
        return found
    if not Path(asked).is_dir():
        raise InputError(f"--resume_from_checkpoint: no checkpoint in {asked}")
    if not is_complete(asked):
        raise InputError(
            f"--resume_from_checkpoint {asked} is incomplete: its {MANIFEST}, or files that it lists, are missing or damaged"
        )
    return asked


def last_complete_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest complete checkpoint of a run. Skip later incomplete ones with a warning."""
    numbered = {
        int(match[1]): path
        for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)) and path.is_dir()
    }
    for _, path in sorted(numbered.items(), reverse=True):
        if is_complete(path):
            return str(path)
        logger.warning("%s is incomplete (its save was interrupted, or files are missing or damaged); skipped", path)
    return None


def warn_of_little_space(folder: str | Path, model: nn.Module) -> None:
    """Warn before training if the disk has no room for a checkpoint and the encoder."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    needed = 2 * weights + 2 * trained  # a checkpoint, with two moments of every trained weight, and the encoder
    free = shutil.disk_usage(folder).free
    if free < needed:
        logger.warning(
            "%s has %s left, but a checkpoint and the encoder at the end need about %s: free some space, or choose another "
            "--output_dir",
            _disk_of(folder),
            _megabytes(free),
            _megabytes(needed),
        )


def raise_save_error(error: Exception, folder: str | Path, run_dir: str | Path) -> NoReturn:
    """Explain a failed save.

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

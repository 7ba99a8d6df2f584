"""A `Trainer` that can be stopped at any moment and goes on to the same weights.

A checkpoint gets a manifest (`mirror.training.manifest`) after its last file; training resumes only from a folder that matches
its manifest. A save that was killed, a full disk, a half-deleted folder and a damaged file all fail that check. An interruption
thus costs the steps since the last complete checkpoint, and a signal (`mirror.training.signals`) costs none. transformers'
--enable_jit_checkpoint saves on SIGTERM too, but its processes do not agree on the step, and it exits with status 0.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
import weakref
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints

from mirror.common import loading_policy
from mirror.common.atomic_files import atomic_write_text
from mirror.common.distributed import mean_over_processes
from mirror.common.errors import InputError
from mirror.training.disk_space import raise_save_error, warn_of_little_space
from mirror.training.manifest import MANIFEST, last_complete_checkpoint, write_manifest
from mirror.training.signals import StopOnSignal, outlast_signals


logger = logging.getLogger(__name__)

TOTALS = "run_totals.json"


class ResumableTrainer(Trainer):
    """A `Trainer` with complete checkpoints only, a clean exit after a signal, and a log that covers all legs of a run."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.was_complete = False  # whether `train` resumed from the last step, and so had nothing to do
        self.totals = RunTotals(self)
        self.on_signal = StopOnSignal()
        for callback in (self.totals, StopIfComplete(), self.on_signal, FiniteGradients()):
            self.add_callback(callback)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        """As in transformers; but resuming from the last step trains nothing, where transformers would train one more.

        Raises:
            InputError: the weights of the checkpoint are a pickle, or there is no checkpoint.
        """
        resume_from_checkpoint = self.totals.checkpoint = self.find_checkpoint(resume_from_checkpoint)
        if self.is_world_process_zero():
            warn_of_little_space(self.args.output_dir, self.model)
        try:
            return super().train(resume_from_checkpoint, **kwargs)
        except RunIsComplete:
            self.was_complete = True
        finally:
            self.on_signal.restore()
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self._load_best_model()
        metrics = {"epoch": self.state.epoch} | self.totals.of_complete_run(self.state.global_step)
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    def find_checkpoint(self, asked: str | bool | None) -> str | None:
        """The folder to resume from.

        Raises:
            InputError: there is none, or its weights are a pickle.
        """
        found = last_complete_checkpoint(self.args.output_dir) if asked is True else asked or None
        if asked and found is None:
            raise InputError(f"resume_from_checkpoint: no checkpoint in {self.args.output_dir}")
        if found:
            loading_policy.check_weights(found)
        return found

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_runtime" in logs:
            logs |= self.totals.of_all_legs(logs)
        super().log(logs, start_time)

    def get_train_dataloader(self) -> DataLoader:
        """As in transformers; its workers survive a signal that all processes of a job receive (Slurm, Ctrl-C)."""
        loader = super().get_train_dataloader()
        bare = getattr(loader, "base_dataloader", loader)  # inside accelerate's
        bare.worker_init_fn = partial(outlast_signals, bare.worker_init_fn)
        return loader

    def describe_checkpoint(self, folder: Path) -> None:
        """What is written into a checkpoint beside transformers' files, on every process."""
        self.totals.save(folder)

    def _save_checkpoint(self, model, trial) -> None:
        """As in transformers, then the manifest, and only then is it pushed, and are older checkpoints deleted.

        Raises:
            InputError: the disk is full or cannot be written; what was saved before is still there.
        """
        run_dir = self._get_output_dir(trial=trial)
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
            self._push_from_checkpoint(str(folder))
        if self.args.should_save:
            rotate_checkpoints(run_dir, limit, self.state.best_model_checkpoint, use_mtime=True)


class RunTotals(TrainerCallback):
    """Loss and duration of a run over all its legs: in every checkpoint, and restored from the one to resume from.

    The time between a checkpoint and the end of an interrupted leg does not count: its steps are made again.
    """

    def __init__(self, trainer: ResumableTrainer):
        self.trainer = weakref.proxy(trainer)  # or the model would stay in memory until cycles are collected
        self.checkpoint: str | None = None
        self.seconds, self.start = 0.0, time.time()  # of earlier legs; of this one

    def on_train_begin(self, args, state, control, **kwargs):
        self.seconds, self.start = 0.0, time.time()
        if self.checkpoint is None:
            return
        stored = self._read()
        trainer, self.seconds = self.trainer, stored["seconds"]
        trainer._total_loss_scalar, trainer._globalstep_last_logged = stored["logged_loss"], stored["last_logged_step"]
        trainer._tr_loss += stored["loss_since"]
        trainer._initial_global_step = 0  # the mean loss is over all steps

    def save(self, folder: Path) -> None:
        trainer = self.trainer
        loss = mean_over_processes(trainer._tr_loss.detach()).item()  # on every process
        if not trainer.args.should_save:
            return
        content = {
            "seconds": self.seconds + time.time() - self.start,
            "logged_loss": trainer._total_loss_scalar,
            "loss_since": loss,
            "last_logged_step": trainer._globalstep_last_logged,
        }
        atomic_write_text(folder / TOTALS, json.dumps(content) + "\n")

    def of_all_legs(self, metrics: dict[str, float]) -> dict[str, float]:
        """Duration and speeds of the last leg as those of the whole run."""
        leg = metrics["train_runtime"]
        whole = leg + self.seconds
        speeds = ("train_samples_per_second", "train_steps_per_second")
        averages = {name: round(metrics[name] * leg / whole, 3) for name in speeds if name in metrics}
        return {"train_runtime": round(whole, 4)} | averages

    def of_complete_run(self, steps: int) -> dict[str, float]:
        """What the last leg would have returned."""
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
    """The checkpoint to resume from is that of the last step."""


class StopIfComplete(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if 0 < state.max_steps <= state.global_step:
            raise RunIsComplete


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

"""`Trainer` with crash-safe checkpoints and bit-identical resume.

A checkpoint gets a manifest (`mirror.common.files`) after its last file, and training resumes only from a folder that matches its
manifest. A save that was killed, a full disk, a half-deleted folder and a damaged file all fail that check. So an interruption
costs the steps since the last complete checkpoint, and a signal (`mirror.training.checkpoints`) costs none. transformers'
--enable_jit_checkpoint saves on SIGTERM too, but its processes do not agree on the step, and it exits with status 0.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from mirror.common import trust
from mirror.common.distributed import mean_over_processes, world_size
from mirror.common.errors import InputError, library_errors, reason
from mirror.common.files import MANIFEST, atomic_write_text, follow_umask, lock_output_dir, write_manifest
from mirror.modeling.cpu_kernels import keep_freed_memory
from mirror.training import checkpoints


logger = logging.getLogger(__name__)

# Files of a checkpoint beside transformers' own and `IDENTITY`: the run's totals, its loss, and adapters, merged elsewhere.
TOTALS, LOSS_STATE, ADAPTERS = "run_totals.json", "loss.safetensors", "adapters.safetensors"


class ResumableTrainer(Trainer):
    """`Trainer` with complete checkpoints only, a clean exit after a signal, and totals of a run over its resumes."""

    def __init__(self, *args, **kwargs):
        with library_errors("TrainingArguments", let_through=(TypeError,)):
            super().__init__(*args, **kwargs)
        self.train_metrics: dict[str, float] = {}  # that `train` returned
        self.was_complete = False  # whether `train` resumed from the last step and had nothing to do
        self.totals = RunTotals()
        self.on_signal = checkpoints.StopOnSignal()
        for callback in (self.totals, self.on_signal, StepChecks()):
            self.add_callback(callback)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        """Train as in transformers, but resume from the last step without training one step more.

        `resume_from_checkpoint` is a folder, True for the newest complete checkpoint of the output folder, or "auto" for
        the same if there is one and otherwise a new run. An `InputError` if it is incomplete or of another run.
        """
        checkpoint = checkpoints.find_checkpoint(resume_from_checkpoint, self.args.output_dir)
        if checkpoint:
            trust.check_weights(checkpoint)
        self.totals.checkpoint = checkpoint
        # Released after the run, so that a notebook that stays open does not keep others out.
        with lock_output_dir(self.args.output_dir) if self.is_world_process_zero() else nullcontext():
            return self._train(checkpoint, **kwargs)

    def _train(self, checkpoint: str | None, **kwargs) -> TrainOutput:
        keep_freed_memory(self.args.device)
        if self.is_world_process_zero():
            checkpoints.warn_of_little_space(self.args.output_dir, self.model)
        self.before_training(checkpoint)
        try:
            metrics = super().train(checkpoint, **kwargs).metrics
        except RunIsComplete:
            self.was_complete = True
            if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
                self._load_best_model()
            metrics = {"epoch": self.state.epoch} | self.totals.of_complete_run(self.state.global_step)
        except Exception as error:
            # With several processes the others may wait for this one, and their checkpoints are what is left.
            if not self.control.should_training_stop or world_size() > 1:
                raise
            metrics = self._keep_trained(error)
        finally:
            with after_last_step("signals are not given back"):
                self.on_signal.restore()
        with after_last_step("the scores after training are missing", let_through=NothingToSave):
            self.after_training()
        self.train_metrics = metrics
        return TrainOutput(self.state.global_step, metrics.get("train_loss", math.nan), metrics)

    def _keep_trained(self, error: Exception) -> dict[str, float]:
        """Return the metrics of a run that failed after its last step, with the weights that it would have ended with."""
        step, best = self.state.global_step, self.state.best_model_checkpoint
        logger.warning("%s; all %d steps are trained, and their weights are kept", reason(error), step)
        self.is_in_train = False
        if self.args.load_best_model_at_end and best:
            try:
                self._load_best_model()
            except Exception as failure:
                logger.warning("%s cannot be read (%s); these are the weights of step %d", best, reason(failure), step)
                self.state.best_model_checkpoint = self.state.best_global_step = None
        return {"epoch": self.state.epoch}

    def before_training(self, checkpoint: str | None) -> None:
        """Prepare a run, or its continuation from a complete checkpoint. Called by `train` before anything is trained."""

    def after_training(self) -> None:
        """Measure what training changed. Called by `train` with the weights that are kept."""

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch: Tensor | None = None) -> Tensor:
        """Train on one batch, or on the mini-batches of one, and add the loss to the totals of the run.

        `train_mini_batches` of a subclass accumulates their gradient as of one batch, and returns the loss, detached.
        """
        if "mini_batches" in inputs:
            model.train()
            # accelerate's data loader has moved them to the device already.
            loss = self.train_mini_batches(model, inputs["mini_batches"])
            loss = loss / self.current_gradient_accumulation_steps
        else:
            loss = super().training_step(model, inputs, num_items_in_batch)
        self.totals.add(loss)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["loss"] = self.totals.mean_since_last_log(self.state.global_step)
        if "train_runtime" in logs:
            logs |= self.totals.of_run(logs, self.state.global_step)
        super().log(logs, start_time)

    def create_scheduler(self, *args, **kwargs):
        with library_errors(f"--lr_scheduler_type {self.args.lr_scheduler_type.value}"):
            return super().create_scheduler(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """Return transformers' loader, with workers that survive a signal to all processes of a job (Slurm, Ctrl-C)."""
        loader = super().get_train_dataloader()
        bare = getattr(loader, "base_dataloader", loader)  # inside accelerate's
        bare.worker_init_fn = partial(checkpoints.outlast_signals, bare.worker_init_fn)
        return loader

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if self.args.should_save and not Path(best).is_dir():  # transformers only warns, and keeps the last weights
            raise InputError(f"{best}, the best checkpoint, is gone")
        super()._load_best_model()

    def describe_checkpoint(self, folder: Path) -> None:
        """Write this project's own files into a checkpoint. Called on every process."""
        self.totals.save(folder, self.args.should_save)

    # Overrides a private method: a manifest is worth something only if it is written after the last file and before
    # older checkpoints are deleted, and transformers calls nothing public between the two.
    def _save_checkpoint(self, model, trial) -> None:
        """Save as in transformers, then write the manifest, and only then push and delete older checkpoints."""
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
                follow_umask(folder)
                write_manifest(folder)
        except Exception as error:
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)  # its space may be what the next save needs
            checkpoints.raise_save_error(error, folder, run_dir)
        finally:
            self.args.save_total_limit, self.args.push_to_hub = limit, push
        if push:
            self.push_checkpoint(str(folder))
        if self.args.should_save:
            checkpoints.rotate(run_dir, limit, {str(folder), self.state.best_model_checkpoint}, self.state.global_step)


class RunTotals(TrainerCallback):
    """Loss and duration of a run over all its parts, stored in every checkpoint and restored at a resume.

    `Trainer` starts both anew at a resume, so it is counted here. The time between a checkpoint and an interruption
    does not count: those steps are made again.
    """

    def __init__(self):
        self.checkpoint: str | None = None
        self._restore({})

    def on_train_begin(self, args, state, control, **kwargs):
        self._restore(self._read() if self.checkpoint else {})
        self.first_step = state.global_step

    def _restore(self, stored: dict[str, float]) -> None:
        self.seconds, self.start = stored.get("seconds", 0.0), time.time()  # of earlier parts, and when this one began
        self.logged_loss, self.last_logged_step = stored.get("logged_loss", 0.0), stored.get("last_logged_step", 0)
        self.loss_since = torch.tensor(stored.get("loss_since", 0.0))  # sum since the last line of the log

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
            message = f"{self.checkpoint}: no readable {TOTALS}, which every checkpoint of this project has"
            raise InputError(message) from error


class RunIsComplete(Exception):
    """Raised where the checkpoint to resume from is that of the last step."""


class NothingToSave(InputError):
    """Raised after a run of which no step may be saved."""


@contextmanager
def after_last_step(missing: str, let_through: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn any error into a warning that names what is missing: nothing after the last step may cost a run."""
    try:
        yield
    except let_through:
        raise
    except Exception as error:
        logger.warning("%s: %s", missing, reason(error))


class StepChecks(TrainerCallback):
    """Stop a run that is complete, and one whose gradient is not finite before that reaches the weights."""

    def on_train_begin(self, args, state, control, **kwargs):
        if 0 < state.max_steps <= state.global_step:
            raise RunIsComplete

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if args.fp16:  # the scaler skips such a step
            return
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        # Finite only if all gradients are. A CPU sums in half the time of a norm; a GPU has one kernel for many norms.
        on_cpu = gradients[0].device.type == "cpu"
        total = sum(g.sum() for g in gradients) if on_cpu else torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(total):
            advice = "try --bf16 false, a lower --learning_rate or a higher --temperature"
            raise InputError(f"the gradient is not finite at step {state.global_step + 1}; {advice}")

"""What an interruption may cost: the steps since the last whole checkpoint, and after SIGTERM not even those.

A checkpoint gets its seal, a list of its files and their sizes, after its last file; only a folder that still is what
its seal says is resumed from. A save that was killed, a full disk and a half-deleted folder all fail that check.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from mirror.distributed import leave, lost_process, world_size
from mirror.errors import InputError
from mirror.files import written_aside


logger = logging.getLogger(__name__)

SEAL = "whole.json"
TERMINATED = 128 + signal.SIGTERM  # the exit status by which a shell and Slurm know a process that SIGTERM ended


class InterruptibleTrainer(Trainer):
    """A `Trainer` that can be stopped at any moment: whole checkpoints only, and a clean end after SIGTERM."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(StopOnSigterm())
        self.add_callback(FiniteGradients())

    def get_train_dataloader(self) -> DataLoader:
        """As in transformers; its workers outlast a SIGTERM that all processes of a job get (Slurm, `timeout`)."""
        loader = super().get_train_dataloader()
        bare = getattr(loader, "base_dataloader", loader)  # inside accelerate's
        bare.worker_init_fn = partial(outlast_sigterm, bare.worker_init_fn)
        return loader

    def _save_checkpoint(self, model, trial) -> None:
        """As in transformers, then the seal, and only then do older checkpoints go.

        Raises:
            InputError: the disk is full or cannot be written; what was saved before is still there.
        """
        run_dir = self._get_output_dir(trial=trial)
        folder = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            (folder / SEAL).unlink(missing_ok=True)  # of an earlier run that was at this step
        self.accelerator.wait_for_everyone()
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                seal(folder)
        except (OSError, SafetensorError, RuntimeError) as error:  # torch.save tells of a full disk by a RuntimeError
            if isinstance(error, RuntimeError) and lost_process(error):
                raise
            raise InputError(
                f"cannot save {folder}: {' '.join(str(error).split())[:200]}; {_left(run_dir)}"
            ) from error
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            rotate_checkpoints(run_dir, limit, self.state.best_model_checkpoint, use_mtime=True)


class FiniteGradients(TrainerCallback):
    """Stops a run before a gradient that is not finite reaches the weights; in fp16 the gradient scaler skips the step instead."""

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

    The processes of a run get the signal at different steps, so they agree on it after each: the first to know stops all.
    """

    def __init__(self):
        self.asked = self.stopping = False
        self.before = None
        # One tensor for the whole run. If Python dropped it after each step, gloo's thread would have to free it, and
        # wait for the lock of the interpreter that holds the lock and waits, at the end of the run, for that thread.
        self.flag: torch.Tensor | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.asked = self.stopping = False
        self.flag = torch.zeros((), dtype=torch.int32, device=args.device)
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGTERM, self._ask)

    def on_step_end(self, args, state, control, **kwargs):
        self.stopping = self._any_process_was_asked()
        control.should_save = control.should_save or self.stopping

    def on_save(self, args, state, control, **kwargs):
        if not self.stopping:
            return
        self._restore()
        if state.is_world_process_zero:
            logger.warning(
                "stopped by SIGTERM after step %d of %d, which is saved; go on with the same command and "
                "--resume_from_checkpoint true",
                *(state.global_step, state.max_steps),
            )
        leave(TERMINATED)

    def on_train_end(self, args, state, control, **kwargs):
        self._restore()

    def _any_process_was_asked(self) -> bool:
        if world_size() == 1:
            return self.asked
        self.flag.fill_(int(self.asked))
        dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
        return bool(self.flag)

    def _ask(self, signum, frame) -> None:
        self.asked = True

    def _restore(self) -> None:
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)
            self.before = None


def outlast_sigterm(then: Callable[[int], None] | None, worker: int) -> None:
    """In a worker of the data loader: the first SIGTERM is left to the run, which goes on to the end of its step; a second ends it."""
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    if then is not None:
        then(worker)


def seal(folder: Path) -> None:
    """Bring all files of a finished checkpoint to the disk, then list them in it; the list is renamed into place."""
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sizes = _sizes(folder)
    with written_aside(folder / SEAL) as aside, aside.open("w", encoding="utf-8") as file:
        json.dump(sizes, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def is_whole(folder: str | Path) -> bool:
    """Whether a checkpoint is all that its seal says."""
    try:
        sealed = json.loads((Path(folder) / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(sealed) and sealed.items() <= _sizes(Path(folder)).items()


def last_whole_checkpoint(output_dir: str | Path) -> str | None:
    """The newest checkpoint of a run that is whole; later ones that are not are passed over with a warning."""
    numbered = {
        int(match[1]): path
        for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)) and path.is_dir()
    }
    for _, path in sorted(numbered.items(), reverse=True):
        if is_whole(path):
            return str(path)
        logger.warning("%s is not whole (its save was interrupted, or files are gone); passed over", path)
    return None


def _sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in _files(folder)}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SEAL and path.suffix != ".tmp")


def _left(run_dir: str) -> str:
    last = last_whole_checkpoint(run_dir)
    return f"the last whole checkpoint is {last}" if last else "there is no whole checkpoint before it"

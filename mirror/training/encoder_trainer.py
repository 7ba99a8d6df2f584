"""What the trainers of this project share: `Trainer` for encoders, without the method."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput

from mirror.common.errors import InputError
from mirror.training.hub import HubPushMixin
from mirror.training.resumable import ResumableTrainer
from mirror.training.run_record import FILE


logger = logging.getLogger(__name__)


class SetEpochCallback(TrainerCallback):
    """Draws new masks at the start of each epoch, and the right ones after a resume."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        with args.main_process_first(desc="views of the epoch"):  # the others read them from the cache
            train_dataloader.dataset.set_epoch(int((state.epoch or 0) + 1e-6))


def describe_best(state: TrainerState, metric: str) -> str:
    """Which step was kept, and how the last evaluated one compares."""
    key = f"eval_{metric.removeprefix('eval_')}"
    scores = {entry["step"]: entry[key] for entry in state.log_history if key in entry}
    last = max(scores, default=state.best_global_step)
    compared = "the last one" if last == state.best_global_step else f"step {last} has {scores[last]:.4f}"
    return (
        f"kept step {state.best_global_step}, the best of {len(scores)} evaluated: "
        f"{key.removeprefix('eval_')} {state.best_metric:.4f} ({compared})"
    )


class EncoderTrainer(HubPushMixin, ResumableTrainer):
    """Crash-safe checkpoints, pushes to the Hub, averages for the log, and the facts that a run records.

    Attributes:
        method: "mirror" or "cmlm", for the record and the card.
        base_model: name or path of the model that the training starts from.
        settings: the whole configuration as plain data, kept in every checkpoint.
        corpus_report: what is known of the training texts.
        dataset_name: id of a Hub dataset, if the texts come from one.
        summary: the line that describes a step.
    """

    method = ""

    def __init__(
        self, *args, base_model: str, settings: dict, corpus_report: dict, dataset_name: str | None, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.base_model, self.settings = base_model, settings
        self.corpus_report, self.dataset_name = corpus_report, dataset_name
        self.summary: str | None = None
        self.loss_is_scaled_for_ga = False  # our losses are means over one micro-batch
        self._seen: dict[str, list[Tensor]] = {}
        self.add_callback(SetEpochCallback())

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        if not resume_from_checkpoint and self.args.should_save:
            (Path(self.args.output_dir) / FILE).unlink(missing_ok=True)  # of the run that is overwritten
        output = super().train(resume_from_checkpoint, **kwargs)
        if self.args.load_best_model_at_end and self.state.best_global_step:
            logger.info(describe_best(self.state, self.args.metric_for_best_model))
        return output

    def monitor(self, name: str, value: Tensor) -> Tensor:
        """Remember a scalar: the log shows its mean since the last line. Returns it."""
        self._seen.setdefault(name, []).append(value.detach())
        return value

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {name: round(torch.stack(values).mean().item(), 4) for name, values in self._seen.items()}
            self._seen.clear()
        super().log(logs, start_time)

    def check_finite(self, loss: Tensor, advice: str) -> Tensor:
        """
        Raises:
            InputError: the loss is not finite.
        """
        if not torch.isfinite(loss):
            raise InputError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}; "
                f"try --bf16 instead of --fp16, {advice}"
            )
        return loss

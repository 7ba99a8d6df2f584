"""What the trainers of this project share: `Trainer` for encoders, without the method."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset, IterableDataset
from torch import Tensor
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput

from mirror.common.errors import InputError
from mirror.data.endless_stream import EndlessStream
from mirror.data.files import reading
from mirror.training.choices import KEEP_STEP
from mirror.training.hub import HubPushMixin
from mirror.training.resumable import ResumableTrainer
from mirror.training.run_identity import check_identity, digest_of_model, run_identity, save_identity
from mirror.training.run_record import FILE


logger = logging.getLogger(__name__)


class SetEpochCallback(TrainerCallback):
    """Draws new masks at the start of each epoch, and the right ones after a resume; streams do so by themselves."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        if not hasattr(train_dataloader.dataset, "set_epoch"):
            return
        with args.main_process_first(desc="views of the epoch"):  # the others read them from the cache
            train_dataloader.dataset.set_epoch(int((state.epoch or 0) + 1e-6))


def name_of_rows(settings: dict) -> str:
    """The files or the dataset that is trained on, for messages."""
    return " ".join(settings.get("train_file") or [settings.get("dataset_name") or "train_dataset"])


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
        is_stream = isinstance(self.train_dataset, EndlessStream)
        self.base_model, self.settings = base_model, settings | ({"streaming": True} if is_stream else {})
        self.corpus_report, self.dataset_name = corpus_report, dataset_name
        self.summary: str | None = None
        self.loss_is_scaled_for_ga = False  # our losses are means over one micro-batch
        self._seen: dict[str, list[Tensor]] = {}
        self.add_callback(SetEpochCallback())

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        """As in `ResumableTrainer`, from a checkpoint of the same run only, unless `force` is set.

        Raises:
            InputError: the checkpoint is of another run; names the differences.
        """
        resume_from_checkpoint = self.find_checkpoint(resume_from_checkpoint)
        self._model_digest = digest_of_model(self.model) if self.is_world_process_zero() else ""
        self._identity = {}
        if resume_from_checkpoint and not self.args.force:
            check_identity(broadcast_object_list([self.identity()])[0], resume_from_checkpoint)
        if not resume_from_checkpoint and self.args.should_save:
            (Path(self.args.output_dir) / FILE).unlink(missing_ok=True)  # of the run that is overwritten
        output = super().train(resume_from_checkpoint, **kwargs)
        is_chosen = self.args.metric_for_best_model != KEEP_STEP  # that line would say only which step was the last
        if self.args.load_best_model_at_end and self.state.best_global_step and is_chosen:
            logger.info(describe_best(self.state, self.args.metric_for_best_model))
        return output

    def identity(self) -> dict:
        """What the run is (`mirror.training.run_identity`); empty on all processes but the first."""
        if self.is_world_process_zero() and not self._identity:
            rows = self.training_rows()
            with reading(name_of_rows(self.settings)):
                self._identity = run_identity(self.settings, self._model_digest, rows, self.args.world_size)
        return self._identity

    def training_rows(self) -> list[Dataset | IterableDataset]:
        """The texts as they are before views, masks and batches are made of them."""
        raise NotImplementedError

    def describe_checkpoint(self, folder: Path) -> None:
        super().describe_checkpoint(folder)
        if self.is_world_process_zero():
            save_identity(self.identity(), folder)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        with reading(name_of_rows(self.settings)):
            return super().get_batch_samples(epoch_iterator, num_batches, device)

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

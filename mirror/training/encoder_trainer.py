"""`Trainer` for encoders without the method: identity of a run, parameters of the loss, averages for the log, the end."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset, IterableDataset
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback

from mirror.common.distributed import mean_over_processes, world_size
from mirror.common.errors import InputError, library_errors
from mirror.common.files import atomic_write_text, plain
from mirror.data.files import reading
from mirror.data.views import EndlessStream
from mirror.training.checkpoints import IDENTITY
from mirror.training.finish import finish
from mirror.training.hub import HubPushMixin
from mirror.training.options import KEEP_STEP
from mirror.training.record import FILE, RunRecord, run_facts, well_formed
from mirror.training.resumable import LOSS_STATE, ResumableTrainer


logger = logging.getLogger(__name__)

READ_ROWS = 10_000  # rows in memory at once
STREAMED_ROWS = 1000  # rows of a stream, which has no end, in its digest
# Flags that change nothing in the weights. Files and model are compared by content instead.
NOT_COMPARED_PREFIXES = ("ddp_", "eval_", "hub_", "log_", "logging_", "save_", "trackio_")
NOT_COMPARED = set(
    """bitext_file data_dir dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory
    dataloader_prefetch_factor disable_tqdm greater_is_better load_best_model_at_end merge metric_for_best_model
    model_name_or_path nli_file per_device_eval_batch_size preprocessing_num_workers project push_to_hub report_to
    resume_from_checkpoint run_name select_by train_file""".split()
)
LENGTHS = {"max_steps", "num_train_epochs"}  # of a run at a constant rate, which may go on for longer
# Arguments of `Trainer` that have no meaning for encoders, and what to use instead.
REFUSED = {
    "compute_loss_func": "pass loss=, a function or module of the two views",
    "compute_metrics": "pass score=, a function of the encoder, or set eval_tasks",
    "data_collator": "the collator makes the two views of a batch; pass augmentation= in the configuration",
    "eval_dataset": "set validation_samples, eval_tasks, or pass score=",
    "model_init": "pass the model",
    "preprocess_logits_for_metrics": "pass score=, a function of the encoder",
}


def refuse_arguments(given: dict[str, object]) -> None:
    """Remove arguments of `Trainer` that have no meaning here, or refuse those that have a value."""
    for name in given.keys() - {"callbacks", "optimizers", "optimizer_cls_and_kwargs"}:
        if name not in REFUSED:
            raise TypeError(f"unexpected keyword argument '{name}'")
        if given.pop(name) is not None:
            raise InputError(f"{name} does not apply to encoders: {REFUSED[name]}")


class EpochsAndLossGradients(TrainerCallback):
    """Draw new masks at the start of each epoch, also after a resume, and zero the loss's gradients before each step.

    Streams draw masks by themselves, `Trainer` zeroes the gradients of the model only. The best step by another score is forgotten.
    """

    def __init__(self, loss_parameters: list[nn.Parameter]):
        self.loss_parameters = loss_parameters

    def on_train_begin(self, args, state, control, **kwargs):
        metric = f"eval_{(args.metric_for_best_model or '').removeprefix('eval_')}"
        if all(entry.get(metric) != state.best_metric for entry in state.log_history):  # the best by another score
            state.best_metric = state.best_global_step = state.best_model_checkpoint = None

    def on_step_begin(self, args, state, control, **kwargs):
        for parameter in self.loss_parameters:
            parameter.grad = None

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        if not hasattr(train_dataloader.dataset, "set_epoch"):
            return
        with args.main_process_first(desc="views of the epoch"):  # the others read them from the cache
            train_dataloader.dataset.set_epoch(int((state.epoch or 0) + 1e-6))


class EncoderTrainer(HubPushMixin, ResumableTrainer):
    """Base of the trainers of this project: crash-safe checkpoints, pushes to the Hub, and a record of the run.

    Args:
        loss: a loss, whose parameters, if it has any, are trained with the model.
        settings: the whole configuration as plain data, kept in every checkpoint.
        corpus_report: facts about the training texts, which come from the Hub dataset `dataset_name` if that is given.

    Attributes:
        method: "mirror", "cmlm" or "distilled", for the record and the card.
        summary: the log line that describes a step.
        measured: scores of `train` for the record, by the names of `RunRecord`.
    """

    method = ""

    def __init__(
        self, *args, base_model: str, settings: dict, corpus_report: dict, dataset_name: str | None, loss=None, **rest
    ):
        super().__init__(*args, **rest)
        is_stream = isinstance(self.train_dataset, EndlessStream)
        self.base_model, self.settings = base_model, well_formed(settings | ({"streaming": True} if is_stream else {}))
        self.corpus_report, self.dataset_name = corpus_report, dataset_name
        self.summary: str | None = None
        self.measured: dict[str, object] = {}
        self.loss_is_scaled_for_ga = False  # our losses are means over one micro-batch
        self._seen: dict[str, list[Tensor]] = {}
        self.loss = loss
        self._loss_module = loss.to(self.args.device) if isinstance(loss, nn.Module) else nn.Identity()
        self._loss_parameters = list(self._loss_module.parameters())
        if world_size() > 1:  # each process has made a loss of its own
            for tensor in self._loss_module.state_dict().values():
                torch.distributed.broadcast(tensor, 0)
        for parameter in self._loss_parameters:
            parameter.register_hook(mean_over_processes)  # DDP averages the gradients of the model only
        self.add_callback(EpochsAndLossGradients(self._loss_parameters))

    def before_training(self, checkpoint: str | None) -> None:
        """Refuse the checkpoint of another run, unless `force` is set, and restore the loss from that of this run."""
        self._model_digest = digest_of_model(self.model) if self.is_world_process_zero() else ""
        self._identity = {}
        if checkpoint and not self.args.force:
            check_identity(broadcast_object_list([self.identity()])[0], checkpoint)
        if checkpoint:
            self._load_loss(checkpoint)
        elif self.args.should_save:
            (Path(self.args.output_dir) / FILE).unlink(missing_ok=True)  # of the run that is overwritten

    def after_training(self) -> None:
        """Log which step was kept, and how the last evaluated one compares."""
        state, metric = self.state, (self.args.metric_for_best_model or "").removeprefix("eval_")
        if not (self.args.load_best_model_at_end and state.best_global_step) or metric == KEEP_STEP:
            return
        scores = {entry["step"]: entry[f"eval_{metric}"] for entry in state.log_history if f"eval_{metric}" in entry}
        best, last = state.best_global_step, max(scores, default=state.best_global_step)
        others = "the last one" if last == best else f"step {last} has {scores[last]:.4f}"
        message = "kept step %d, the best of %d evaluated: %s %.4f (%s)"
        logger.info(message, best, len(scores), metric, state.best_metric, others)

    def identity(self) -> dict:
        """Return what is compared when a run is resumed, as plain data. Empty on all processes but the first."""
        if self.is_world_process_zero() and not self._identity:
            with reading(name_of_rows(self.settings)):
                texts = digest_of_rows(self.training_rows())
            self._identity = {"settings": plain(self.settings), "model": self._model_digest, "texts": texts}
            self._identity["processes"] = self.args.world_size
        return self._identity

    def record(self) -> RunRecord:
        """Return what this run was and measured. `finish` adds the verification and writes it."""
        run = run_facts(self.args, self.base_model, self.dataset_name, self.summary)
        return RunRecord(self.method, self.train_metrics, run, self.corpus_report, self.settings, **self.measured)

    def finish(self) -> None:
        """End the run and its processes: save, verify, write record and card, push if asked. The script's last call."""
        finish(self)

    def training_rows(self) -> list[Dataset | IterableDataset]:
        """Return the texts before views, masks and batches are made of them."""
        raise NotImplementedError

    def describe_checkpoint(self, folder: Path) -> None:
        super().describe_checkpoint(folder)
        if self.is_world_process_zero():
            atomic_write_text(folder / IDENTITY, json.dumps(self.identity(), indent=2) + "\n")
            if state := self._loss_module.state_dict():
                save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / LOSS_STATE)

    def _load_loss(self, checkpoint: str) -> None:
        """Restore parameters and buffers of the loss, or refuse a checkpoint that was made with others."""
        path = Path(checkpoint) / LOSS_STATE
        stored = load_file(path) if path.is_file() else {}
        expected = self._loss_module.state_dict()
        shapes = [{name: tensor.shape for name, tensor in each.items()} for each in (stored, expected)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"{checkpoint} holds the state of another loss ({', '.join(stored) or 'none'} instead of "
                f"{', '.join(expected) or 'none'}); resume with the loss of that run"
            )
        self._loss_module.load_state_dict(stored)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        with library_errors(f"--optim {self.args.optim.value}"):
            optimizer = super().create_optimizer(model)
        # Decay would pull a scalar such as a temperature's logarithm towards 0, which is a value like any other.
        for decay, of_scalars in ((0.0, True), (self.args.weight_decay, False)):
            group = [each for each in self._loss_parameters if (each.dim() == 0) == of_scalars]
            if is_new and group:
                optimizer.add_param_group({"params": group, "weight_decay": decay})
        return optimizer

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the encoder, with no pickled arguments beside it. Every process calls this, one writes."""
        weights = self.gathered_weights()
        if self.args.should_save:
            self.save_encoder(output_dir or self.args.output_dir, weights)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def gathered_weights(self) -> dict[str, Tensor] | None:
        """Return the weights that FSDP spread over the processes. Every process calls this. None without FSDP."""
        return self.accelerator.get_state_dict(self.model) if self.is_fsdp_enabled else None

    def save_encoder(self, folder: str, state_dict: dict[str, Tensor] | None) -> None:
        """Write the encoder to a folder. `state_dict` are the gathered weights of a sharded model."""
        raise NotImplementedError

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        with reading(name_of_rows(self.settings)):
            return super().get_batch_samples(epoch_iterator, num_batches, device)

    def monitor(self, name: str, value: Tensor) -> Tensor:
        """Remember a scalar, whose mean since the last line appears in the log, and return it."""
        self._seen.setdefault(name, []).append(value.detach())
        return value

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {name: round(torch.stack(values).mean().item(), 4) for name, values in self._seen.items()}
            self._seen.clear()
        super().log(logs, start_time)

    def check_finite(self, loss: Tensor, advice: str) -> Tensor:
        """Return the loss if it is finite, otherwise raise an `InputError`."""
        if loss.dim():
            raise InputError(f"the loss must return one number, not a tensor of the shape {tuple(loss.shape)}")
        if not torch.isfinite(loss):
            found = f"the loss is {loss.item()} at step {self.state.global_step + 1}"
            raise InputError(f"{found}; try --bf16 instead of --fp16, {advice}")
        return loss


def name_of_rows(settings: dict) -> str:
    """Return the files or the dataset of a run, for messages."""
    return " ".join(settings.get("train_file") or [settings.get("dataset_name") or "train_dataset"])


def check_identity(identity: dict, folder: str) -> None:
    """Refuse to resume from the checkpoint of another run, and name every difference."""
    try:
        stored = json.loads((Path(folder) / IDENTITY).read_text(encoding="utf-8"))
        found = differences(stored, identity)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder}: no readable {IDENTITY}, which every checkpoint of this project has") from error
    if found:
        fix = "give what that run had, or --force to go on with the change"
        raise InputError(f"--resume_from_checkpoint: {folder} is of another run ({', '.join(found)}); {fix}")


def differences(stored: dict, now: dict) -> list[str]:
    """Return what differs between the identities of two runs, in words."""
    before, after = stored["settings"], now["settings"]
    skipped = NOT_COMPARED | (LENGTHS if after.get("lr_scheduler_type") == "constant" else set())
    found = [
        f"--{key} was {before.get(key, 'not given')}, now {after.get(key, 'not given')}"
        for key in sorted(before.keys() | after.keys())
        if key not in skipped
        and not key.startswith(NOT_COMPARED_PREFIXES)
        and before.get(key) not in (after.get(key), f"<{key.upper()}>")  # hidden by earlier versions
    ]
    if stored["processes"] != now["processes"]:
        found.append(f"processes: {stored['processes']}, now {now['processes']}")
    kinds = {"model": "another model to start from", "texts": "other training texts"}
    return found + [words for key, words in kinds.items() if stored[key] != now[key]]


def digest_of_model(model: nn.Module) -> str:
    """Return the SHA-256 of the names and bytes of all weights."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def digest_of_rows(parts: Iterable[Dataset | IterableDataset]) -> str:
    """Return the SHA-256 of all rows in their order, or of the first thousand of a stream."""
    digest = hashlib.sha256()
    for rows in parts:
        rows = rows.take(STREAMED_ROWS) if isinstance(rows, IterableDataset) else rows
        for batch in rows.iter(READ_ROWS):
            digest.update(json.dumps(batch).encode())
    return digest.hexdigest()

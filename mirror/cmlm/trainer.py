"""`Trainer` for the stages of CMLM: one forward call per step gives what the stage's losses need."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytorch_optimizer import Lamb
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Sampler, SequentialSampler

from mirror.cmlm.arguments import CMLMArguments, CMLMTrainingArguments
from mirror.cmlm.checkpoint import load_weights, parts_of, save_cmlm
from mirror.cmlm.layers import mean_projection
from mirror.cmlm.losses import additive_margin_softmax
from mirror.cmlm.model import IGNORED, CMLMModel
from mirror.distributed import gather_with_gradient, rank, world_size
from mirror.encoder import Encoder
from mirror.errors import InputError
from mirror.gradient_cache import backward_through_cache
from mirror.hub import PushesCheckpoints
from mirror.interruption import InterruptibleTrainer
from mirror.trainer import FreshViews


class CMLMTrainer(PushesCheckpoints, InterruptibleTrainer):
    """Trains a `CMLMModel` on the batches of `StageCollator`.

    Args:
        cmlm_args: the stage, weights and margin of its losses, the optimiser.
        max_seq_length, sentence_vector: go into the checkpoint.
        settings: the whole configuration, kept in the checkpoint.
    """

    def __init__(
        self,
        model: CMLMModel,
        args: CMLMTrainingArguments,
        *,
        cmlm_args: CMLMArguments,
        max_seq_length: int,
        sentence_vector: str = "pooled",
        settings: dict | None = None,
        **kwargs,
    ):
        super().__init__(model, args, optimizer_cls_and_kwargs=_lamb(cmlm_args, args), **kwargs)
        self.cmlm_args, self.max_seq_length, self.sentence_vector = cmlm_args, max_seq_length, sentence_vector
        self.settings = settings or {}
        # Each loss is a mean over one micro-batch; the `labels` in the batch make Trainer believe otherwise.
        self.loss_is_scaled_for_ga = False
        freeze_idle_parts(model, cmlm_args.stage)
        self._seen: dict[str, list[Tensor]] = {}  # each loss by itself, for the log
        self.add_callback(FreshViews())

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        losses = []
        if "cmlm" in inputs:
            count = count_of_all(outputs["num_masked"])
            losses.append(self._note("cmlm", world_size() * outputs["token_loss"] / count))
        if "bitext" in inputs:
            losses.append(self._bitext_weight() * self.retrieve(*outputs["bitext_vectors"].chunk(2)))
        if "nli" in inputs:
            losses.append(self._note("nli", F.cross_entropy(outputs["nli_logits"].float(), inputs["nli"]["labels"])))
        loss = self._checked(sum(losses))
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        if "mini_batches" not in inputs:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        pieces = self._prepare_inputs(inputs)["mini_batches"]
        both = "cmlm" in pieces[0] and "bitext" in pieces[0]
        loss = torch.zeros((), device=self.args.device)
        # The bitext first: it uses part of the weights that the masked LM uses, and processes exchange gradients last.
        if "bitext" in pieces[0]:
            loss = loss + self._cached_bitext_step(model, [piece["bitext"] for piece in pieces], exchange=not both)
        if "cmlm" in pieces[0]:
            loss = loss + self._split_cmlm_step(model, [piece["cmlm"] for piece in pieces])
        return self._checked(loss) / self.current_gradient_accumulation_steps

    def _cached_bitext_step(self, model: nn.Module, pieces: Sequence[dict[str, Tensor]], exchange: bool) -> Tensor:
        """The gradient of the bitext loss over all mini-batches as one batch; returns the loss, detached."""
        loss, _, _ = backward_through_cache(
            mini_batches=list(pieces),
            embed=lambda texts: model(bitext=texts)["bitext_vectors"],
            contrast=lambda first, second: self._bitext_weight() * self.retrieve(first, second),
            backward=self._backward,
            synchronised=lambda last: self._exchanging(model, last and exchange),
        )
        return loss

    def _split_cmlm_step(self, model: nn.Module, pieces: Sequence[dict]) -> Tensor:
        """The gradient of the CMLM loss, a mean over the masked tokens of all mini-batches; returns the loss, detached."""
        count = count_of_all(torch.stack([(piece["labels"] != IGNORED).sum() for piece in pieces]).sum())
        total = torch.zeros((), device=self.args.device)
        for number, piece in enumerate(pieces, start=1):
            with self._exchanging(model, number == len(pieces)):
                loss = world_size() * model(cmlm=piece)["token_loss"] / count
                self._backward(loss)
            total += loss.detach()
        return self._note("cmlm", total)

    def _backward(self, loss: Tensor) -> None:
        self.accelerator.backward(loss / self.current_gradient_accumulation_steps)

    def _exchanging(self, model: nn.Module, exchange: bool):
        return nullcontext() if exchange else self.accelerator.no_sync(model)

    def _bitext_weight(self) -> float:
        return self.cmlm_args.bitext_weight if self.cmlm_args.stage == "cmlm_bitext" else 1.0

    def retrieve(self, sources: Tensor, targets: Tensor) -> Tensor:
        """The bitext loss of this process's pairs against the texts of all processes."""
        loss = additive_margin_softmax(
            *(sources, targets, self.cmlm_args.margin),
            *(gather_with_gradient(sources), gather_with_gradient(targets), rank() * len(sources)),
        )
        return self._note("bitext", loss)

    def _note(self, name: str, loss: Tensor) -> Tensor:
        self._seen.setdefault(f"loss_{name}", []).append(loss.detach())
        return loss

    def _checked(self, loss: Tensor) -> Tensor:
        if not torch.isfinite(loss):
            raise InputError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}; "
                "try --bf16 instead of --fp16, or a lower --learning_rate"
            )
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {name: round(torch.stack(values).mean().item(), 4) for name, values in self._seen.items()}
            self._seen.clear()
        super().log(logs, start_time)

    def _get_train_sampler(self, train_dataset=None) -> Sampler | None:
        """In order: the dataset itself draws the order of an epoch."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return None if isinstance(dataset, IterableDataset) else SequentialSampler(dataset)

    def encoder(self) -> Encoder:
        """The encoder as it stands; leaves the model in eval mode, which the next step undoes."""
        model = self._bare_model().eval()
        head = mean_projection(model.projection) if self.sentence_vector == "proj" else ()
        return Encoder(model.encoder, self.processing_class, model.config.pooling, self.max_seq_length, head)

    def _bare_model(self) -> CMLMModel:
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        if self.args.should_save:
            save_cmlm(
                *(output_dir or self.args.output_dir, self._bare_model(), self.processing_class),
                *(self.max_seq_length, self.sentence_vector, self.settings),
            )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_weights(self._bare_model() if model is None else model, resume_from_checkpoint)


def freeze_idle_parts(model: CMLMModel, stage: str) -> None:
    """Only what a stage uses gets a gradient: DDP waits for the gradient of every other weight."""
    for name, parameter in parts_of(model).items():
        of_classifier = name.startswith("nli.")
        parameter.requires_grad_(of_classifier if stage == "nli" else "cmlm" in stage and not of_classifier)


def count_of_all(count: Tensor) -> Tensor:
    """Sum of a number over all processes, so that every masked token weighs the same wherever it is."""
    total = count.clone().float()
    if world_size() > 1:
        dist.all_reduce(total)
    return total


def _lamb(cmlm_args: CMLMArguments, args: CMLMTrainingArguments) -> tuple[type, dict] | None:
    """LAMB as its paper prints it: the decay is inside the update that the trust ratio scales."""
    if cmlm_args.optimizer != "lamb":
        return None
    betas = (args.adam_beta1, args.adam_beta2)
    return Lamb, {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon, "weight_decouple": False}

"""`Trainer` with a contrastive loss: one forward pass over both views of a batch, pool, compare."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler

from mirror.arguments import MirrorArguments
from mirror.checkpoint import save_encoder
from mirror.distributed import gather_with_gradient, rank
from mirror.encoder import Encoder
from mirror.errors import InputError
from mirror.gradient_cache import backward_through_cache
from mirror.hub import PushesCheckpoints
from mirror.interruption import InterruptibleTrainer
from mirror.lora import merged
from mirror.losses import alignment, info_nce, multi_similarity, uniformity
from mirror.packing import packed_forward
from mirror.pooling import pool
from mirror.temperature import LearnableTemperature, resume_temperature


MONITORED_ROWS = 256  # alignment and uniformity are read on at most this many rows of a step


class FreshViews(TrainerCallback):
    """Draws new masks at the start of each epoch, and the right ones after a resume."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        train_dataloader.dataset.set_epoch(int((state.epoch or 0) + 1e-6))


class MirrorTrainer(PushesCheckpoints, InterruptibleTrainer):
    """Trains an encoder so that the two views of a text meet and all others stay apart.

    Args:
        pooling: how token vectors become one (`mirror.pooling`).
        max_seq_length: goes into the checkpoint.
        mirror_args: temperature, form of the loss, whether to gather negatives.
        settings: the whole configuration, kept in the checkpoint.
        score: what to score while training: a function of an `Encoder` that returns `{task: main score}`.

    Raises:
        InputError: the temperature is to be learned where the optimizer's parameters are spread over processes.
    """

    def __init__(
        self,
        *args,
        pooling: str,
        max_seq_length: int,
        mirror_args: MirrorArguments,
        settings: dict | None = None,
        score: Callable[[Encoder], dict[str, float]] | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.pooling, self.max_seq_length, self.mirror_args = pooling, max_seq_length, mirror_args
        self.settings, self.score = settings or {}, score
        self.loss_is_scaled_for_ga = False  # our loss is a mean over the rows of one micro-batch
        self.can_return_loss, self.label_names = True, []  # or there is no eval_loss without labels
        self._monitored: dict[str, list[Tensor]] = {"alignment": [], "uniformity": []}
        self.add_callback(FreshViews())
        self.learned = None
        if mirror_args.learnable_temperature:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise InputError("--learnable_temperature does not work with FSDP or DeepSpeed; leave it out")
            self.learned = LearnableTemperature(mirror_args.temperature, self.args.device)
            self.add_callback(self.learned)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        first, second = self.embed(model, inputs).chunk(2)  # (B, D) each
        loss = self.contrast(first, second)
        if model.training:
            self._monitor(first.detach(), second.detach())
        return (loss, {"first": first, "second": second}) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        if "mini_batches" not in inputs:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        loss, first, second = backward_through_cache(
            mini_batches=self._prepare_inputs(inputs)["mini_batches"],
            embed=partial(self.embed, model),
            contrast=self.contrast,
            backward=lambda loss: self.accelerator.backward(loss / self.current_gradient_accumulation_steps),
            synchronised=lambda last: nullcontext() if last else self.accelerator.no_sync(model),
        )
        self._monitor(first, second)
        return loss / self.current_gradient_accumulation_steps

    def embed(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Vectors of all 2B rows of a batch, (2B, D), in one forward pass."""
        if "lengths" in inputs:  # packed
            return pool(*packed_forward(model, inputs, self.pooling), self.pooling)
        output = model(**inputs, output_hidden_states=self.pooling == "first_last_mean")
        return pool(output, inputs["attention_mask"], self.pooling)

    def contrast(self, first: Tensor, second: Tensor) -> Tensor:
        """The loss of this process's rows against its own or, with --gather_negatives, everyone's.

        Raises:
            InputError: it is not finite.
        """
        candidates = {}
        if self.mirror_args.gather_negatives:
            candidates = {
                "all_first": gather_with_gradient(first),
                "all_second": gather_with_gradient(second),
                "offset": rank() * len(first),
            }
        if self.mirror_args.loss == "multi_similarity":
            loss = multi_similarity(first, second, **candidates)
        else:
            temperature = self.learned.value() if self.learned else self.mirror_args.temperature
            loss = info_nce(first, second, temperature, self.mirror_args.loss, **candidates)
        if not torch.isfinite(loss):
            raise InputError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}; "
                "try --bf16 instead of --fp16, a lower --learning_rate or a higher --temperature"
            )
        return loss

    def _get_train_sampler(self, train_dataset=None):
        """`group_by_length` by our own lengths; batches are then alike in length, which changes who meets whom."""
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthGroupedSampler(batch, lengths=self.train_dataset.lengths())

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """All of them, biases and norms too: what the released code decays."""
        return [name for name, _ in model.named_parameters()]

    def _get_grad_norm(self, model, grad_norm=None):
        """Only where it is logged: without clipping, Trainer would read and rewrite all gradients at every step for it."""
        due = (self.state.global_step + 1) % self.state.logging_steps == 0
        return super()._get_grad_norm(model, grad_norm) if due else grad_norm

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and self.learned:
            optimizer.add_param_group(self.learned.parameter_group())
        return optimizer

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.learned and self.args.should_save:
            self.learned.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint:
            resume_temperature(self.learned, checkpoint)
        super()._load_optimizer_and_scheduler(checkpoint)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            for name, values in self._monitored.items():
                logs[name] = round(torch.stack(values).mean().item(), 4)
                values.clear()
            if self.learned:
                logs["temperature"] = round(self.learned.value().item(), 6)
        super().log(logs, start_time)

    def _monitor(self, first: Tensor, second: Tensor) -> None:
        first, second = first[:MONITORED_ROWS], second[:MONITORED_ROWS]
        self._monitored["alignment"].append(alignment(first, second))
        self._monitored["uniformity"].append(uniformity(first))

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Scores of `--eval_tasks`, as `eval_<task>`; every process scores, so that all agree on the best checkpoint."""
        if self.score is None:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        scores = self.score(self.encoder())
        metrics = {f"{metric_key_prefix}_{task}": score for task, score in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def encoder(self, training: bool = True) -> Encoder:
        """The model as it stands, ready to encode; leaves it in eval mode, which the next step undoes.

        Args:
            training: keep the autocast that further steps need. Without it the vectors are those of the saved weights, as
                others will read them.
        """
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=training, keep_torch_compile=False)
        return Encoder(model.eval(), self.processing_class, self.pooling, self.max_seq_length)

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        """Weights and every description of the pooling; no pickled arguments beside them."""
        if self.args.should_save:
            model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
            if self.mirror_args.lora_rank:
                model = merged(model)
            save_encoder(
                *(output_dir or self.args.output_dir, model, self.processing_class),
                *(self.pooling, self.max_seq_length, self.settings),
            )

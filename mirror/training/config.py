"""The configuration of a training run: `BaseConfig` for every method, and `MirrorConfig` for Mirror-BERT."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, fields
from datetime import timedelta

import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from mirror.common.errors import InputError
from mirror.data.augmentation import augmentation_name
from mirror.data.views import ViewSettings
from mirror.training.options import (
    CRITERIA,
    KEEP_STEP,
    LEVELS,
    LIBRARY_DEFAULTS,
    BaseOptions,
    MirrorOptions,
    default_learning_rate,
    default_pooling,
    encoder_settings,
)


logger = logging.getLogger(__name__)

# Flags of TrainingArguments with one value that works here, and why.
FIXED = {
    "remove_unused_columns": (False, "the collator decides which columns reach the model"),
    "logging_nan_inf_filter": (False, "the first loss that is not finite stops the run"),
    "dataloader_persistent_workers": (False, "every epoch has new masks, and new workers to read them"),
}


@dataclass
class BaseConfig(BaseOptions, TrainingArguments):
    """`TrainingArguments` with the defaults that `MirrorConfig` and `CMLMConfig` share, and an automatic precision.

    Differences from `TrainingArguments`: `bf16` or `fp16` wherever the hardware is fast in it, the last incomplete
    batch is dropped (accelerate would fill it with rows from the start, which are false negatives), no checkpoints
    before the end, and `FIXED`.
    """

    weight_decay: float = LIBRARY_DEFAULTS["weight_decay"]
    logging_steps: float = LIBRARY_DEFAULTS["logging_steps"]
    save_strategy: str = LIBRARY_DEFAULTS["save_strategy"]
    dataloader_drop_last: bool = LIBRARY_DEFAULTS["dataloader_drop_last"]
    remove_unused_columns: bool | None = None
    logging_nan_inf_filter: bool | None = None
    dataloader_persistent_workers: bool | None = None

    def __post_init__(self) -> None:
        for name, value in ((item.name, getattr(self, item.name)) for item in fields(self)):
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"--{name} {value} is not a finite number")
        for name, (value, reason) in FIXED.items():
            if getattr(self, name) not in (None, value):
                raise InputError(f"--{name} must stay {str(value).lower()}: {reason}")
            setattr(self, name, value)
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise --bf16 is refused on a machine without a GPU
        if self.use_cpu:
            # AdamW's moments of rare words decay to subnormal numbers, with which a CPU is eight times as slow. Set
            # here, before torch starts its threads, which inherit the setting.
            torch.set_flush_denormal(True)
            # transformers passes the timeout on for GPUs only. The first process group that is made decides.
            PartialState(cpu=True, backend=self.ddp_backend, timeout=timedelta(seconds=self.ddp_timeout))
        self.bf16, self.fp16, self.precision_reason = choose_precision(self.bf16, self.fp16, self.use_cpu)
        if isinstance(self.resume_from_checkpoint, str) and self.resume_from_checkpoint.lower() in ("true", "false"):
            self.resume_from_checkpoint = self.resume_from_checkpoint.lower() == "true" or None
        super().__post_init__()


def choose_precision(bf16: bool | None, fp16: bool | None, use_cpu: bool) -> tuple[bool, bool, str]:
    """Return (bf16, fp16, reason): what the user asked for, otherwise what is fast on the device."""
    if fp16 and use_cpu:  # accelerate neither casts nor scales there, and does not say so
        return bool(bf16), False, "CPUs do not train in float16"
    if bf16 or fp16:
        return bool(bf16), bool(fp16), "requested"
    launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launcher in ("bf16", "fp16"):
        return launcher == "bf16", launcher == "fp16", "from accelerate's configuration"
    if bf16 is False or fp16 is False:
        return False, False, "requested"
    if use_cpu:
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return fast, False, "auto: the CPU multiplies bfloat16 in hardware" if fast else "auto: plain CPU"
    if not torch.cuda.is_available():
        return False, False, "auto: no CUDA"
    major, minor = torch.cuda.get_device_capability()
    bf16 = major >= 8
    return bf16, not bf16, f"auto: compute capability {major}.{minor}" + ("" if bf16 else " has no bfloat16")


@dataclass
class MirrorConfig(MirrorOptions, BaseConfig):
    """Configuration of a Mirror-BERT run.

    >>> config = MirrorConfig(level="sentence", output_dir="out")

    Every argument is a flag of run_mirror.py: `run_mirror.py --help` and `mirror/training/options.py` explain them,
    `--help_all` those of `TrainingArguments`. `augmentation` can also be a function `(text, rng) -> text`, which makes
    the second view of a text (`mirror.data.augmentation`).

    Note:
        Where the paper is silent, the defaults follow the released code and differ from `TrainingArguments`: batch
        200, learning rate 2e-5 (1e-4 for the embedded model) held constant, no gradient clipping, weight decay 0.01 on
        all weights (biases and norms too), one epoch for sentences and two for words and phrases, and what
        `BaseConfig` lists.

    Raises:
        InputError: a value outside its range, or two that contradict each other. Names the flag.
    """

    def __post_init__(self) -> None:
        MirrorOptions.__post_init__(self)
        BaseConfig.__post_init__(self)
        self._set_evaluation_defaults()
        for name in ("resume_from_checkpoint", "load_best_model_at_end"):
            if self.lora_rank and getattr(self, name):
                raise InputError(
                    f"--{name}: checkpoints with --lora_rank contain merged weights; leave out one of the two"
                )

    def resolve_for(
        self, model_name_or_path: str, model_type: str, pooling: str | None = None, pairs: bool = False
    ) -> dict[str, object]:
        """Fill in what depends on the base model: pooling, learning rate, and the settings for an encoder.

        Args:
            pooling: pooling of a base model that is an encoder already. With another pooling it is not one.
            pairs: whether the second text of a row is its second view. Encoders were measured without.

        Returns:
            The settings that differ from the level's because the base is an encoder, by the names of their flags.
        """
        self.pooling = self.pooling or pooling or LEVELS[self.level].get("pooling") or default_pooling(model_type)
        changed = encoder_settings(self.level, self.given) if self.pooling == pooling and not pairs else {}
        for name, value in changed.items():
            setattr(self, name, value)
        if self.learning_rate is None:
            self.learning_rate = default_learning_rate(model_name_or_path)
        return changed

    def at_most_one_pass(self, texts: int) -> None:
        """Train one pass where `resolve_for` set more steps: to repeat a few texts harms (docs/results.md)."""
        texts_per_step = self.train_batch_size * self.world_size * self.gradient_accumulation_steps
        if "max_steps" not in self.given and self.max_steps * texts_per_step > texts:
            logger.info("The corpus is smaller than %d steps; training one epoch", self.max_steps)
            self.max_steps = -1

    def view_settings(self, tokenizer: PreTrainedTokenizerBase, prompt: str = "") -> ViewSettings:
        """Return how the views are made with this tokenizer and this prompt.

        Raises:
            InputError: something is to be masked and the tokenizer has no mask token.
        """
        masks = self.augmentation in ("token", "whole_word") or self.masks_spans
        if masks and not self.mask_token and tokenizer.mask_token_id is None:
            raise InputError(
                f"the tokenizer of {tokenizer.name_or_path} has no mask token; use "
                f"{'--span_mask_length 0' if self.masks_spans else '--augmentation delete'}, "
                "or --mask_token with a literal"
            )
        return ViewSettings(
            span_mask_length=self.span_mask_length if self.augmentation == "span" else 0,
            span_mask_min_chars=self.span_mask_min_chars,
            mask_token=None if self.mask_token == tokenizer.mask_token else self.mask_token,
            max_seq_length=self.max_seq_length,
            seed=self.seed,
            augmentation=self.augmentation,
            rate=self.augmentation_rate or 0.0,
            both_views=self.augment_both_views,
            prompt=prompt,
        )

    def to_dict(self) -> dict[str, object]:
        """Return all settings as plain data. A function for `augmentation` is named."""
        return super().to_dict() | {"augmentation": augmentation_name(self.augmentation)}

    def _set_evaluation_defaults(self) -> None:
        """Evaluate where there is something to score, and let the scores choose the checkpoint."""
        loads_best = self.load_best_model_at_end
        if self.select_by or self.keep:
            if self.eval_strategy == IntervalStrategy.NO:
                self.eval_strategy, self.eval_steps = IntervalStrategy.STEPS, self.eval_steps or 0.1  # of the run
            self.save_strategy = SaveStrategy(self.eval_strategy.value)
            self.save_steps = self.eval_steps or self.save_steps
            self.save_total_limit = self.save_total_limit or 1  # beside the last one
            self.load_best_model_at_end = True
        if self.select_by:
            self.metric_for_best_model = self.select_by
        criterion = (self.metric_for_best_model or "").removeprefix("eval_")
        if criterion in CRITERIA:
            self.greater_is_better = CRITERIA[criterion] == "higher"
        if self.eval_tasks:
            self.eval_on_start = True
            if self.eval_strategy == IntervalStrategy.NO:
                self.eval_strategy = IntervalStrategy.EPOCH
            if self.metric_for_best_model in (None, "loss"):
                self.metric_for_best_model, self.greater_is_better = self.eval_tasks[0], True
        if self.keep:
            self.eval_on_start = True
            if not (self.select_by or loads_best):
                self.metric_for_best_model, self.greater_is_better = KEEP_STEP, True

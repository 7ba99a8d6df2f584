"""The configuration of a training run: `BaseConfig` for every method, and `MirrorConfig` for Mirror-BERT."""

from __future__ import annotations

import copy
import logging
import math
import multiprocessing
import os
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib.util import find_spec

import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments, get_scheduler
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from mirror.common.cli import above, at_least, condition, one_of
from mirror.common.errors import InputError, library_errors
from mirror.data.augmentation import augmentation_name
from mirror.data.views import ViewSettings
from mirror.modeling.static import StaticConfig
from mirror.training import options
from mirror.training.options import LEARNING_RATE, LIBRARY_DEFAULTS, BaseOptions, MirrorOptions
from mirror.training.record import well_formed


logger = logging.getLogger(__name__)

# Flags of TrainingArguments with one value that works here, and why.
FIXED = {
    "remove_unused_columns": (False, "the collator decides which columns reach the model"),
    "logging_nan_inf_filter": (False, "the first loss that is not finite stops the run"),
    "dataloader_persistent_workers": (False, "every epoch has new masks, and new workers to read them"),
    "save_only_model": (False, "a run resumes from the optimizer's state too"),
    "label_smoothing_factor": (0.0, "the losses here have none"),
}
_not_negative, _positive, _count = at_least(0), above(0), at_least(1)
_moment = condition(lambda beta: 0 <= beta < 1, "in [0, 1)")
LARGEST, LARGEST_SEED = 2**31 - 1, 2**32 - 1  # no flag means more than an int of C holds, and NumPy's seeds end there
# Ranges of flags of TrainingArguments, which transformers and torch check late or not at all.
RANGES = {
    name: check
    for check, names in (
        (_count, "per_device_train_batch_size per_device_eval_batch_size preprocessing_num_workers ddp_timeout"),
        (_count, "gradient_accumulation_steps eval_accumulation_steps dataloader_prefetch_factor ddp_bucket_cap_mb"),
        (_count, "torch_empty_cache_steps"),
        (_not_negative, "max_grad_norm warmup_steps eval_delay save_total_limit dataloader_num_workers"),
        (_not_negative, "neftune_noise_alpha seed data_seed"),
        # Without an epsilon, the row of a token that no batch has had becomes 0 / 0.
        (_positive, "logging_steps save_steps eval_steps num_train_epochs adam_epsilon"),
        (_moment, "adam_beta1 adam_beta2"),
        (condition(lambda rate: 0 <= rate <= 100, "between 0 and 100"), "learning_rate weight_decay"),
        (condition(lambda steps: steps == -1 or steps > 0, "positive, or -1 for no limit"), "max_steps"),
    )
    for name in names.split()
}


@dataclass
class BaseConfig(BaseOptions, TrainingArguments):
    """`TrainingArguments` with the defaults that `MirrorConfig` and `CMLMConfig` share, and an automatic precision.

    The last incomplete batch is dropped: accelerate would fill it with rows from the start, which are false negatives.
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
            if isinstance(value, (int, float)) and value > (LARGEST_SEED if name.endswith("seed") else LARGEST):
                raise InputError(f"--{name} {value:g} is too large")
            if isinstance(value, str) and well_formed(value) != value:
                advice = "give another, or use a UTF-8 locale such as LC_ALL=C.UTF-8"
                raise InputError(f"--{name} {value!r} is not UTF-8; {advice}")
            if value is not None and name in RANGES:
                RANGES[name](f"--{name}", value)
        if self.use_liger_kernel and find_spec("liger_kernel") is None:
            raise InputError("--use_liger_kernel needs liger-kernel: pip install liger-kernel, or leave the flag out")
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
        check_optimizer(self)
        if (context := self.dataloader_multiprocessing_context) is not None:
            one_of(multiprocessing.get_all_start_methods())("--dataloader_multiprocessing_context", context)

    @property
    def script_log_level(self) -> int:
        """The level of `--log_level` on this process. Default: information, where transformers has warnings."""
        return logging.INFO if self.log_level == "passive" else self.get_process_log_level()


def check_optimizer(args: TrainingArguments) -> None:
    """Build optimizer and schedule for one weight, because transformers refuses wrong flags only after the texts."""
    optim, schedule = getattr(args.optim, "value", args.optim), getattr(args.lr_scheduler_type, "value", "")
    tried = copy.copy(args)
    tried.learning_rate = LEARNING_RATE if args.learning_rate is None else args.learning_rate
    if not (args.optim_target_modules or "lomo" in optim or args.deepspeed):  # these need the real model
        with library_errors(f"--optim {optim}"):
            kind, options = Trainer.get_optimizer_cls_and_kwargs(tried)
            kind([torch.nn.Parameter(torch.zeros(1))], **options)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=tried.learning_rate)
    with library_errors(f"--lr_scheduler_type {schedule} with --lr_scheduler_kwargs {args.lr_scheduler_kwargs}"):
        given = args.lr_scheduler_kwargs
        get_scheduler(args.lr_scheduler_type, optimizer, 1, 10, scheduler_specific_kwargs=given)


def choose_precision(bf16: bool | None, fp16: bool | None, use_cpu: bool) -> tuple[bool, bool, str]:
    """Return (bf16, fp16, reason): what the user asked for, otherwise what is fast on the device."""
    if fp16 and use_cpu:  # accelerate neither casts nor scales there, and does not say so
        return bool(bf16), False, "CPUs do not train in float16"
    if bf16 or fp16:
        return bool(bf16), bool(fp16), "requested"
    launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launcher == "bf16" or (launcher == "fp16" and not use_cpu):
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
    """Configuration of a Mirror-BERT run: `MirrorConfig(level="sentence", output_dir="out")`.

    Every argument is a flag of run_mirror.py: `run_mirror.py --help` and `mirror/training/options.py` explain them,
    `--help_all` those of `TrainingArguments`. `augmentation` can also be a function `(text, rng) -> text`, which makes
    the second view of a text (`mirror.data.augmentation`). Where the paper is silent, the defaults follow the released
    code.

    Raises:
        InputError: a value outside its range, or two that contradict each other. Names the flag.
    """

    def __post_init__(self) -> None:
        MirrorOptions.__post_init__(self)
        BaseConfig.__post_init__(self)
        self._set_evaluation_defaults()

    repeats_pairs = False  # whether `fit_length` may train several passes, set by `resolve_for`

    def resolve_for(
        self,
        model_name_or_path: str,
        model_type: str,
        pooling: str | None = None,
        pairs: bool = False,
        names: bool = False,
        length: int | None = None,
        direction: str | None = None,
        masks: bool = True,
        weights: int = 0,
    ) -> dict[str, object]:
        """Fill in what depends on the base model: pooling, learning rate, and the settings for an encoder.

        Args:
            pooling, length: of a base model that is an encoder already. With another pooling it is not one.
            pairs: whether the second text of a row is its second view.
            names: whether the texts are names or words.
            direction: `causal` or `bidirectional` for a decoder.
            masks: whether its tokenizer has a mask token.
            weights: number of weights of the model, for the default of `lora_rank`.

        Returns the settings that differ from the level's because of the base, by the names of their flags.
        """
        of_level = None if direction else options.LEVELS[self.level].get("pooling")
        self.pooling = self.pooling or pooling or of_level or options.default_pooling(model_type, direction)
        adapts = self.pooling == pooling
        changed = options.encoder_settings(self.level, self.given, pairs, names) if adapts else {}
        has_own_length = self.level in options.TEXT_LEVELS and not self.given & {*options.RUN_LENGTH}
        self.repeats_pairs = adapts and pairs and has_own_length
        if own := self.own_length(pooling, length):
            changed["max_seq_length"] = own
        if not masks and self.masks_spans and "augmentation" not in changed and not self.given & {*options.TEXT_NOISE}:
            changed |= options.MASKLESS_PAIRS if pairs else options.MASKLESS
        if model_type == StaticConfig.model_type and self.learning_rate is None:
            changed["learning_rate"] = options.STATIC_LEARNING_RATE
        if weights > options.LORA_ABOVE and self.lora_rank is None:
            changed["lora_rank"] = options.LORA_RANK
            changed |= {} if self.learning_rate is not None else {"learning_rate": options.LORA_LEARNING_RATE}
        for name, value in changed.items():
            setattr(self, name, value)
        if self.learning_rate is None:
            self.learning_rate = options.default_learning_rate(model_name_or_path)
        return changed

    def own_length(self, pooling: str | None, length: int | None) -> int | None:
        """Return the `length` of the texts of a base encoder with this `pooling`, or None where this run has another."""
        return length if self.pooling in (None, pooling) and "max_seq_length" not in self.given else None

    def finds_titles(self, pooling: str | None) -> bool:
        """Return whether titles among the texts become pairs: for a base encoder that keeps its `pooling`, with default noise."""
        keeps = pooling is not None and self.pooling in (None, pooling)
        return keeps and self.level in options.TEXT_LEVELS and not self.given & {*options.TEXT_NOISE}

    def fit_batch(self, rows: int) -> None:
        """Make the default batch as small as a corpus of so many rows."""
        share = rows // self.world_size
        if self.per_device_train_batch_size == options.BATCH_SIZE > share > 1:
            logger.info("The corpus is small; %d texts per step, where %d are the default", share, options.BATCH_SIZE)
            self.per_device_train_batch_size = share

    def fit_length(self, rows: int) -> None:
        """Fit the default length of an adaptation to a corpus of so many rows.

        Of texts the steps of `resolve_for`, at most one pass: to repeat a few texts harms (docs/results.md). Of pairs one
        pass, or as many as fit into the same steps, at most ten: two steps change nothing (docs/documents.md).
        """
        rows_per_step = self.train_batch_size * self.world_size * self.gradient_accumulation_steps
        if self.repeats_pairs:
            passes = options.PAIR_STEPS // max(rows // rows_per_step, 1)
            self.num_train_epochs = float(min(max(passes, 1), options.MAX_PASSES))
            if self.num_train_epochs > 1:
                logger.info("The corpus is small; training %d epochs", self.num_train_epochs)
        elif "max_steps" not in self.given and self.max_steps * rows_per_step > rows:
            logger.info("Small corpus: training %g epoch(s), not %d steps", self.num_train_epochs, self.max_steps)
            self.max_steps = -1

    def view_settings(
        self, tokenizer: PreTrainedTokenizerBase, prompt: str = "", second_prompt: str | None = None
    ) -> ViewSettings:
        """Return how the views are made with this tokenizer and this prompt, or these two."""
        masks = self.augmentation in ("token", "whole_word") or self.masks_spans
        if masks and not self.mask_token and tokenizer.mask_token_id is None:
            name, use = tokenizer.name_or_path, "span_mask_length 0" if self.masks_spans else "augmentation delete"
            raise InputError(f"the tokenizer of {name} has no mask token; use --{use}, or --mask_token with a literal")
        return ViewSettings(
            span_mask_length=self.span_mask_length if self.augmentation == "span" else 0,
            span_mask_min_chars=self.span_mask_min_chars,
            mask_token=None if self.mask_token == tokenizer.mask_token else self.mask_token,
            max_seq_length=self.max_seq_length,
            seed=self.seed,
            augmentation=self.augmentation,
            rate=self.augmentation_rate or 0.0,
            prompt=prompt,
            second_prompt=second_prompt,
        )

    def to_dict(self) -> dict[str, object]:
        """Return all settings as plain data. A function for `augmentation` is named."""
        # transformers hides every `*_token`, and this one is no secret.
        own = {"augmentation": augmentation_name(self.augmentation), "mask_token": self.mask_token}
        return super().to_dict() | own

    def _set_evaluation_defaults(self) -> None:
        """Evaluate where there is something to score, and let the scores choose the checkpoint."""
        loads_best = self.load_best_model_at_end
        if self.eval_on_start and self.eval_strategy == IntervalStrategy.NO and not (self.eval_tasks or self.keep):
            raise InputError("--eval_on_start scores what --eval_strategy, --eval_tasks or --keep ask for; give one")
        if self.select_by or self.keep:
            if self.eval_strategy == IntervalStrategy.NO:
                self.eval_strategy, self.eval_steps = IntervalStrategy.STEPS, self.eval_steps or 0.1  # of the run
            self.save_strategy = SaveStrategy(self.eval_strategy.value)
            self.save_steps = self.eval_steps or self.save_steps
            self.save_total_limit = self.save_total_limit or 1  # beside the last one
            self.load_best_model_at_end = True
        if self.select_by:
            self.metric_for_best_model, self.greater_is_better = self.select_by, True
        if self.eval_tasks:
            self.eval_on_start = True
            if self.eval_strategy == IntervalStrategy.NO:
                self.eval_strategy = IntervalStrategy.EPOCH
            if self.metric_for_best_model in (None, "loss"):
                self.metric_for_best_model, self.greater_is_better = self.eval_tasks[0], True
        if self.keep:
            self.eval_on_start = True
            if not (self.select_by or loads_best):
                self.metric_for_best_model, self.greater_is_better = options.KEEP_STEP, True
        if self.eval_strategy != IntervalStrategy.NO and self.metric_for_best_model == "loss":  # of transformers
            self.metric_for_best_model, self.greater_is_better = options.OWN_TEXT, True

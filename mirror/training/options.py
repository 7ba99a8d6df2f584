"""The flags of Mirror-BERT, in the groups of `run_mirror.py --help`, and their checks. Imports no torch: mistakes answer at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from mirror.common.cli import one_of, probability
from mirror.common.errors import InputError
from mirror.data.augmentation import AUGMENTATIONS, DEFAULT_RATES
from mirror.modeling.choices import POOLING_MODES, Attention, Packing
from mirror.training.base_options import BaseOptions, check_max_seq_length
from mirror.training.beyond_options import BeyondOptions
from mirror.training.choices import CRITERIA, KEEP_WITHIN, KEEP_WITHIN_TEXTS, LOSSES, OWN_TEXT
from mirror.training.levels import (
    EMBEDDED_LEARNING_RATE,
    ENCODER_SETTINGS,
    LEARNING_RATE,
    LEVELS,
    TEXT_NOISE,
    noise_of_encoders,
)


# Flags whose default depends on the level, and on whether the base model is an encoder already.
RESOLVED = {*LEVELS["sentence"], *TEXT_NOISE, "learning_rate"}.union(*ENCODER_SETTINGS.values())


@dataclass
class MirrorRunOptions:
    """Flags of `TrainingArguments` with other defaults."""

    _argument_group_name = "Run"

    output_dir: str = field(default="out/mirror", metadata={"help": "Where the encoder is saved."})
    per_device_train_batch_size: int = field(
        default=200, metadata={"help": "Texts per step on each device; twice as many views."}
    )
    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": f"AdamW's rate. Default: {LEARNING_RATE:g}; {EMBEDDED_LEARNING_RATE:g} for the embedded model."
        },
    )
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Schedule of the rate."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip the gradient to this norm; 0: no clipping."})
    num_train_epochs: float | None = field(
        default=None,
        metadata={
            "help": "Passes over the texts, each with new masks. Default of the level: 2, 2, 1. For an encoder "
            "see --max_steps."
        },
    )
    max_steps: int = field(
        default=-1,
        metadata={
            "help": "Steps of the training, however many passes that is; -1: as many as --num_train_epochs asks for. Default: "
            f"-1; for sentences and a base model that is an encoder already {ENCODER_SETTINGS['sentence']['max_steps']}, but not "
            "more than one pass."
        },
    )


@dataclass
class EvaluationOptions:
    """What is scored while training."""

    _argument_group_name = "Evaluation while training"

    eval_tasks: list[str] | None = field(
        default=None,
        metadata={"help": "Tasks of run_eval.py to score before training and at every evaluation, e.g. stsb_dev."},
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Data folder of --eval_tasks and --keep (default: MIRROR_DATA_DIR)."}
    )
    validation_samples: int | None = field(
        default=None,
        metadata={
            "help": "Texts held out of training, on which the encoder is tested at the end without labels, beside the base model: "
            "can it find each by some of its words, and by its first half? Default: 1000, at most a tenth of the corpus, "
            "none of a corpus below 500 texts; 0: train on all."
        },
    )
    select_by: str | None = field(
        default=None,
        metadata={
            "help": "Keep the checkpoint that is best on the --validation_samples, out of ten unless --eval_steps says "
            f"otherwise, by one of: {', '.join(CRITERIA)}. The flag alone means {OWN_TEXT}.",
            "nargs": "?",
            "const": OWN_TEXT,
        },
    )
    keep: str | None = field(
        default=None,
        metadata={
            "help": "A second score that the training must not lose, measured before it and at every evaluation (ten, unless "
            "--eval_strategy or --eval_steps says otherwise): a task of run_eval.py; a .tsv with two columns of texts and a "
            "column score; or a file of texts, whose cosines with each other are compared with those of the base model."
        },
    )
    keep_within: float | None = field(
        default=None,
        metadata={
            "help": "How much of --keep may be lost. A run that loses more stops there, and the best step within the bound is "
            f"saved: by --select_by, or without it the last. Default: {KEEP_WITHIN}; {KEEP_WITHIN_TEXTS} for a file of texts."
        },
    )


@dataclass
class LossOptions:
    """What pulls the two views of a text together."""

    _argument_group_name = "Loss"

    loss: str = field(
        default="nt_xent",
        metadata={
            "help": f"What pulls the two views of a text together: {', '.join(LOSSES)}; see docs/augmentation.md."
        },
    )
    temperature: float | None = field(
        default=None,
        metadata={"help": "Tau of InfoNCE. Default of the level: 0.2 for words, 0.04 for phrases and sentences."},
    )
    learnable_temperature: bool = field(
        default=False,
        metadata={"help": "Train tau's logarithm too, starting from --temperature, without weight decay."},
    )
    mini_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Texts in memory at once: gradient caching fits any batch, in a third more time. Default: the whole batch."
        },
    )
    gather_negatives: bool = field(
        default=False,
        metadata={"help": "Compare with the texts of all processes, not only this one's; exact gradient."},
    )


@dataclass
class ViewOptions:
    """How the two views of a text differ."""

    _argument_group_name = "Views"

    level: str = field(default="sentence", metadata={"help": f"Preset of the paper: {', '.join(LEVELS)}."})
    span_mask_length: int | None = field(
        default=None,
        metadata={"help": "Characters masked in the second view; 0: none. Default of the level: 0, 2, 5."},
    )
    span_mask_min_chars: int | None = field(
        default=None, metadata={"help": "Shorter texts are never masked. Default of the level: 30, 8, 30."}
    )
    mask_token: str | None = field(
        default=None,
        metadata={
            "help": "A literal instead of the tokenizer's mask token (released RoBERTa models saw '[MASK]'). Default: that one."
        },
    )
    augmentation: str | None = field(
        default=None,
        metadata={
            "help": f"Noise of the second view's text: {', '.join(AUGMENTATIONS)}. span: consecutive characters are masked; "
            "token and whole_word: masked one by one; reorder: words swap places; delete: words are left out; crop: "
            "consecutive words are kept; repeat: words are said twice. "
            f"Default: span; {noise_of_encoders()} for sentences and a base model that is an encoder already."
        },
    )
    augmentation_rate: float | None = field(
        default=None,
        metadata={
            "help": "Share of the words or tokens that the noise changes. Default: "
            f"{', '.join(f'{name} {rate}' for name, rate in DEFAULT_RATES.items())}; "
            "span has --span_mask_length instead."
        },
    )
    augment_both_views: bool = field(
        default=False, metadata={"help": "The same kind of noise, drawn independently, in the first view too."}
    )


@dataclass
class EncoderOptions:
    """The model, and the noise in it."""

    _argument_group_name = "Encoder"

    pooling: str | None = field(
        default=None,
        metadata={
            "help": f"How token vectors become one: {', '.join(POOLING_MODES)}. Default: cls for words, phrases and "
            "RoBERTa, mean for other sentence encoders."
        },
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={
            "help": "Tokens per text, special ones included; the rest is cut. Default of the level: 25, 25, 50."
        },
    )
    prompt: str | None = field(
        default=None,
        metadata={"help": "Put this before every text, unmasked; '' for none. Default: what the base model says."},
    )
    prompt_name: str | None = field(
        default=None,
        metadata={"help": "The base model's prompt of this name, such as query, instead. Default: its own."},
    )
    pad_to: int | None = field(
        default=None,
        metadata={
            "help": "Pad every row to this length. Only mean_padded depends on it (default there: --max_seq_length)."
        },
    )
    packing: str = field(
        default="auto",
        metadata={
            "help": "Train without padding, all texts of a batch end to end in one row: on, off, or auto (wherever the "
            "model's attention allows it)."
        },
    )
    attention: str | None = field(
        default=None,
        metadata={
            "help": "kernels: packed attention on a GPU by flash-attn as the package kernels downloads it, without a build. "
            "Default: by flash-attn if it is installed, else padded."
        },
    )
    lora_rank: int | None = field(
        default=None,
        metadata={
            "help": "Train low-rank updates of this rank instead of all weights (needs peft); merged when saved. "
            "They need a higher rate, e.g. --learning_rate 2e-4."
        },
    )
    dropout_rate: float | None = field(
        default=None,
        metadata={
            "help": "Every dropout of the model, attention's included. Default: 0.1, or 0 with --drophead_rate."
        },
    )
    drophead_rate: float = field(
        default=0.0,
        metadata={"help": "Probability that an attention head is dropped; the paper: 0.2 for BERT, 0.05 for RoBERTa."},
    )
    controlled_dropout: bool = field(
        default=False, metadata={"help": "Both views of a text see the same dropout masks (Table 8 of the paper)."}
    )


@dataclass
class MirrorOptions(
    MirrorRunOptions, EncoderOptions, ViewOptions, LossOptions, BeyondOptions, EvaluationOptions, BaseOptions
):
    """What `MirrorConfig` adds to transformers' `TrainingArguments`.

    Raises:
        InputError: a value outside its range, or two that contradict each other; names the flag.
    """

    def __post_init__(self) -> None:
        one_of("--level", self.level, LEVELS)
        # What `MirrorConfig.resolve_for` must leave as it is; -1 is `max_steps` not given.
        self.given = frozenset(name for name in RESOLVED if getattr(self, name) not in (None, -1))
        for name, value in LEVELS[self.level].items():
            # The pooling waits for `MirrorConfig.resolve_for`: what the base model says comes first.
            if getattr(self, name) is None and name != "pooling":
                setattr(self, name, value)
        if self.dropout_rate is None:
            self.dropout_rate = 0.0 if self.drophead_rate else 0.1  # section 4.4: drophead replaces dropout
        self._check_model()
        self._check_augmentation()
        self._check_training()
        self.check_beyond()

    @property
    def masks_spans(self) -> bool:
        return self.augmentation == "span" and self.span_mask_length > 0

    def _check_augmentation(self) -> None:
        if self.span_mask_length < 0:
            raise InputError(f"--span_mask_length must be 0 or more characters, got {self.span_mask_length}")
        self.augmentation = self.augmentation or "span"
        one_of("--augmentation", self.augmentation, AUGMENTATIONS)
        if self.augmentation_rate is None:
            self.augmentation_rate = DEFAULT_RATES.get(self.augmentation)
        elif self.augmentation not in DEFAULT_RATES:
            raise InputError(
                f"--augmentation {self.augmentation} has no rate; leave --augmentation_rate out, or choose one of "
                f"{', '.join(DEFAULT_RATES)}"
            )
        else:
            probability("--augmentation_rate", self.augmentation_rate, "a share of the words or tokens")
        if self.augmentation == "token" and self.mask_token:
            raise InputError(
                "--augmentation token masks with the tokenizer's own mask token; leave --mask_token out, "
                "or use --augmentation whole_word"
            )

    def _check_model(self) -> None:
        one_of("--packing", self.packing, get_args(Packing))
        if self.attention is not None:
            one_of("--attention", self.attention, get_args(Attention))
        if self.pooling is not None:
            one_of("--pooling", self.pooling, POOLING_MODES)
        check_max_seq_length(self.max_seq_length)
        if self.prompt is not None and self.prompt_name is not None:
            raise InputError("give --prompt or --prompt_name, not both")
        probability("--dropout_rate", self.dropout_rate, "the paper uses 0.1")
        probability("--drophead_rate", self.drophead_rate, "the paper uses 0.2 for BERT and 0.05 for RoBERTa")

    def _check_training(self) -> None:
        one_of("--loss", self.loss, LOSSES)
        if self.temperature <= 0:
            raise InputError(f"--temperature must be positive, got {self.temperature}; the paper uses 0.04 or 0.2")
        if self.learnable_temperature and self.loss == "multi_similarity":
            raise InputError("--loss multi_similarity has no temperature; leave --learnable_temperature out")
        if self.mini_batch_size is not None and self.mini_batch_size < 1:
            raise InputError(f"--mini_batch_size must be at least 1, got {self.mini_batch_size}")
        if self.select_by is not None:
            one_of("--select_by", self.select_by, CRITERIA)
        if self.keep and self.keep_within is None:
            is_file_of_texts = Path(self.keep).is_file() and Path(self.keep).suffix != ".tsv"
            self.keep_within = KEEP_WITHIN_TEXTS if is_file_of_texts else KEEP_WITHIN
        if self.keep_within is not None and self.keep_within < 0:
            raise InputError(f"--keep_within must be 0 or more, got {self.keep_within}")
        if self.validation_samples is not None and (self.validation_samples < 0 or self.validation_samples == 1):
            raise InputError(f"--validation_samples must be 0 or at least 2, got {self.validation_samples}")
        if self.select_by and self.validation_samples == 0:
            raise InputError(f"--select_by {self.select_by} needs held-out texts; leave out --validation_samples 0")

"""What a user can set about a Mirror-BERT run: `MirrorConfig`, and the presets of the paper's levels."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from mirror.assets import EMBEDDED_MODEL
from mirror.common.cli import one_of, probability
from mirror.common.errors import InputError
from mirror.data.augmentation import AUGMENTATIONS, DEFAULT_RATES
from mirror.data.two_view_dataset import ViewSettings
from mirror.modeling.packing import Packing
from mirror.modeling.pooling import POOLING_MODES
from mirror.training.base_config import BaseConfig
from mirror.training.checkpoint_selection import CRITERION
from mirror.training.lora import check_lora
from mirror.training.losses import LOSSES


# Mirror-BERT, section 3 and appendix B; `span_mask_min_chars` of sentences is the released code's, that of phrases is
# ours: the paper masks two characters of biomedical names, most of which are shorter than thirty.
LEVELS = {
    "word": {
        "temperature": 0.2,
        "span_mask_length": 0,
        "span_mask_min_chars": 30,
        "num_train_epochs": 2.0,
        "max_seq_length": 25,
        "pooling": "cls",
    },
    "phrase": {
        "temperature": 0.04,
        "span_mask_length": 2,
        "span_mask_min_chars": 8,
        "num_train_epochs": 2.0,
        "max_seq_length": 25,
        "pooling": "cls",
    },
    "sentence": {
        "temperature": 0.04,
        "span_mask_length": 5,
        "span_mask_min_chars": 30,
        "num_train_epochs": 1.0,
        "max_seq_length": 50,
    },  # pooling depends on the model: see `default_pooling`
}
# The paper's rate. Adam moves every weight by about the rate, so the output of a layer moves in proportion to its width, and
# the embedded model, which is 256 wide instead of 768, needs more: chosen on STS-B dev (docs/results.md).
LEARNING_RATE, EMBEDDED_LEARNING_RATE = 2e-5, 2e-4
# Appendix B: only BERT on sentences is mean-pooled, all other models take the first token.
CLS_FAMILIES = ("roberta", "xlm-roberta", "camembert")


def default_learning_rate(model_name_or_path: str) -> float:
    """AdamW's rate where the user gives none."""
    is_embedded = Path(model_name_or_path).resolve() == EMBEDDED_MODEL
    return EMBEDDED_LEARNING_RATE if is_embedded else LEARNING_RATE


def default_pooling(model_type: str) -> str:
    """The paper's choice for sentences (appendix B)."""
    return "cls" if model_type in CLS_FAMILIES else "mean"


@dataclass
class MirrorConfig(BaseConfig):
    """Everything that can be set about turning a masked LM into an encoder with Mirror-BERT.

    >>> config = MirrorConfig(level="sentence", output_dir="out")

    Model:
        pooling: how token vectors become one (`mirror.modeling.pooling.pool`). Default: `cls` for words, phrases and
            RoBERTa, `mean` for other sentence encoders.
        max_seq_length: tokens per text, special ones included; default of the level: 25, 25, 50.
        pad_to: pad every row to this length; only `mean_padded` depends on it.
        packing: train without padding: "auto", "on" or "off".
        lora_rank: train low-rank updates of this rank instead of all weights.
        dropout_rate, drophead_rate, controlled_dropout: the noise inside the model (Mirror-BERT, sections 2.2 and 4.4).

    Views:
        level: "word", "phrase" or "sentence": the preset that fills in what is not given.
        span_mask_length, span_mask_min_chars, mask_token: the span mask of the second view (section 2).
        augmentation, augmentation_rate, augment_both_views: other noise on the text.

    Training:
        loss, temperature, learnable_temperature: what pulls the two views together (section 2, Eq. 1).
        mini_batch_size: texts in memory at once (gradient caching).
        gather_negatives: compare with the texts of all processes.
        eval_tasks, data_dir: tasks to score while training.
        validation_samples, select_by: texts held out, and the criterion that chooses the checkpoint.

    Note:
        Where the paper is silent, the defaults follow the released code, and differ from `TrainingArguments`: batch 200,
        learning rate 2e-5 (2e-4 for the embedded model) held constant, no gradient clipping, weight decay 0.01 on all
        weights (biases and norms too), one epoch for sentences and two for words and phrases, and what `BaseConfig` lists.

    Raises:
        InputError: a value outside its range, or two that contradict each other; names the flag.
    """

    # ---- Overridden defaults ---------------------------------------------------------------------------------------
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
        default=None, metadata={"help": "Passes over the texts, each with new masks. Default of the level: 2, 2, 1."}
    )

    # ---- Model -----------------------------------------------------------------------------------------------------
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

    # ---- Views -----------------------------------------------------------------------------------------------------
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
        metadata={"help": "A literal instead of the tokenizer's mask token (released RoBERTa models saw '[MASK]')."},
    )
    augmentation: str = field(
        default="span",
        metadata={
            "help": f"Noise of the second view's text: {', '.join(AUGMENTATIONS)}. span: consecutive characters are masked; "
            "token and whole_word: masked one by one; reorder: words swap places; delete: words are left out; crop: "
            "consecutive words are kept."
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

    # ---- Training --------------------------------------------------------------------------------------------------
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
        metadata={"help": "Texts in memory at once: gradient caching fits any batch, in a third more time."},
    )
    gather_negatives: bool = field(
        default=False,
        metadata={"help": "Compare with the texts of all processes, not only this one's; exact gradient."},
    )
    eval_tasks: list[str] | None = field(
        default=None, metadata={"help": "Tasks of run_eval.py to score while training, e.g. stsb_dev."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Data folder of --eval_tasks (default: MIRROR_DATA_DIR)."}
    )
    validation_samples: int | None = field(
        default=None,
        metadata={
            "help": "Texts to hold out of training; every evaluation then reports their alignment and uniformity "
            "(lower is better), which need no labels."
        },
    )
    select_by: str | None = field(
        default=None,
        metadata={
            "help": "alignment_uniformity: keep the checkpoint that is best on --validation_samples (default there: "
            "500), out of ten unless --eval_steps says otherwise."
        },
    )

    def __post_init__(self) -> None:
        one_of("--level", self.level, LEVELS)
        for name, value in LEVELS[self.level].items():
            # The pooling waits for `resolve_for`: what the base model says comes first.
            if getattr(self, name) is None and name != "pooling":
                setattr(self, name, value)
        if self.dropout_rate is None:
            self.dropout_rate = 0.0 if self.drophead_rate else 0.1  # section 4.4: drophead replaces dropout
        if self.select_by is not None:
            self.validation_samples = self.validation_samples or 500
        self._check_model()
        self._check_augmentation()
        self._check_training()
        super().__post_init__()
        self._set_evaluation_defaults()
        check_lora(self.lora_rank, self)

    def resolve_for(self, model_name_or_path: str, model_type: str, pooling: str | None = None) -> None:
        """Fill in what depends on the model: pooling and learning rate.

        Args:
            pooling: of a base model that is an encoder already.
        """
        self.pooling = self.pooling or pooling or LEVELS[self.level].get("pooling") or default_pooling(model_type)
        if self.learning_rate is None:
            self.learning_rate = default_learning_rate(model_name_or_path)

    def view_settings(self, tokenizer: PreTrainedTokenizerBase, prompt: str = "") -> ViewSettings:
        """How the views are made with this tokenizer, and the prompt of the base model.

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

    def _check_model(self) -> None:
        one_of("--packing", self.packing, get_args(Packing))
        if self.pooling is not None:
            one_of("--pooling", self.pooling, POOLING_MODES)
        check_max_seq_length(self.max_seq_length)
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
            one_of("--select_by", self.select_by, (CRITERION,))
        if self.validation_samples is not None and self.validation_samples < 2:
            raise InputError(f"--validation_samples must be at least 2, got {self.validation_samples}")

    def _set_evaluation_defaults(self) -> None:
        """Evaluate where there is something to score, and let the scores choose the checkpoint."""
        if self.select_by:
            if self.eval_strategy == IntervalStrategy.NO:
                self.eval_strategy, self.eval_steps = IntervalStrategy.STEPS, self.eval_steps or 0.1  # of the run
            self.save_strategy = SaveStrategy(self.eval_strategy.value)
            self.save_steps = self.eval_steps or self.save_steps
            self.save_total_limit = self.save_total_limit or 1  # beside the last one
            self.load_best_model_at_end, self.metric_for_best_model = True, self.select_by
        if (self.metric_for_best_model or "").removeprefix("eval_") == CRITERION:
            self.greater_is_better = False
        if self.eval_tasks:
            if self.eval_strategy == IntervalStrategy.NO:
                self.eval_strategy = IntervalStrategy.EPOCH
            if self.metric_for_best_model in (None, "loss"):
                self.metric_for_best_model, self.greater_is_better = self.eval_tasks[0], True

    @property
    def masks_spans(self) -> bool:
        return self.augmentation == "span" and self.span_mask_length > 0

    def _check_augmentation(self) -> None:
        if self.span_mask_length < 0:
            raise InputError(f"--span_mask_length must be 0 or more characters, got {self.span_mask_length}")
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


def check_max_seq_length(max_seq_length: int) -> None:
    """
    Raises:
        InputError: no room for a word between two special tokens.
    """
    if max_seq_length < 3:
        raise InputError(
            f"--max_seq_length must leave room for a word between two special tokens, got {max_seq_length}"
        )

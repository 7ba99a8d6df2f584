"""The flags of the training scripts: type, check, default and help of each in one declaration.

Imports no torch, so `--help` and invalid flags answer immediately. `MirrorConfig` and `CMLMConfig` inherit these
dataclasses together with transformers' `TrainingArguments`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mirror.assets import is_embedded
from mirror.common.cli import above, at_least, condition, flag, one_of, run_checks, share
from mirror.common.errors import InputError
from mirror.data.augmentation import AUGMENTATIONS, DEFAULT_RATES
from mirror.evaluation.task import is_task
from mirror.modeling.pooling import POOLING_MODES


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# Mirror-BERT, section 3 and appendix B. `span_mask_min_chars` of sentences is the released code's, that of phrases is
# ours: the paper masks two characters of biomedical names, most of which are shorter than thirty.
PRESET = ("temperature", "span_mask_length", "span_mask_min_chars", "num_train_epochs", "max_seq_length", "pooling")
LEVELS = {
    "word": dict(zip(PRESET, (0.2, 0, 30, 2.0, 25, "cls"), strict=True)),
    "phrase": dict(zip(PRESET, (0.04, 2, 8, 2.0, 25, "cls"), strict=True)),
    "sentence": dict(zip(PRESET, (0.04, 5, 30, 1.0, 50), strict=False)),  # and `default_pooling`
}
# Ours, for texts of 100 to 500 tokens: the sentence's, with a span that is about as large a share of the text.
LEVELS["passage"] = LEVELS["sentence"] | {"span_mask_length": 50, "span_mask_min_chars": 300, "max_seq_length": 512}
# Noise for a base without a mask token, such as a decoder, where no other is named below. Texts of a pair differ without any.
MASKLESS, MASKLESS_PAIRS = {"augmentation": "delete", "augmentation_rate": 0.2}, {"augmentation": "none"}
# A base that is an encoder already has settings of its own in place of the level's, chosen by measurement (docs/results.md).
# Any flag of the level, the noise on the text, the rate or `max_steps` can stand here.
ADAPTING = {"augmentation": "query", "max_steps": 20}
TEXT_LEVELS = ("sentence", "passage")
ENCODER_SETTINGS = {"word": {}, "phrase": {"max_steps": 20}, **dict.fromkeys(TEXT_LEVELS, ADAPTING)}
# The same for names instead of sentences: with deleted words or two epochs linking falls (docs/biomedical.md).
ADAPTING_NAMES = {"span_mask_length": 2, "span_mask_min_chars": 8, "max_steps": 20}
# The same for rows of two texts, which differ without noise (docs/documents.md).
ADAPTING_PAIRS = {"augmentation": "none"}
PAIR_STEPS, MAX_PASSES = ADAPTING["max_steps"], 10  # of a short corpus of pairs, in whole passes
# Flags of one choice: where a user gives one of them, `ENCODER_SETTINGS` changes none of them.
TEXT_NOISE = ("augmentation", "augmentation_rate", "span_mask_length", "span_mask_min_chars", "mask_token")
RUN_LENGTH = ("num_train_epochs", "max_steps")
ONE_CHOICE = (TEXT_NOISE, RUN_LENGTH)
LEVEL_TEXTS = {"word": "words", "phrase": "phrases", "sentence": "sentences", "passage": "passages"}
STATIC_LEARNING_RATE = 1e-3  # the vectors of tokens are moved themselves, with no layer that multiplies the change
# Above this many weights a model is trained by low-rank updates, at the rate that these need.
LORA_ABOVE, LORA_RANK, LORA_LEARNING_RATE = 1_000_000_000, 16, 2e-4
# The paper's rate. Adam moves every weight by about the rate, so the output of a layer moves in proportion to its
# width, and the embedded model, which is 256 wide instead of 768, needs more: chosen on STS-B dev (docs/results.md).
LEARNING_RATE, EMBEDDED_LEARNING_RATE = 2e-5, 1e-4
BATCH_SIZE = 200  # section 3
PAPER = {"loss": "nt_xent", "augmentation": "span", "dropout_rate": 0.1, "drophead_rate": 0.0}  # at each level
PAPER |= {"per_device_train_batch_size": BATCH_SIZE, "weight_decay": 0.01}
# Appendix B takes the mean for BERT on sentences, and the first token for all other models: of its own models those of
# RoBERTa's kind. What it never tried, as every other architecture here, is pooled like BERT.
CLS_FAMILIES = ("roberta", "xlm-roberta", "camembert")
# The built-in losses: the name of --loss, and the class with a `from_config` that makes it.
LOSSES = {
    **dict.fromkeys(("nt_xent", "decoupled", "one_way"), "mirror.training.losses.InfoNCE"),
    "multi_similarity": "mirror.training.losses.multi_similarity",
}
OWN_TEXT = "own_text"  # the value of --select_by
MERGE = re.compile(r"none|auto|1(\.0*)?|0?\.\d*[1-9]\d*")  # the values of --merge
KEEP, KEEP_STEP = "keep", "keep_step"  # the score of --keep, and the last step that kept enough of it
KEEP_WITHIN = 0.01  # allowed loss of a score
KEEP_WITHIN_TEXTS = 0.05  # allowed loss of the rank correlation of cosines
# Flags whose default depends on the level, and on whether the base model is an encoder already.
RESOLVED = {*LEVELS["sentence"], *TEXT_NOISE, "learning_rate"}.union(*ENCODER_SETTINGS.values())
# Defaults of TrainingArguments that differ here.
LIBRARY_DEFAULTS = {"weight_decay": 0.01, "logging_steps": 10, "save_strategy": "no", "dataloader_drop_last": True}
OTHER_DEFAULTS = "Other defaults than in transformers: " + ", ".join(
    f"--{name} {str(value).lower()}" for name, value in LIBRARY_DEFAULTS.items()
)

# Of --max_seq_length, in every script that trains.
TokenCount = Annotated[int | None, at_least(3, "Two special tokens and a word need as many")]


@dataclass
class BaseOptions:
    """Flags that do not depend on the method."""

    _argument_group_name = "Precision and checks"

    bf16: bool | None = flag(None, "Whether to use bfloat16 autocast. Default: where the hardware is fast in it.")
    fp16: bool | None = flag(None, "Whether to use float16 autocast. Default: on GPUs without bfloat16.")
    force: bool = flag(
        False, "Skip safety checks: overwrite another run, resume with other flags or texts, train on unknown tokens."
    )
    resume_from_checkpoint: str | None = flag(
        None, "Path to a checkpoint, 'true' for the newest complete one in --output_dir, 'auto' for the same if any."
    )
    preprocessing_num_workers: int | None = flag(None, "Number of processes that tokenize. Default: this process.")


@dataclass
class MirrorRunOptions:
    """Flags of `TrainingArguments` with other defaults."""

    _argument_group_name = "Run"

    output_dir: str = flag("out/mirror", "Path to the folder for the encoder.")
    per_device_train_batch_size: int = flag(BATCH_SIZE, "Number of texts per step and device; fewer of few texts.")
    learning_rate: float | None = flag(
        None,
        f"Learning rate of AdamW. Default: {LEARNING_RATE:g}, {EMBEDDED_LEARNING_RATE:g} for the embedded model, "
        f"{STATIC_LEARNING_RATE:g} for a static encoder, or "
        f"{LORA_LEARNING_RATE:g} where --lora_rank is the default of a large model.",
    )
    lr_scheduler_type: str = flag("constant", "Schedule of the learning rate.")
    max_grad_norm: float = flag(0.0, "Clip the gradient to this norm. 0 for no clipping.")
    num_train_epochs: float | None = flag(
        None,
        "Number of passes over the texts, each with new masks. Default of the level: 2, 2, 1, 1, and of an encoder on few pairs as many "
        f"as fit into {PAIR_STEPS} steps, at most {MAX_PASSES}. See --max_steps.",
    )
    max_steps: int = flag(
        -1,
        "Total number of training steps. Overrides --num_train_epochs. -1 for the default: no limit, or "
        f"{ENCODER_SETTINGS['sentence']['max_steps']} (at most one pass) for a base model that is an encoder, except words and pairs.",
    )


@dataclass
class EncoderOptions:
    """The model and the noise inside it."""

    _argument_group_name = "Encoder"

    pooling: Annotated[str | None, one_of(POOLING_MODES)] = flag(
        None,
        f"How to pool token vectors: {', '.join(POOLING_MODES)}. Default: the base encoder's. For a masked LM cls for words, "
        "phrases and RoBERTa, mean for other sentence encoders. For a decoder last, or mean with bidirectional attention.",
    )
    attention_direction: Annotated[str | None, one_of(("causal", "bidirectional"))] = flag(
        None,
        "Whether a token of a decoder sees only those before it (causal) or the whole text (bidirectional). The saved encoder "
        "then needs transformers 5.2 or later. Default: as the base model.",
    )
    max_seq_length: TokenCount = flag(
        None,
        "Maximum number of tokens per text. Default: the base encoder's own (of passages of documents at most 128), or that of the "
        "level: 25, 25, 50, 512.",
    )
    prompt: str | None = flag(None, "Text before every text, never masked. '' for none. Default: the base model's.")
    prompt_name: str | None = flag(None, "Name of a prompt of the base model to use, such as query. Default: its own.")
    pair_prompts: Annotated[list[str] | None, condition(lambda names: len(names) == 2, "two names of prompts")] = flag(
        None, "Names of the base's prompts for both texts of a pair, e.g. query document. Default: that of all texts."
    )
    pad_to: int | None = flag(None, "Length to pad rows to, for mean_padded only. Default there: --max_seq_length.")
    packing: Annotated[str, one_of(("auto", "on", "off"))] = flag(
        "auto", "Whether to train without padding, all texts of a batch in a row: on, off, or auto (where supported)."
    )
    lora_rank: Annotated[int | None, at_least(0, "8 or 16 is common")] = flag(
        None,
        "Rank of low-rank updates to train instead of all weights (needs peft). Merged when saved. Needs a higher rate, e.g. "
        f"--learning_rate {LORA_LEARNING_RATE:g}. 0 for all weights. Default: all weights, or {LORA_RANK} for a model with more "
        f"than {LORA_ABOVE / 1e9:g} billion weights.",
    )
    dropout_rate: Annotated[float | None, share("The paper uses 0.1")] = flag(
        None, "Rate of every dropout of the model, attention included. Default: 0.1, or 0 with --drophead_rate."
    )
    drophead_rate: Annotated[float, share("The paper uses 0.2 for BERT and 0.05 for RoBERTa")] = flag(
        0.0, "Probability that an attention head is dropped. The paper uses 0.2 for BERT, 0.05 for RoBERTa."
    )
    controlled_dropout: bool = flag(False, "Whether both views of a text get the same dropout masks (Table 8).")


@dataclass
class ViewOptions:
    """Noise that makes the two views of a text differ."""

    _argument_group_name = "Views"

    level: Annotated[str, one_of(LEVELS)] = flag("sentence", f"Preset of the paper: {', '.join(LEVELS)}.")
    span_mask_length: Annotated[int | None, at_least(0)] = flag(
        None, "Number of characters to mask in the second view. 0 for none. Default of the level: 0, 2, 5, 50."
    )
    span_mask_min_chars: int | None = flag(
        None, "Minimum number of characters of a text to mask. Default of the level: 30, 8, 30, 300."
    )
    mask_token: str | None = flag(None, "Mask (the released RoBERTa models saw '[MASK]'). Default: the tokenizer's.")
    augmentation: str | None = flag(
        None,
        f"Noise on the second view: {', '.join(AUGMENTATIONS)}. span masks consecutive characters. token and whole_word mask "
        "single tokens and words. reorder swaps words, delete removes them, query keeps 2 to 5, crop keeps consecutive "
        f"ones, repeat duplicates them. Default: span; with a base model that is an encoder {ADAPTING['augmentation']} for sentences (not names) "
        f"and passages, none for pairs; else without a mask token {MASKLESS['augmentation']} at {MASKLESS['augmentation_rate']}.",
    )
    augmentation_rate: Annotated[float | None, share("It is a share of the words or tokens")] = flag(
        None,
        "Share of the words or tokens that the noise changes. Default: "
        f"{', '.join(f'{name} {rate}' for name, rate in DEFAULT_RATES.items())}. span has --span_mask_length instead.",
    )


@dataclass
class LossOptions:
    """Contrastive loss. Extensions that came after Mirror-BERT are explained in docs/augmentation.md."""

    _argument_group_name = "Loss"

    loss: Annotated[str, one_of(LOSSES)] = flag("nt_xent", f"Contrastive loss: {', '.join(LOSSES)}.")
    temperature: Annotated[float | None, above(0, "The paper uses 0.04 or 0.2")] = flag(
        None, "Temperature of InfoNCE. Default of the level: 0.2 for words, 0.04 for all others."
    )
    hardness: Annotated[float | None, at_least(0, "Its source uses 9")] = flag(
        None, "Factor of its cosine that each negative's logit gets (hardness_strength of sentence-transformers)."
    )
    guide: str | None = flag(
        None,
        "Encoder that finds false negatives among pairs: texts more similar to the anchor than its positive (GISTEmbed). "
        "'base' for the base model, frozen, or a model. Default: only equal texts.",
    )
    projection_head: bool = flag(
        False, "Whether to put a linear layer and tanh between the vectors and the loss, in training only (SimCSE)."
    )
    matryoshka_dims: Annotated[
        list[int] | None,
        condition(lambda dims: dims and min(dims) > 0 and len(set(dims)) == len(dims), "different positive numbers"),
    ] = flag(None, "Train the first D dimensions of the vectors too, for each D, e.g. 128 64. Default: all only.")
    mini_batch_size: Annotated[int | None, at_least(1)] = flag(
        None,
        "Number of texts in memory at once, by gradient caching, in a third more time. Default: the whole batch; on a CPU what fits "
        "into a third of the memory.",
    )
    gather_negatives: bool = flag(
        False, "Whether to compare with the texts of all processes, not only this one's. The gradient is exact."
    )


@dataclass
class EvaluationOptions:
    """Scores during training."""

    _argument_group_name = "Evaluation while training"

    eval_tasks: list[str] | None = flag(
        None, "Tasks of run_eval.py to score before training and at every evaluation, e.g. stsb_dev. Default: none."
    )
    data_dir: str | None = flag(None, "Path to the data of --eval_tasks and --keep. Default: $MIRROR_DATA_DIR.")
    validation_samples: Annotated[int | None, condition(lambda count: count == 0 or count >= 2, "0 or at least 2")] = (
        flag(
            None,
            "Number of texts to hold out, on which the encoder is tested without labels. Default: 1000, at most a tenth of the "
            "corpus, none of a corpus below 500 texts. 0 to train on all.",
        )
    )
    select_by: Annotated[str | None, one_of([OWN_TEXT])] = flag(
        None,
        "Keep the checkpoint that scores best on the held-out texts, out of ten unless --eval_steps says otherwise. Default: the "
        "last step.",
        nargs="?",
        const=OWN_TEXT,
    )
    keep: str | None = flag(
        None,
        "A second score that training must not lose: a task of run_eval.py, a folder or table that makes one, or a file of "
        "texts, whose pairwise cosines are compared with the base model's. Default: none.",
    )
    merge: Annotated[str, condition(MERGE.fullmatch, "none, auto or a weight above 0 and at most 1")] = flag(
        "none",
        "Whether to save an average of the weights before and after training: a weight of the trained ones, such as 0.5, or auto "
        "for the one that is best on the held-out texts, within --keep_within of --keep.",
    )
    keep_within: Annotated[float | None, at_least(0)] = flag(
        None,
        "Allowed loss of --keep. A run that loses more stops and saves the best step within the limit. Default: "
        f"{KEEP_WITHIN}, or {KEEP_WITHIN_TEXTS} for a file of texts.",
    )


@dataclass
class MirrorOptions(MirrorRunOptions, EncoderOptions, ViewOptions, LossOptions, EvaluationOptions, BaseOptions):
    """The flags that `MirrorConfig` adds to transformers' `TrainingArguments`, or changes."""

    def __post_init__(self) -> None:
        one_of(LEVELS)("--level", self.level)
        # `MirrorConfig.resolve_for` must not change what the user gave. -1 is `max_steps` not given.
        self.given = frozenset(name for name in RESOLVED if getattr(self, name) not in (None, -1))
        for name, value in LEVELS[self.level].items():
            # The pooling waits for `MirrorConfig.resolve_for`: the base model's own comes first.
            if getattr(self, name) is None and name != "pooling":
                setattr(self, name, value)
        if self.dropout_rate is None:
            self.dropout_rate = 0.0 if self.drophead_rate else 0.1  # section 4.4: drophead replaces dropout
        self.merge = str(self.merge)
        self.eval_tasks = [self.eval_tasks] if isinstance(self.eval_tasks, str) else self.eval_tasks
        if isinstance(self.matryoshka_dims, int):
            self.matryoshka_dims = [self.matryoshka_dims]
        if self.keep and self.keep_within is None:
            path = Path(self.keep)
            self.keep_within = KEEP_WITHIN_TEXTS if path.is_file() and not is_task(path) else KEEP_WITHIN
        run_checks(self, MirrorOptions)
        self._check_augmentation()
        self._check_combinations()

    @property
    def masks_spans(self) -> bool:
        return self.augmentation == "span" and self.span_mask_length > 0

    def _check_augmentation(self) -> None:
        self.augmentation: str | Callable = self.augmentation or "span"
        if callable(self.augmentation):
            return
        one_of(AUGMENTATIONS)("--augmentation", self.augmentation)
        if self.augmentation_rate is None:
            self.augmentation_rate = DEFAULT_RATES.get(self.augmentation)
        elif self.augmentation not in DEFAULT_RATES:
            choices = f"leave --augmentation_rate out, or choose one of {', '.join(DEFAULT_RATES)}"
            raise InputError(f"--augmentation {self.augmentation} has no rate; {choices}")
        if self.augmentation == "token" and self.mask_token:
            advice = "leave --mask_token out, or use --augmentation whole_word"
            raise InputError(f"--augmentation token masks with the tokenizer's own mask token; {advice}")

    def _check_combinations(self) -> None:
        if self.prompt is not None and self.prompt_name is not None:
            raise InputError("give --prompt or --prompt_name, not both")
        if self.pair_prompts and (self.prompt, self.prompt_name) != (None, None):
            raise InputError("give --pair_prompts, or one prompt for all texts by --prompt or --prompt_name, not both")
        if self.loss == "multi_similarity" and self.hardness:
            raise InputError("--loss multi_similarity has no --hardness; leave --hardness out, or use nt_xent")
        if self.matryoshka_dims and self.projection_head:
            reason = "the loss does not see the saved vectors' first dimensions behind --projection_head"
            raise InputError(f"--matryoshka_dims: {reason}; leave out one of the two")
        if self.keep_within is not None and not self.keep:
            raise InputError("--keep_within is the loss that --keep allows; give --keep too, or leave it out")
        if self.select_by and self.validation_samples == 0:
            raise InputError(f"--select_by {self.select_by} needs held-out texts; leave out --validation_samples 0")


def default_learning_rate(model_name_or_path: str) -> float:
    """Return AdamW's rate where the user gives none."""
    return EMBEDDED_LEARNING_RATE if is_embedded(model_name_or_path) else LEARNING_RATE


def default_pooling(model_type: str, direction: str | None = None) -> str:
    """Return the paper's choice for sentences (appendix B). For a decoder of that `direction`, that of its descendants."""
    if direction:
        return "last" if direction == "causal" else "mean"
    return "cls" if model_type in CLS_FAMILIES else "mean"


def encoder_settings(level: str, given: Iterable[str], pairs: bool = False, names: bool = False) -> dict[str, object]:
    """Return what a base that is an encoder already changes in the preset of the level. Flags that were `given` win.

    `pairs`: rows of two texts. `names`: the texts are names or words (`mirror.evaluation.own_text.are_names`).
    """
    fixed = {*given}.union(*(flags for flags in ONE_CHOICE if {*given} & {*flags}))
    settings = {} if pairs else ENCODER_SETTINGS[level]
    if level in TEXT_LEVELS and (pairs or names):
        settings = ADAPTING_PAIRS if pairs else ADAPTING_NAMES
    return {name: value for name, value in settings.items() if name not in fixed}

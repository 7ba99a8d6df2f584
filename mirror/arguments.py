"""What a user can set: dataclasses for the flags, and the presets of the paper's levels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from mirror.command_line import one_of, parse_flags, probability
from mirror.data import DataSettings
from mirror.encoder import EMBEDDED_MODEL
from mirror.errors import InputError
from mirror.losses import LOSSES
from mirror.packing import Packing
from mirror.pooling import POOLING_MODES
from mirror.source_arguments import SourceArguments
from mirror.views import AUGMENTATIONS, DEFAULT_RATES


# Mirror-BERT, section 3 and appendix A; `span_mask_min_chars` of sentences is the released code's, that of phrases is
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
# The paper's rate is for a width of 768 or more. Adam moves every weight by about the rate, so what a layer puts out moves in
# proportion to its width, and a model of width 256 needs more; this was chosen on STS-B dev (docs/results.md).
EMBEDDED_DEFAULTS = {"learning_rate": 2e-4}
CLS_FAMILIES = ("roberta", "xlm-roberta", "camembert")  # "CLS for RoBERTa, mean for BERT", section 3


def default_pooling(model_type: str) -> str:
    """The paper's choice for sentences."""
    return "cls" if model_type in CLS_FAMILIES else "mean"


@dataclass
class ModelArguments:
    model_name_or_path: str = field(
        default=str(EMBEDDED_MODEL),
        metadata={
            "help": "Masked LM to start from: a Hub id or a folder. Default: the small model of this repository."
        },
    )
    pooling: str | None = field(
        default=None,
        metadata={
            "help": f"How token vectors become one: {', '.join(POOLING_MODES)}. Default: cls for words, phrases and "
            "RoBERTa, mean for other sentence encoders."
        },
    )
    max_seq_length: int = field(
        default=50, metadata={"help": "Tokens of a text, special ones included; the rest is cut."}
    )
    pad_to: int | None = field(
        default=None,
        metadata={"help": "Pad every row to this length. Only mean_padded depends on it (default: 50 there)."},
    )

    def __post_init__(self) -> None:
        if self.pooling is not None:
            one_of("--pooling", self.pooling, POOLING_MODES)
        if self.max_seq_length < 3:
            raise InputError(
                f"--max_seq_length must leave room for a word between two special tokens, got {self.max_seq_length}"
            )


@dataclass
class DataArguments(SourceArguments):
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Raw text: txt (one text a line), csv, tsv, json, jsonl or parquet, each also as .gz; names or globs. "
            "Default: docstrings of the Python packages on this machine."
        },
    )
    pair_columns: list[str] | None = field(
        default=None, metadata={"help": "Two columns that say the same (supervised pairs), instead of one text twice."}
    )
    pair_separator: str | None = field(default=None, metadata={"help": "Pairs on one line of a txt file, e.g. '||'."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only the first N distinct texts."})
    keep_duplicates: bool = field(
        default=False, metadata={"help": "Keep repeated rows. In a batch, two equal texts are false negatives."}
    )

    def settings(self) -> DataSettings:
        return replace(
            super().settings(),
            pair_columns=tuple(self.pair_columns) if self.pair_columns else None,
            pair_separator=self.pair_separator,
            keep_duplicates=self.keep_duplicates,
        )


@dataclass
class MirrorArguments:
    """The method: two views of a text, and the loss that pulls them together."""

    level: str = field(default="sentence", metadata={"help": f"Preset of the paper: {', '.join(LEVELS)}."})
    span_mask_length: int = field(default=5, metadata={"help": "Characters masked in the second view; 0: none."})
    span_mask_min_chars: int = field(default=30, metadata={"help": "Texts shorter than this are never masked."})
    mask_token: str | None = field(
        default=None,
        metadata={"help": "A literal instead of the tokenizer's mask token (released RoBERTa models saw '[MASK]')."},
    )
    augmentation: str = field(
        default="span",
        metadata={
            "help": f"Noise of the second view's text: {', '.join(AUGMENTATIONS)}. span: characters in a row; token and "
            "whole_word: masked one by one; reorder: words change places; delete: words go; crop: words in a row stay."
        },
    )
    augmentation_rate: float | None = field(
        default=None,
        metadata={
            "help": "Share of words, or of tokens, that the noise touches. Default: "
            f"{', '.join(f'{name} {rate}' for name, rate in DEFAULT_RATES.items())}; "
            "span has --span_mask_length instead."
        },
    )
    augment_both_views: bool = field(
        default=False, metadata={"help": "The same kind of noise, drawn independently, in the first view too."}
    )
    temperature: float = field(default=0.04, metadata={"help": "Tau of InfoNCE: 0.04 for sentences, 0.2 for words."})
    learnable_temperature: bool = field(
        default=False, metadata={"help": "Train tau's logarithm too, from --temperature on, without decay."}
    )
    loss: str = field(
        default="nt_xent",
        metadata={"help": f"What pulls twins together: {', '.join(LOSSES)}; see docs/augmentation.md."},
    )
    dropout_rate: float | None = field(
        default=None,
        metadata={
            "help": "Every dropout of the model, attention's included. Default: 0.1, or 0 with --drophead_rate."
        },
    )
    drophead_rate: float = field(
        default=0.0,
        metadata={"help": "Chance that an attention head is left out; the paper: 0.2 for BERT, 0.05 for RoBERTa."},
    )
    controlled_dropout: bool = field(
        default=False, metadata={"help": "Both views of a text see the same dropout masks (Table 8 of the paper)."}
    )
    mini_batch_size: int | None = field(
        default=None,
        metadata={"help": "Texts in memory at once: gradient caching makes any batch fit, at a third more time."},
    )
    lora_rank: int | None = field(
        default=None,
        metadata={
            "help": "Train low-rank updates of this rank instead of all weights (needs peft); merged when saved. "
            "They want a higher rate, e.g. --learning_rate 2e-4."
        },
    )
    packing: str = field(
        default="auto",
        metadata={
            "help": "No padding: all texts of a batch end to end in one row. on, off, or auto: wherever the model's "
            "attention allows it."
        },
    )
    gather_negatives: bool = field(
        default=False,
        metadata={"help": "Compare with the rows of all processes, not only this one's; exact gradient."},
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
            "help": "Texts to hold out of the training; every evaluation then reports their alignment and uniformity "
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
    force: bool = field(default=False, metadata={"help": "Write into an output folder that holds another run."})
    config: str | None = field(default=None, metadata={"help": "Recipe: a YAML file of flags; see recipes/."})

    def __post_init__(self) -> None:
        one_of("--level", self.level, LEVELS)
        one_of("--loss", self.loss, LOSSES)
        one_of("--packing", self.packing, get_args(Packing))
        self._check_augmentation()
        if self.temperature <= 0:
            raise InputError(f"--temperature must be positive, got {self.temperature}; the paper uses 0.04 or 0.2")
        if self.learnable_temperature and self.loss == "multi_similarity":
            raise InputError("--loss multi_similarity has no temperature; leave --learnable_temperature out")
        if self.span_mask_length < 0:
            raise InputError(f"--span_mask_length must be 0 or more characters, got {self.span_mask_length}")
        if self.dropout_rate is None:
            self.dropout_rate = 0.0 if self.drophead_rate else 0.1  # section 4: drophead takes dropout's place
        if self.mini_batch_size is not None and self.mini_batch_size < 1:
            raise InputError(f"--mini_batch_size must be at least 1, got {self.mini_batch_size}")
        if self.select_by is not None:
            one_of("--select_by", self.select_by, ("alignment_uniformity",))
            self.validation_samples = self.validation_samples or 500
        if self.validation_samples is not None and self.validation_samples < 2:
            raise InputError(f"--validation_samples must be at least 2, got {self.validation_samples}")
        probability("--dropout_rate", self.dropout_rate, "the paper uses 0.1")
        probability("--drophead_rate", self.drophead_rate, "the paper uses 0.2 for BERT and 0.05 for RoBERTa")

    @property
    def masks_spans(self) -> bool:
        return self.augmentation == "span" and self.span_mask_length > 0

    def _check_augmentation(self) -> None:
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


def parse_arguments(
    dataclass_types: tuple[type, ...], argv: list[str] | None = None, description: str | None = None
) -> tuple:
    """Instances of `dataclass_types`: a flag beats the recipe, the recipe beats the preset of the level.

    Raises:
        InputError: an unknown key in the recipe, or a value that no flag takes.
    """
    return parse_flags(dataclass_types, argv, description, presets=_presets)


def _presets(chosen: dict) -> dict:
    """What the level and the embedded model set, given what the recipe and the command line chose."""
    level = chosen.get("level", "sentence")
    one_of("--level", level, LEVELS)
    embedded = Path(chosen.get("model_name_or_path", EMBEDDED_MODEL)).resolve() == EMBEDDED_MODEL
    return LEVELS[level] | (EMBEDDED_DEFAULTS if embedded else {})

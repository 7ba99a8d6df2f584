"""What a user of run_cmlm.py can set. A flag on the command line beats the recipe (`--config`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror.command_line import one_of, parse_flags
from mirror.encoder import EMBEDDED_MODEL
from mirror.errors import InputError
from mirror.source_arguments import SourceArguments
from mirror.training_arguments import MirrorTrainingArguments


STAGES = ("cmlm", "cmlm_bitext", "bitext", "nli")
POOLINGS = ("mean", "cls", "max")
OPTIMIZERS = ("adamw", "lamb")
SENTENCE_VECTORS = ("pooled", "proj")


@dataclass
class CMLMModelArguments:
    model_name_or_path: str = field(
        default=str(EMBEDDED_MODEL),
        metadata={
            "help": "Masked LM to start from, or the output of an earlier stage: a Hub id or a folder. Default: the small "
            "model of this repository."
        },
    )
    from_scratch: bool = field(
        default=False, metadata={"help": "Keep its architecture and tokenizer, but start from random weights."}
    )
    pooling: str = field(
        default="mean", metadata={"help": f"How the token vectors of s1 become v: {', '.join(POOLINGS)}."}
    )
    max_seq_length: int = field(
        default=256, metadata={"help": "Tokens of a segment or text, special ones included; the paper uses 256."}
    )
    num_projections: int = field(
        default=15,
        metadata={"help": "Vectors N before s2, v itself among them. 0: none, a plain masked LM for comparison."},
    )
    skip_connection: bool = field(
        default=False, metadata={"help": "Join the projected vectors to the outputs of s2 too ('skip' in Table 7)."}
    )
    sentence_vector: str = field(
        default="pooled",
        metadata={"help": "What the saved encoder gives: pooled (v), or proj (the mean of P(v); 'proj' in Table 7)."},
    )

    def __post_init__(self) -> None:
        one_of("--pooling", self.pooling, POOLINGS)
        one_of("--sentence_vector", self.sentence_vector, SENTENCE_VECTORS)
        if self.max_seq_length < 3:
            raise InputError(
                f"--max_seq_length must leave room for a word between two special tokens, got {self.max_seq_length}"
            )
        if self.num_projections < 0:
            raise InputError(f"--num_projections must be 0 or more, got {self.num_projections}; the paper uses 15")
        if self.num_projections == 0 and (self.skip_connection or self.sentence_vector == "proj"):
            raise InputError("--num_projections 0 leaves nothing for --skip_connection or --sentence_vector proj")


@dataclass
class CMLMDataArguments(SourceArguments):
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Documents: txt with an empty line between two, or csv, tsv, json, jsonl or parquet with one a row; "
            "each also as .gz; names or globs."
        },
    )
    line_is_document: bool = field(default=False, metadata={"help": "Each line of a txt file is a document."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only the first N documents of a file."})
    language: list[str] = field(
        default_factory=lambda: ["en"],
        metadata={"help": "Language code for splitting sentences: one for all, or one for each of --train_file."},
    )
    bitext_file: list[str] | None = field(
        default=None, metadata={"help": "Translation pairs: csv, tsv, json, jsonl or parquet; names or globs."}
    )
    nli_file: list[str] | None = field(
        default=None,
        metadata={"help": "Premise, hypothesis and label (entailment, neutral, contradiction), in the same formats."},
    )
    pair_columns: list[str] | None = field(
        default=None,
        metadata={"help": "The two text columns of --bitext_file or --nli_file. Default: the first two with text."},
    )
    label_column: str = field(
        default="label", metadata={"help": "Column of --nli_file with the label, e.g. 'entailment' in SICK."}
    )
    language_smoothing: float = field(
        default=1.0,
        metadata={
            "help": "With several files: share of a file in an epoch ~ (share of rows) to this power. 1: as they are; "
            "the paper uses 0.3."
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.language_smoothing <= 1:
            raise InputError(f"--language_smoothing is an exponent in [0, 1], got {self.language_smoothing}")
        if self.streaming and self.language_smoothing != 1:
            raise InputError("--language_smoothing needs the sizes of the files, which a stream does not tell")


@dataclass
class CMLMArguments:
    """The method: which losses, and how they are weighed."""

    stage: str = field(
        default="cmlm",
        metadata={
            "help": f"What is learnt: {', '.join(STAGES)}. The stages of the paper are runs one after another; see "
            "docs/cmlm.md."
        },
    )
    swap_probability: float = field(
        default=0.5, metadata={"help": "Chance that the two segments of a pair change places."}
    )
    mlm_probability: float = field(
        default=0.313, metadata={"help": "Share of the tokens of s2 to predict; the paper masks 80 of 256."}
    )
    bitext_weight: float = field(
        default=0.2, metadata={"help": "Weight of the bitext loss beside that of CMLM, in the stage cmlm_bitext."}
    )
    margin: float = field(default=0.3, metadata={"help": "Margin of the additive margin softmax."})
    optimizer: str = field(
        default="adamw",
        metadata={"help": "adamw (--optim chooses its build), or lamb, the paper's, for batches of thousands."},
    )
    mini_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Rows that go through the model at once: gradient caching, so that a batch of any size fits into "
            "memory."
        },
    )
    force: bool = field(default=False, metadata={"help": "Write into an output folder that holds another run."})
    config: str | None = field(default=None, metadata={"help": "Recipe: a YAML file of flags; see recipes/."})

    def __post_init__(self) -> None:
        one_of("--stage", self.stage, STAGES)
        one_of("--optimizer", self.optimizer, OPTIMIZERS)
        if not 0 <= self.swap_probability <= 1:
            raise InputError(f"--swap_probability is a probability in [0, 1], got {self.swap_probability}")
        if not 0 < self.mlm_probability <= 1:
            raise InputError(
                f"--mlm_probability is a share in (0, 1], got {self.mlm_probability}; the paper uses 0.313"
            )
        if self.bitext_weight < 0 or self.margin < 0:
            raise InputError("--bitext_weight and --margin must be 0 or more; the paper uses 0.2 and 0.3")
        if self.mini_batch_size is not None and self.mini_batch_size < 1:
            raise InputError(f"--mini_batch_size must be at least 1, got {self.mini_batch_size}")
        if self.mini_batch_size and self.stage == "nli":
            raise InputError("--stage nli compares no rows with each other; use --gradient_accumulation_steps instead")


@dataclass
class CMLMTrainingArguments(MirrorTrainingArguments):
    """`MirrorTrainingArguments` with the optimisation of BERT's family instead of the Mirror-BERT code's.

    Differences from it: rate 5e-5 with warm-up and linear decay, gradients clipped at 1, no decay of biases and norms.
    """

    output_dir: str = field(default="out/cmlm", metadata={"help": "Where the encoder goes."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Pairs a step on each device."})
    learning_rate: float = field(default=5e-5, metadata={"help": "Highest rate; the paper uses 1e-3 with LAMB."})
    lr_scheduler_type: str = field(default="linear", metadata={"help": "Schedule of the rate after warm-up."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of warm-up, or their share if below 1."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "Clip the gradient to this norm; 0: no clipping."})
    accelerator_config: dict | str | None = field(
        default_factory=lambda: {"dispatch_batches": False},
        metadata={
            "help": "As in transformers. Each process pads its own rows of a stream instead of getting padded ones."
        },
    )


ARGUMENT_TYPES = (CMLMModelArguments, CMLMDataArguments, CMLMArguments, CMLMTrainingArguments)


def parse_cmlm_arguments(argv: list[str] | None = None, description: str | None = None) -> tuple:
    """Instances of the four dataclasses from the command line and the recipe, in that order of precedence.

    Raises:
        InputError: an unknown flag or key, a value that no flag takes, or a stage without its data.
    """
    parsed = parse_flags(ARGUMENT_TYPES, argv, description)
    check_data_for(parsed[2].stage, parsed[1])
    return parsed


def check_data_for(stage: str, data: CMLMDataArguments) -> None:
    """Refuse a stage without what it learns from.

    Raises:
        InputError
    """
    if "cmlm" in stage and not (data.train_file or data.dataset_name):
        raise InputError(f"--stage {stage} learns from documents; give --train_file or --dataset_name")
    if "bitext" in stage and not data.bitext_file:
        raise InputError(f"--stage {stage} learns from translations; give --bitext_file")
    if stage == "nli" and not data.nli_file:
        raise InputError("--stage nli learns from labelled pairs; give --nli_file")

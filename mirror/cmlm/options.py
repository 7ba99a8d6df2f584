"""The flags of CMLM, in the groups of `run_cmlm.py --help`, and their checks. Imports no torch: mistakes answer at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror.common.cli import one_of
from mirror.common.errors import InputError
from mirror.training.base_options import BaseOptions, check_max_seq_length


STAGES = ("cmlm", "cmlm_bitext", "bitext", "nli", "quickthought")
DOCUMENT_STAGES = ("cmlm", "cmlm_bitext", "quickthought")
POOLINGS = ("mean", "cls", "max")
OPTIMIZERS = ("adamw", "lamb")
SENTENCE_VECTORS = ("pooled", "proj")
PAPER_LENGTH = 256  # section 3: tokens of a segment
COSINE_SCALE = 20.0  # the default of sentence-transformers' MultipleNegativesRankingLoss; measured in docs/results.md


@dataclass
class CMLMRunOptions:
    """Flags of `TrainingArguments` with other defaults."""

    _argument_group_name = "Run"

    output_dir: str = field(default="out/cmlm", metadata={"help": "Where the encoder is saved."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Pairs per step on each device."})
    learning_rate: float = field(default=5e-5, metadata={"help": "Highest rate; the paper uses 1e-3 with LAMB."})
    lr_scheduler_type: str = field(default="linear", metadata={"help": "Schedule of the rate after warm-up."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of warm-up, or their share if below 1."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "Clip the gradient to this norm; 0: no clipping."})
    accelerator_config: dict | str | None = field(
        default_factory=lambda: {"dispatch_batches": False},
        metadata={
            "help": "As in transformers. Each process pads its own rows of a stream instead of receiving padded ones."
        },
    )


@dataclass
class StageOptions:
    """What is learnt."""

    _argument_group_name = "Stage and loss"

    stage: str = field(
        default="cmlm",
        metadata={
            "help": f"What is learnt: {', '.join(STAGES)}. The stages of the paper are runs one after another; see "
            "docs/cmlm.md."
        },
    )
    bitext_weight: float = field(
        default=0.2, metadata={"help": "Weight of the bitext loss beside that of CMLM, in the stage cmlm_bitext."}
    )
    margin: float = field(default=0.3, metadata={"help": "Margin of the additive margin softmax, before scaling."})
    normalize_embeddings: bool = field(
        default=True,
        metadata={
            "help": "Compare translations by cosine, as LaBSE does. false: by inner product, Eq. (1) as printed."
        },
    )
    scale: float | None = field(
        default=None,
        metadata={
            "help": f"Factor of cosine minus margin in the bitext loss. Default: {COSINE_SCALE:g}, or 1 for inner products."
        },
    )
    optimizer: str = field(
        default="adamw",
        metadata={"help": "adamw (--optim chooses its build), or lamb, the paper's, for batches of thousands."},
    )
    mini_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Rows that go through the model at once: gradient caching, so that a batch of any size fits into "
            "memory. Default: the whole batch."
        },
    )


@dataclass
class RowOptions:
    """How documents become rows."""

    _argument_group_name = "Rows"

    language: list[str] = field(
        default_factory=lambda: ["en"],
        metadata={"help": "Language code for splitting sentences: one for all, or one for each of --train_file."},
    )
    language_smoothing: float = field(
        default=1.0,
        metadata={
            "help": "With several files: share of a file in an epoch ~ (share of rows) to this power. 1: as they are. "
            "Not in the paper."
        },
    )
    swap_probability: float = field(
        default=0.5, metadata={"help": "Chance that the two segments of a pair change places."}
    )
    mlm_probability: float = field(
        default=0.313, metadata={"help": "Share of the tokens of s2 to predict; the paper masks 80 of 256."}
    )


@dataclass
class CMLMModelOptions:
    """The encoder and what is trained beside it."""

    _argument_group_name = "Encoder"

    from_scratch: bool = field(
        default=False, metadata={"help": "Keep its architecture and tokenizer, but start from random weights."}
    )
    pooling: str = field(
        default="mean", metadata={"help": f"How the token vectors of s1 become v: {', '.join(POOLINGS)}."}
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={
            "help": f"Tokens of a segment or text, special ones included. Default: the paper's {PAPER_LENGTH}, or fewer where "
            "the model has no more positions."
        },
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


@dataclass
class CMLMOptions(CMLMRunOptions, StageOptions, RowOptions, CMLMModelOptions, BaseOptions):
    """What `CMLMConfig` adds to transformers' `TrainingArguments`.

    Raises:
        InputError: a value outside its range, or two that contradict each other; names the flag.
    """

    def __post_init__(self) -> None:
        self._check_model()
        self._check_method()

    def _check_model(self) -> None:
        one_of("--pooling", self.pooling, POOLINGS)
        one_of("--sentence_vector", self.sentence_vector, SENTENCE_VECTORS)
        if self.max_seq_length is not None:
            check_max_seq_length(self.max_seq_length)
        if self.num_projections < 0:
            raise InputError(f"--num_projections must be 0 or more, got {self.num_projections}; the paper uses 15")
        if self.num_projections == 0 and (self.skip_connection or self.sentence_vector == "proj"):
            raise InputError("--num_projections 0 leaves nothing for --skip_connection or --sentence_vector proj")

    def _check_method(self) -> None:
        one_of("--stage", self.stage, STAGES)
        one_of("--optimizer", self.optimizer, OPTIMIZERS)
        if not 0 <= self.language_smoothing <= 1:
            raise InputError(f"--language_smoothing is an exponent in [0, 1], got {self.language_smoothing}")
        if not 0 <= self.swap_probability <= 1:
            raise InputError(f"--swap_probability is a probability in [0, 1], got {self.swap_probability}")
        if not 0 < self.mlm_probability <= 1:
            raise InputError(
                f"--mlm_probability is a share in (0, 1], got {self.mlm_probability}; the paper uses 0.313"
            )
        if self.scale is None:
            self.scale = COSINE_SCALE if self.normalize_embeddings else 1.0
        if self.scale <= 0:
            raise InputError(
                f"--scale must be above 0, got {self.scale}; {COSINE_SCALE:g} suits cosines, 1 inner products"
            )
        if self.bitext_weight < 0 or self.margin < 0:
            raise InputError("--bitext_weight and --margin must be 0 or more; the paper uses 0.2 and 0.3")
        if self.mini_batch_size is not None and self.mini_batch_size < 1:
            raise InputError(f"--mini_batch_size must be at least 1, got {self.mini_batch_size}")
        if self.mini_batch_size and self.stage == "nli":
            raise InputError("--stage nli compares no rows with each other; use --gradient_accumulation_steps instead")

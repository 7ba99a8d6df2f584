"""Command line of run_cmlm.py: help, default and check of each flag. Torch-free, so invalid flags fail at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from mirror.common.cli import above, at_least, condition, flag, one_of, run_checks
from mirror.common.errors import InputError
from mirror.data.source import CorpusSource, SourceArguments
from mirror.training.options import BaseOptions, TokenCount


STAGES = ("cmlm", "cmlm_bitext", "bitext", "nli", "quickthought")
DOCUMENT_STAGES = ("cmlm", "cmlm_bitext", "quickthought")
POOLINGS = ("mean", "cls", "max")
PAPER_LENGTH = 256  # tokens of a segment, section 3
COSINE_SCALE = 20.0  # the default of sentence-transformers' MultipleNegativesRankingLoss; measured in docs/results.md


@dataclass
class CMLMRunOptions:
    """Flags of `TrainingArguments` with other defaults."""

    _argument_group_name = "Run"

    output_dir: str = flag("out/cmlm", "Path to save the encoder to.")
    per_device_train_batch_size: int = flag(32, "Number of pairs per step and device.")
    learning_rate: float = flag(5e-5, "Peak learning rate. The paper uses 1e-3 with LAMB.")
    lr_scheduler_type: str = flag("linear", "Learning rate schedule after warm-up.")
    warmup_steps: float = flag(0.1, "Number of warm-up steps, or their share if below 1.")
    max_grad_norm: float = flag(1.0, "Norm to clip the gradient to. 0 disables clipping.")
    accelerator_config: dict | str | None = flag(
        {"dispatch_batches": False},
        "Configuration of the Accelerator, as in transformers. By default each process pads its own rows of a stream.",
    )


@dataclass
class StageOptions:
    """Objective and optimization."""

    _argument_group_name = "Stage and loss"

    stage: Annotated[str, one_of(STAGES)] = flag(
        "cmlm", f"Objective: {', '.join(STAGES)}. The paper's chains are one run after another; see docs/cmlm.md."
    )
    bitext_weight: Annotated[float, at_least(0, "The paper uses 0.2")] = flag(
        0.2, "Weight of the bitext loss beside the CMLM loss in the stage cmlm_bitext."
    )
    margin: Annotated[float, at_least(0, "The paper uses 0.3")] = flag(
        0.3, "Margin of the additive margin softmax, before scaling."
    )
    normalize_embeddings: bool = flag(
        True, "Whether to compare translations by cosine, as LaBSE does, instead of by inner product as in Eq. (1)."
    )
    scale: Annotated[float | None, above(0, f"{COSINE_SCALE:g} suits cosines, 1 inner products")] = flag(
        None, f"Factor of the cosine minus the margin in the loss. Default: {COSINE_SCALE:g}, 1 for inner products."
    )
    optimizer: Annotated[str, one_of(("adamw", "lamb"))] = flag(
        "adamw", "Optimizer: adamw (--optim selects the implementation), or the paper's lamb for batches of thousands."
    )
    mini_batch_size: Annotated[int | None, at_least(1)] = flag(
        None, "Number of rows in memory at once, by gradient caching. Default: the whole batch."
    )


@dataclass
class RowOptions:
    """Construction of rows from documents."""

    _argument_group_name = "Rows"

    language: list[str] = flag(["en"], "Language code for splitting sentences: one for all files, or one for each.")
    language_smoothing: Annotated[float, condition(lambda power: 0 <= power <= 1, "an exponent in [0, 1]")] = flag(
        1.0, "Exponent of each file's share of the rows of an epoch. 0 makes the shares equal. Not in the paper."
    )
    swap_probability: Annotated[float, condition(lambda chance: 0 <= chance <= 1, "a probability in [0, 1]")] = flag(
        0.5, "Probability of swapping the two segments of a pair."
    )
    mlm_probability: Annotated[
        float, condition(lambda part: 0 < part <= 1, "a share in (0, 1]", "The paper uses 0.313")
    ] = flag(0.313, "Share of the tokens of s2 to predict. The paper masks 80 of 256.")


@dataclass
class CMLMModelOptions:
    """The encoder, and the parts that only training needs."""

    _argument_group_name = "Encoder"

    from_scratch: bool = flag(False, "Whether to start from random weights, in the architecture of the model.")
    pooling: Annotated[str | None, one_of(POOLINGS)] = flag(
        None, f"Pooling of the token vectors of s1 to v: {', '.join(POOLINGS)}. Default: the base encoder's, or mean."
    )
    max_seq_length: TokenCount = flag(
        None, f"Number of tokens of a text or segment. Default: the paper's {PAPER_LENGTH}, or the model's positions."
    )
    num_projections: Annotated[int, at_least(0, "The paper uses 15")] = flag(
        15, "Number N of vectors before s2, v included. 0 trains a plain masked LM for comparison."
    )
    skip_connection: bool = flag(False, "Whether to join the projected vectors to s2's outputs ('skip', Table 7).")
    sentence_vector: Annotated[str, one_of(("pooled", "proj"))] = flag(
        "pooled", "Sentence vector of the saved encoder: pooled (v), or proj (the mean of P(v), 'proj' in Table 7)."
    )


@dataclass
class CMLMOptions(CMLMRunOptions, StageOptions, RowOptions, CMLMModelOptions, BaseOptions):
    """All flags that `CMLMConfig` adds to transformers' `TrainingArguments`."""

    def __post_init__(self) -> None:
        self.language = [self.language] if isinstance(self.language, str) else self.language
        if self.scale is None:
            self.scale = COSINE_SCALE if self.normalize_embeddings else 1.0
        run_checks(self, CMLMOptions)
        if self.mini_batch_size and self.stage == "nli":
            raise InputError("--stage nli compares no rows with each other; use --gradient_accumulation_steps instead")
        if self.num_projections == 0 and (self.skip_connection or self.sentence_vector == "proj"):
            raise InputError("--num_projections 0 leaves nothing for --skip_connection or --sentence_vector proj")


@dataclass
class CMLMDataArguments(SourceArguments):
    """The data of every stage."""

    train_file: list[str] | None = flag(
        None, "Documents: txt with an empty line between two, or a table with one per row, also .gz; names or globs."
    )
    line_is_document: bool = flag(False, "Whether each line of a txt file is a document.")
    max_train_samples: int | None = flag(None, "Number of documents to read from each file. Default: all.")
    bitext_file: list[str] | None = flag(None, "Translation pairs: csv, tsv, json, jsonl or parquet; names or globs.")
    nli_file: list[str] | None = flag(
        None, "Premise, hypothesis and label (entailment, neutral, contradiction), in the same formats."
    )
    pair_columns: list[str] | None = flag(
        None, "Names of the two text columns of --bitext_file or --nli_file. Default: the first two."
    )
    label_column: str = flag("label", "Name of the label column of --nli_file, such as 'entailment' in SICK.")

    def check_files(self) -> None:
        super().check_files()
        from mirror.data.files import expand_paths  # imports that --help does not need

        expand_paths([*(self.bitext_file or ()), *(self.nli_file or ())])

    def source(self) -> CorpusSource:
        """Return where the documents come from, without `pair_columns`, which are those of the other files."""
        return replace(super().source(), pair_columns=None)

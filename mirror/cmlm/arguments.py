"""The command line of run_cmlm.py: which model, which data, and everything of `CMLMConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mirror.assets import EMBEDDED_MODEL
from mirror.cmlm.options import DOCUMENT_STAGES, CMLMOptions
from mirror.common.config_parser import check_flags, parse_flags
from mirror.common.errors import InputError
from mirror.data.arguments import SourceArguments
from mirror.training.arguments import ScriptArguments


if TYPE_CHECKING:
    from mirror.cmlm.config import CMLMConfig
    from mirror.data.corpus import CorpusSource


@dataclass
class CMLMScriptArguments(ScriptArguments):
    """Where a run starts from."""

    model_name_or_path: str = field(
        default=str(EMBEDDED_MODEL),
        metadata={
            "help": "Masked LM to start from, or the output of an earlier stage: a Hub id or a folder. Default: the small "
            "model of this repository."
        },
    )


@dataclass
class CMLMDataArguments(SourceArguments):
    """What the stages learn from."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Documents: txt with an empty line between two, or csv, tsv, json, jsonl or parquet with one a row; "
            "each also as .gz; names or globs."
        },
    )
    line_is_document: bool = field(default=False, metadata={"help": "Each line of a txt file is a document."})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Use only the first N documents of a file. Default: all."}
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

    def check_files(self) -> None:
        super().check_files()
        from mirror.data.files import expand_paths  # imports that --help does not need

        expand_paths([*(self.bitext_file or ()), *(self.nli_file or ())])

    def source(self) -> CorpusSource:
        """Where the documents come from; the columns of pairs are for `--bitext_file` and `--nli_file`."""
        return replace(super().source(), pair_columns=None)


def parse_cmlm_arguments(
    argv: list[str] | None = None, description: str | None = None
) -> tuple[CMLMScriptArguments, CMLMDataArguments, CMLMConfig]:
    """The three groups of flags: the command line beats the recipe.

    Torch is imported only once the flags are found sound.

    Raises:
        InputError: an unknown flag or key, a value that no flag takes, a stage without its data, or a file that does not exist.
    """
    _, data_args, options = check_flags((CMLMScriptArguments, CMLMDataArguments, CMLMOptions), argv, description)
    if data_args.streaming and options.language_smoothing != 1:
        raise InputError("--language_smoothing needs the sizes of the files, which a stream does not tell")
    check_data_for(options.stage, data_args)
    data_args.check_files()

    from mirror.cmlm.config import CMLMConfig

    return parse_flags((CMLMScriptArguments, CMLMDataArguments, CMLMConfig), argv)


def check_data_for(stage: str, data: CMLMDataArguments) -> None:
    """Refuse a stage without what it learns from.

    Raises:
        InputError
    """
    if stage in DOCUMENT_STAGES and not (data.train_file or data.dataset_name):
        raise InputError(f"--stage {stage} learns from documents; give --train_file or --dataset_name")
    if "bitext" in stage and not data.bitext_file:
        raise InputError(f"--stage {stage} learns from translations; give --bitext_file")
    if stage == "nli" and not data.nli_file:
        raise InputError("--stage nli learns from labelled pairs; give --nli_file")

"""Where the texts of a training come from: the flags of the scripts that train."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from mirror.common.errors import InputError


if TYPE_CHECKING:
    from mirror.data.corpus import CorpusSource


@dataclass
class SourceArguments:
    """The corpus: the flags that all scripts that train share."""

    _argument_group_name = "Texts"

    train_file: list[str] | None = field(default=None, metadata={"help": "Files, folders or globs."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "A Hub dataset or a local dataset folder instead of files."}
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "Its configuration. Default: the only one."}
    )
    dataset_split: str = field(default="train", metadata={"help": "Its split."})
    streaming: bool = field(
        default=False, metadata={"help": "Read while training, for datasets larger than the disk."}
    )
    text_column: str | None = field(
        default=None, metadata={"help": "Column with the text; default: 'text' or the only one."}
    )
    pair_columns: list[str] | None = field(default=None, metadata={"help": "Two columns with a text each."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only the first N texts. Default: all."})

    def __post_init__(self) -> None:
        if self.train_file and self.dataset_name:
            raise InputError("give --train_file or --dataset_name, not both")
        if self.pair_columns and len(self.pair_columns) != 2:
            raise InputError(
                f"--pair_columns takes two names, got {len(self.pair_columns)}: {' '.join(self.pair_columns)}"
            )
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise InputError(f"--max_train_samples must be at least 1, got {self.max_train_samples}")

    def check_files(self) -> None:
        """
        Raises:
            InputError: a file that is named does not exist, or has an ending that is not read.
        """
        from mirror.data.files import expand_paths  # imports that --help does not need

        expand_paths(self.train_file or ())

    def source(self) -> CorpusSource:
        """What `mirror.data.corpus` reads."""
        from mirror.data.corpus import CorpusSource  # imports that --help does not need

        known = {item.name for item in fields(CorpusSource)}
        given = {name: value for name, value in vars(self).items() if name in known and value is not None}
        return CorpusSource(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        )


@dataclass
class DataArguments(SourceArguments):
    """The corpus of run_mirror.py."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Raw text: txt (one text per line), csv, tsv, json, jsonl or parquet, each also as .gz; names or globs. "
            "Default: docstrings of the Python packages on this machine."
        },
    )
    pair_columns: list[str] | None = field(
        default=None,
        metadata={"help": "Two columns with the same meaning (supervised pairs). Default: none, one text twice."},
    )
    pair_separator: str | None = field(
        default=None, metadata={"help": "Pairs on one line of a txt file, e.g. '||'. Default: one text on a line."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Use only the first N distinct texts. Default: all."}
    )
    strict: bool = field(
        default=False, metadata={"help": "Refuse a txt file with a line over 1 MB, instead of leaving the line out."}
    )
    keep_duplicates: bool = field(
        default=False, metadata={"help": "Keep repeated rows. In a batch, two equal texts are false negatives."}
    )
    near_duplicates: str = field(
        default="report",
        metadata={
            "help": "Rows that say almost the same as an earlier one, found by MinHash: report (how many of the first "
            "20,000, with examples), drop (of all rows), or off."
        },
    )

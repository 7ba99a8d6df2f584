"""Where the texts of a training come from: the flags that all scripts that train share."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror.data import DataSettings
from mirror.errors import InputError


@dataclass
class SourceArguments:
    train_file: list[str] | None = field(default=None, metadata={"help": "Files or globs."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "A Hub dataset or a local dataset folder, instead."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    dataset_split: str = field(default="train", metadata={"help": "Its split."})
    streaming: bool = field(default=False, metadata={"help": "Read while training: for corpora that do not fit."})
    text_column: str | None = field(
        default=None, metadata={"help": "Column with the text; default: 'text' or the only one."}
    )
    pair_columns: list[str] | None = field(default=None, metadata={"help": "Two columns with a text each."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only the first N texts."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that prepare the rows."})

    def __post_init__(self) -> None:
        if self.train_file and self.dataset_name:
            raise InputError("give --train_file or --dataset_name, not both")
        if self.pair_columns and len(self.pair_columns) != 2:
            raise InputError(
                f"--pair_columns takes two names, got {len(self.pair_columns)}: {' '.join(self.pair_columns)}"
            )
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise InputError(f"--max_train_samples must be at least 1, got {self.max_train_samples}")

    def settings(self) -> DataSettings:
        """How `mirror.data` reads the corpus; the pairs are left to those who train on them."""
        return DataSettings(
            train_file=tuple(self.train_file or ()),
            dataset_name=self.dataset_name,
            dataset_config_name=self.dataset_config_name,
            dataset_split=self.dataset_split,
            streaming=self.streaming,
            text_column=self.text_column,
            max_train_samples=self.max_train_samples,
        )

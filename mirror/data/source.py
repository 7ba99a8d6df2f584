"""The flags of the corpus, which are also the options of `load_corpus`. Imports neither torch nor datasets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from mirror.common.cli import at_least, condition, each_of, flag, run_checks
from mirror.common.errors import InputError


PAIR_KINDS = ("question", "title", "heading", "signature", "link")
# Of documents. Longer ones take more time, and with shorter ones headings gain less (docs/documents.md).
PASSAGE_TOKENS = 128


@dataclass
class SourceArguments:
    """Flags of the corpus that all scripts that train share."""

    _argument_group_name = "Texts"

    train_file: list[str] | None = flag(
        None,
        "Files with raw text: txt (one text per line), csv, tsv, json, jsonl or parquet, each also as .gz; names, "
        "folders or globs. Or documents: a folder or files of Markdown, HTML and others (docs/documents.md). Default: the "
        "docstrings of the Python packages on this machine.",
    )
    dataset_name: str | None = flag(None, "Name of a Hub dataset, or path to a dataset folder, instead of files.")
    dataset_config_name: str | None = flag(None, "Configuration of the dataset. Default: the only one.")
    dataset_split: str = flag("train", "Split of the dataset.")
    streaming: bool = flag(False, "Whether to read while training, for datasets larger than the disk.")
    text_column: list[str] | None = flag(
        None, "Column with the text, or several to join. Default: 'text', or the only column."
    )
    text_separator: str = flag(". ", "Separator of the joined columns. Empty cells are left out.")
    pair_columns: Annotated[list[str] | None, condition(lambda names: len(names) == 2, "two names")] = flag(
        None, "Two columns with the same meaning (supervised pairs). Default: none, each text twice."
    )
    max_train_samples: Annotated[int | None, at_least(1)] = flag(
        None, "Number of distinct texts to use, from the start. Default: all."
    )

    def __post_init__(self) -> None:
        either = ("train_file", "dataset_name"), ("train_file", "dataset_config_name"), ("text_column", "pair_columns")
        for one, other in (*either, ("pair_columns", "pair_separator")):
            if getattr(self, one) and getattr(self, other, None):
                raise InputError(f"give --{one} or --{other}, not both")
        for name in ("train_file", "text_column", "pair_columns", "pairs"):
            if isinstance(value := getattr(self, name, None), str | Path):
                setattr(self, name, [str(value)])
        run_checks(self, type(self))

    def check_files(self) -> None:
        """Raise an `InputError` if a file does not exist or has an unknown ending."""
        from mirror.data.documents import are_documents, find_documents
        from mirror.data.files import expand_paths  # imports datasets, which --help does not need

        files = self.train_file or ()
        if are_documents(files):
            next(find_documents(files), None)
        else:
            expand_paths(files)

    def source(self) -> CorpusSource:
        """Return the options for `mirror.data.corpus.load_corpus`."""
        names = [item.name for item in fields(CorpusSource) if hasattr(self, item.name)]
        return CorpusSource(**{name: getattr(self, name) for name in names})


@dataclass
class CorpusSource(SourceArguments):
    """Flags of the corpus of run_mirror.py, and the options of `load_corpus`."""

    pair_separator: str | None = flag(
        None, "Separator of two texts on one line of a txt file, such as '||'. Default: one text per line."
    )
    pairs: Annotated[list[str] | None, each_of(("auto", "none", *PAIR_KINDS))] = flag(
        None,
        f"Pairs to train on from the structure of documents: none, auto, or kinds of them: {', '.join(PAIR_KINDS)}. Default: "
        "auto for documents, and titles among texts for a base model that is an encoder. Name them to use those of the "
        "docstrings too.",
    )
    strict: bool = flag(False, "Whether to refuse a txt file with a line over 1 MB instead of leaving the line out.")
    keep_duplicates: bool = flag(False, "Whether to keep repeated rows. Equal texts in a batch are false negatives.")


def source_name(source: CorpusSource) -> str:
    """Return the files or the dataset as the user named them."""
    return source.dataset_name or " ".join(source.train_file or ()) or "train_dataset"


def source_settings(source: CorpusSource) -> dict:
    """Return the options that were set, as plain data for the record of a run."""
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(source).items()}
    if len(source.text_column or ()) < 2:  # as runs of earlier versions recorded it, which resume
        values |= {"text_column": " ".join(source.text_column or ()) or None, "text_separator": None}
    return {key: value for key, value in values.items() if value not in (None, [])}

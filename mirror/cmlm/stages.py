"""From the flags to the rows of a stage: which files are read, and how they are put together."""

from __future__ import annotations

from collections.abc import Sequence

from datasets import Dataset, interleave_datasets
from transformers import PreTrainedTokenizerBase

from mirror.cmlm.arguments import CMLMArguments, CMLMDataArguments, CMLMModelArguments, CMLMTrainingArguments
from mirror.cmlm.data import (
    Companion,
    PairTokenizer,
    Part,
    StageDataset,
    StreamedStageDataset,
    segment_dataset,
)
from mirror.cmlm.model import CMLMModel
from mirror.cmlm.reading import read_documents, read_labelled_pairs, read_pairs
from mirror.cmlm.segments import Masking, RowMaker
from mirror.encoder import position_limit
from mirror.errors import InputError
from mirror.features import special_tokens_around
from mirror.runs import check_batch_fits


def stage_dataset(
    tokenizer: PreTrainedTokenizerBase,
    model_args: CMLMModelArguments,
    data_args: CMLMDataArguments,
    cmlm_args: CMLMArguments,
    training_args: CMLMTrainingArguments,
) -> StageDataset | StreamedStageDataset:
    """The rows that `--stage` learns from.

    Raises:
        InputError: data that is missing or not readable, or too little of it for one batch.
    """
    batch_size = training_args.train_batch_size * training_args.world_size
    seed, smoothing = training_args.seed, data_args.language_smoothing
    to_pair = PairTokenizer(tokenizer, model_args.max_seq_length)
    if cmlm_args.stage in ("bitext", "nli"):
        part = Part(_pairs(cmlm_args.stage, data_args), smoothing, seed)
        check_batch_fits(part.rows, training_args)
        return StageDataset(cmlm_args.stage, part, to_pair, batch_size)
    company = None
    if cmlm_args.stage == "cmlm_bitext":
        company = Companion(Part(_pairs("bitext", data_args), smoothing, seed), to_pair, batch_size)
    around = special_tokens_around(tokenizer)
    masking = Masking.of(tokenizer, cmlm_args.mlm_probability)
    to_row = RowMaker(masking, cmlm_args.swap_probability, around)
    files = _segment_files(tokenizer, model_args.max_seq_length - len(around[0]) - len(around[1]), data_args)
    if data_args.streaming:
        pairs = interleave_datasets(files) if len(files) > 1 else files[0]
        check_batch_fits(pairs, training_args)
        return StreamedStageDataset(pairs, to_row, seed, company)
    part = Part(files, smoothing, seed)
    check_batch_fits(part.rows, training_args)
    return StageDataset("cmlm", part, to_row, batch_size, company)


def check_positions(model: CMLMModel, max_seq_length: int, stage: str) -> None:
    """Refuse segments that leave no room for the prefix among the model's positions.

    Raises:
        InputError
    """
    prefix = model.config.num_projections if "cmlm" in stage else 0
    limit = position_limit(model.encoder)
    if max_seq_length + prefix > limit:
        raise InputError(
            f"--max_seq_length {max_seq_length} and {prefix} projected vectors before it need "
            f"{max_seq_length + prefix} positions; the model has {limit}"
        )


def dataset_report(dataset: StageDataset | StreamedStageDataset) -> dict[str, int]:
    """How many rows of each kind there are, for the log, `train_results.json` and the card; nothing for a stream."""
    report = {} if isinstance(dataset, StreamedStageDataset) else {dataset.kind: len(dataset.part)}
    return report if dataset.bitext is None else report | {"bitext": len(dataset.bitext.part)}


def sample_of(dataset: StageDataset | StreamedStageDataset, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """A few texts to compare readers on."""
    rows = [row for row, _ in zip(dataset, range(8), strict=False)]
    kind = next(iter(rows[0]))
    return [tokenizer.decode(row[kind]["first_ids"], skip_special_tokens=True) for row in rows]


def _pairs(kind: str, data_args: CMLMDataArguments) -> list[Dataset]:
    if kind == "nli":
        return read_labelled_pairs(data_args.nli_file, data_args.pair_columns, data_args.label_column)
    return read_pairs("--bitext_file", data_args.bitext_file, data_args.pair_columns)


def _segment_files(tokenizer: PreTrainedTokenizerBase, room: int, data_args: CMLMDataArguments) -> list[Dataset]:
    """Segment pairs of each file.

    Raises:
        InputError: a file without a single pair, or another number of languages than of files.
    """
    documents = read_documents(data_args.settings(), data_args.line_is_document)
    languages = _languages(data_args.language, len(documents))
    files = [
        segment_dataset(part, tokenizer, language, room, data_args.preprocessing_num_workers)
        for part, language in zip(documents, languages, strict=True)
    ]
    for number, part in enumerate(files, start=1):
        if isinstance(part, Dataset) and not len(part):
            raise InputError(f"corpus file {number} has no document of two sentences, so no pair to learn from")
    return files


def _languages(given: Sequence[str], files: int) -> list[str]:
    if len(given) not in (1, files):
        raise InputError(
            f"--language: one for all files or one for each of {files}, got {len(given)}: {' '.join(given)}"
        )
    return list(given) * files if len(given) == 1 else list(given)

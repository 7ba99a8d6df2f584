"""From documents and pairs to the rows of a stage: which files are read, and how they are put together."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from datasets import Dataset, IterableDataset, interleave_datasets
from transformers import PreTrainedTokenizerBase

from mirror.cmlm.arguments import CMLMDataArguments
from mirror.cmlm.config import CMLMConfig
from mirror.cmlm.data import (
    BitextStream,
    EpochShuffledDataset,
    PairTokenizer,
    StageDataset,
    StreamedStageDataset,
    segment_dataset,
)
from mirror.cmlm.model import CMLMModel
from mirror.cmlm.options import DOCUMENT_STAGES, PAPER_LENGTH
from mirror.cmlm.reading import read_documents, read_labelled_pairs, read_pairs
from mirror.cmlm.segments import Masking, MLMExampleBuilder, SegmentPairBuilder
from mirror.common.errors import InputError
from mirror.data.two_view_dataset import special_tokens_around
from mirror.modeling.backbone import position_limit
from mirror.training.preflight import check_batch_fits


logger = logging.getLogger(__name__)

Parts = list[Dataset | IterableDataset]
EACH_ROW_ONCE = "all_exhausted_without_replacement"


def read_stage_data(stage: str, args: CMLMDataArguments) -> tuple[Parts, list[Dataset] | None]:
    """What the flags name for a stage: documents or pairs, one dataset per file, and the pairs beside documents.

    Raises:
        InputError: data that is missing or cannot be read.
    """
    if stage == "nli":
        return read_labelled_pairs(args.nli_file, args.pair_columns, args.label_column), None
    pairs = read_pairs("--bitext_file", args.bitext_file, args.pair_columns) if "bitext" in stage else None
    if stage == "bitext":
        return pairs, None
    return read_documents(args.source(), args.line_is_document), pairs


def stage_dataset(
    tokenizer: PreTrainedTokenizerBase, config: CMLMConfig, parts: Parts, bitext: Sequence[Dataset] | None = None
) -> StageDataset | StreamedStageDataset:
    """The rows that the stage of `config` trains on.

    Args:
        parts: documents (`text`), translations (`text`, `text_pair`) or labelled pairs (and `label`), whichever the stage
            needs; one dataset per file or language.
        bitext: the translations of the stage `cmlm_bitext`.

    Raises:
        InputError: too little data for one batch, or documents without a pair of segments.
    """
    batch_size = config.train_batch_size * config.world_size
    to_pair = PairTokenizer(tokenizer, config.max_seq_length)
    if config.stage not in DOCUMENT_STAGES:
        rows = EpochShuffledDataset(parts, config.language_smoothing, config.seed)
        check_batch_fits(rows.rows, config)
        return StageDataset("nli" if config.stage == "nli" else "pairs", rows, to_pair, batch_size)
    stream = None
    if config.stage == "cmlm_bitext":
        if not bitext:
            raise InputError("--stage cmlm_bitext learns from translations too; give bitext_dataset or --bitext_file")
        stream = BitextStream(
            EpochShuffledDataset(bitext, config.language_smoothing, config.seed), to_pair, batch_size
        )
    special_tokens = special_tokens_around(tokenizer)
    if config.stage == "quickthought":
        kind, to_row = "pairs", SegmentPairBuilder(special_tokens)
    else:
        masking = Masking.of(tokenizer, config.mlm_probability)
        kind, to_row = "cmlm", MLMExampleBuilder(masking, config.swap_probability, special_tokens)
    max_tokens = config.max_seq_length - len(special_tokens[0]) - len(special_tokens[1])
    files = _segment_files(tokenizer, max_tokens, parts, config)
    if isinstance(files[0], IterableDataset):
        # Every row once in a pass, also of files that are longer than others.
        pairs = interleave_datasets(files, stopping_strategy=EACH_ROW_ONCE) if len(files) > 1 else files[0]
        check_batch_fits(pairs, config)
        return StreamedStageDataset(kind, pairs, to_row, config.seed, batch_size, stream)
    rows = EpochShuffledDataset(files, config.language_smoothing, config.seed)
    check_batch_fits(rows.rows, config)
    return StageDataset(kind, rows, to_row, batch_size, stream)


def length_that_fits(model: CMLMModel, max_seq_length: int | None, stage: str) -> int:
    """The length of segments: as asked for, or the paper's where the prefix before it leaves that many positions.

    Raises:
        InputError: the length that was asked for leaves no positions for the prefix.
    """
    prefix = model.config.num_projections if "cmlm" in stage else 0
    limit = position_limit(model.encoder)
    if max_seq_length is None:
        max_seq_length = min(PAPER_LENGTH, limit - prefix)
        if max_seq_length < PAPER_LENGTH:
            logger.info(
                "--max_seq_length %d: the model has %d positions, %d of them before the text",
                max_seq_length,
                limit,
                prefix,
            )
    if max_seq_length + prefix > limit:
        raise InputError(
            f"--max_seq_length {max_seq_length} and {prefix} projected vectors before it need "
            f"{max_seq_length + prefix} positions; the model has {limit}, so give at most {limit - prefix}"
        )
    return max_seq_length


def dataset_report(dataset: StageDataset | StreamedStageDataset) -> dict[str, int]:
    """How many rows of each kind there are, for the log, `train_results.json` and the card; empty for a stream."""
    report = {} if isinstance(dataset, StreamedStageDataset) else {dataset.kind: len(dataset.rows)}
    return report if dataset.bitext is None else report | {"pairs": len(dataset.bitext.pairs)}


def sample_of(dataset: StageDataset | StreamedStageDataset, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """A few texts to compare readers on."""
    rows = [row for row, _ in zip(dataset, range(8), strict=False)]
    kind = next(iter(rows[0]))
    return [tokenizer.decode(row[kind]["first_ids"], skip_special_tokens=True) for row in rows]


def _segment_files(tokenizer: PreTrainedTokenizerBase, max_tokens: int, documents: Parts, config: CMLMConfig) -> Parts:
    """Segment pairs of each dataset of documents.

    Raises:
        InputError: one without a single pair, or another number of languages than of datasets.
    """
    languages = _languages(config.language, len(documents))
    files = [
        segment_dataset(part, tokenizer, language, max_tokens, config.preprocessing_num_workers)
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

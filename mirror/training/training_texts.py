"""From a user's texts to the rows of a training: what is held out, the two views of the rest, and the corpus report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from mirror.common.errors import InputError
from mirror.data.corpus import Corpus, as_corpus, source_name
from mirror.data.corpus_report import corpus_report, format_report, near_duplicates_of
from mirror.data.files import reading
from mirror.data.held_out import hold_out
from mirror.data.two_view_dataset import StreamedTwoViewDataset, TwoViewDataset, two_view_dataset
from mirror.modeling.backbone import check_texts_are_known
from mirror.training.config import MirrorConfig
from mirror.training.held_out_scores import HeldOutScores, make_held_out_scores
from mirror.training.preflight import check_batch_fits


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingTexts:
    """What a run learns from.

    Args:
        corpus: without the texts that are held out.
        dataset: two views of each row of the corpus.
        held_out: what is measured on the others; None: there are none.
        report: facts of the corpus.
    """

    corpus: Corpus
    dataset: TwoViewDataset | StreamedTwoViewDataset
    held_out: HeldOutScores | None
    report: dict


def prepare_texts(
    texts: Corpus | Sequence[str] | Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    args: MirrorConfig,
) -> TrainingTexts:
    """
    Raises:
        InputError: texts that cannot be read, are not known to the tokenizer or too few, or not with these settings.
    """
    if args.train_batch_size * (args.world_size if args.gather_negatives else 1) < 2:
        raise InputError("--per_device_train_batch_size 1: a text without other texts has no negatives; use 2 or more")
    views = args.view_settings(tokenizer, prompt)
    with args.main_process_first(desc="two views of each text"):  # the first process of a machine writes the cache
        corpus = as_corpus(texts)
        if not args.force:
            check_texts_are_known(corpus.sample_texts(200), tokenizer)
        with reading(source_name(corpus.source)):
            corpus, rows = hold_out(corpus, args.validation_samples)
            check_batch_fits(corpus.rows, args)
        if not isinstance(corpus.rows, IterableDataset):
            args.at_most_one_pass(len(corpus.rows))
        held_out = make_held_out_scores(rows, tokenizer, views, args)
        step_rows = args.train_batch_size * args.world_size
        dataset = two_view_dataset(corpus.rows, tokenizer, views, step_rows, args.preprocessing_num_workers)
    if args.batching and isinstance(corpus.rows, IterableDataset):
        raise InputError(f"--batching {args.batching} needs all texts at once; leave out --streaming or it")
    near_duplicates = near_duplicates_of(corpus)
    report = corpus_report(corpus, dataset, args.train_batch_size, near_duplicates)
    logger.info("corpus\n%s", format_report(report, near_duplicates))
    return TrainingTexts(corpus, dataset, held_out, report)

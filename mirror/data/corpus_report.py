"""The corpus report: what a user should know about a corpus before training on it."""

from __future__ import annotations

import numpy as np
from datasets import IterableDataset

from mirror.data.augmentation import is_maskable
from mirror.data.corpus import READ_ROWS, Corpus, false_negative_chance
from mirror.data.near_duplicates import NearDuplicates, find_near_duplicates
from mirror.data.two_view_dataset import StreamedTwoViewDataset, TwoViewDataset


COMPARED_ROWS = 20_000  # in which near-duplicates are looked for, in about a second


def near_duplicates_of(corpus: Corpus) -> NearDuplicates | None:
    """Those that were dropped, or those among the first `COMPARED_ROWS`; None of a stream, or if they are not wanted."""
    if corpus.near_duplicates or corpus.source.near_duplicates == "off" or isinstance(corpus.rows, IterableDataset):
        return corpus.near_duplicates
    return find_near_duplicates(corpus.rows.select(range(min(len(corpus.rows), COMPARED_ROWS))))


def corpus_report(
    corpus: Corpus,
    dataset: TwoViewDataset | StreamedTwoViewDataset,
    batch_size: int,
    near_duplicates: NearDuplicates | None = None,
) -> dict[str, float | int | str | list[int]]:
    """Facts of the corpus, for the log, `train_results.json` and the model card; holds no text.

    A stream is not read ahead, so nothing is known of it: its report is empty.

    Args:
        batch_size: rows that are compared with each other in one step.
    """
    if isinstance(dataset, StreamedTwoViewDataset):
        return {}
    settings = dataset.settings
    lengths = dataset.lengths("first_ids")
    masked_column = "text_pair" if "text_pair" in corpus.rows.column_names else "text"
    masked = sum(
        is_maskable(text, settings.span_mask_length, settings.span_mask_min_chars)
        for batch in corpus.rows.select_columns([masked_column]).iter(batch_size=READ_ROWS)
        for text in batch[masked_column]
    )
    chance_before = false_negative_chance(corpus.equal_pairs, corpus.read_rows, batch_size)
    return {
        "rows": len(corpus.rows),
        "held_out_rows": corpus.held_out_rows,
        "blank_rows_dropped": corpus.blank_rows,
        "duplicate_rows": corpus.duplicate_rows,
        "duplicates_kept": corpus.source.keep_duplicates,
        "tokens_p5_p50_p95_max": [int(np.percentile(lengths, q)) for q in (5, 50, 95, 100)],
        "tokens_mean": float(lengths.mean()),
        "share_at_max_length": float((lengths >= settings.max_seq_length).mean()),
        "augmentation": settings.augmentation,
        "share_span_masked": masked / len(corpus.rows),
        "batch_size": batch_size,
        "false_negative_chance_with_duplicates": chance_before,
        "near_duplicate_rows": len(near_duplicates.rows) if near_duplicates else None,
        "near_duplicates": corpus.source.near_duplicates,
    }


def row_tokens(report: dict, packed: bool, max_seq_length: int) -> int:
    """Tokens that a view takes in a batch: its own where rows are packed, the longest's where they are padded."""
    if not report:
        return max_seq_length
    return round(report["tokens_mean"]) if packed else report["tokens_p5_p50_p95_max"][-1]


def format_report(report: dict, near_duplicates: NearDuplicates | None = None) -> str:
    """The report as a few aligned lines, with examples of the near-duplicates."""
    if not report:
        return "  streamed: rows are seen once, duplicates are not looked for"
    low, median, high, longest = report["tokens_p5_p50_p95_max"]
    duplicates = "kept" if report["duplicates_kept"] else "dropped"
    examples = near_duplicates.examples if near_duplicates else []
    return "\n".join(
        (
            f"  rows                 {report['rows']:,}, and {report['held_out_rows']:,} held out to test on",
            f"  duplicates           {report['duplicate_rows']:,} {duplicates}; with them {report['batch_size']}-row batches"
            f" would hold a false negative {report['false_negative_chance_with_duplicates']:.0%} of the time",
            *_near_duplicate_lines(report, examples),
            f"  blank rows           {report['blank_rows_dropped']:,} dropped",
            f"  tokens per row       {low} / {median} / {high} / {longest} (5%, median, 95%, longest)",
            f"  cut at the limit     {report['share_at_max_length']:.1%} of the rows reach --max_seq_length",
            f"  span mask            applies to {report['share_span_masked']:.1%} of the rows"
            if report["augmentation"] == "span"
            else f"  augmentation         {report['augmentation']}",
        )
    )


def _near_duplicate_lines(report: dict, examples: list[tuple[str, str]]) -> list[str]:
    if not report["near_duplicate_rows"]:
        return []
    dropped = report["near_duplicates"] == "drop"
    looked_at = "" if dropped else f" of {min(report['rows'], COMPARED_ROWS):,}"
    advice = "dropped" if dropped else "kept; --near_duplicates drop leaves them out"
    shown = [f"    {_shortened(text)}  ~  {_shortened(earlier)}" for text, earlier in examples]
    return [f"  near-duplicates      {report['near_duplicate_rows']:,}{looked_at} {advice}, such as", *shown]


def _shortened(text: str) -> str:
    return text if len(text) <= 50 else f"{text[:47]}..."

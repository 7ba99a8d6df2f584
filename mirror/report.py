"""What a user should know about a corpus before training on it."""

from __future__ import annotations

import numpy as np

from mirror.data import Corpus, false_negative_chance
from mirror.features import StreamedTwoViewDataset, TwoViewDataset
from mirror.views import is_maskable


def corpus_report(
    corpus: Corpus, dataset: TwoViewDataset | StreamedTwoViewDataset, batch_size: int
) -> dict[str, float | int | str | list[int]]:
    """Facts of the corpus, for the log, `train_results.json` and the model card; holds no text.

    A stream is not read ahead, so nothing is known of it: its report is empty.

    Args:
        batch_size: rows that are compared with each other in one step.
    """
    if isinstance(dataset, StreamedTwoViewDataset):
        return {}
    settings = dataset.settings
    lengths = np.array([len(ids) for ids in dataset.rows["first_ids"]])
    masked_column = "text_pair" if "text_pair" in corpus.rows.column_names else "text"
    masked = [
        is_maskable(text, settings.span_mask_length, settings.span_mask_min_chars)
        for text in corpus.rows[masked_column]
    ]
    kept_duplicates = len(corpus.rows) > corpus.read_rows - corpus.duplicate_rows
    chance_before = false_negative_chance(corpus.equal_pairs, corpus.read_rows, batch_size)
    return {
        "rows": len(corpus.rows),
        "blank_rows_dropped": corpus.blank_rows,
        "duplicate_rows": corpus.duplicate_rows,
        "duplicates_kept": kept_duplicates,
        "tokens_p5_p50_p95_max": [int(np.percentile(lengths, q)) for q in (5, 50, 95, 100)],
        "tokens_mean": float(lengths.mean()),
        "share_at_max_length": float((lengths >= settings.max_seq_length).mean()),
        "augmentation": settings.augmentation,
        "share_span_masked": float(np.mean(masked)),
        "batch_size": batch_size,
        "false_negative_chance_with_duplicates": chance_before,
    }


def row_tokens(report: dict, packed: bool, max_seq_length: int) -> int:
    """Tokens that a view takes in a batch: its own where rows are packed, the longest's where they are padded."""
    if not report:
        return max_seq_length
    return round(report["tokens_mean"]) if packed else report["tokens_p5_p50_p95_max"][-1]


def format_report(report: dict) -> str:
    """The report as a few aligned lines."""
    if not report:
        return "  streamed: rows are seen once, duplicates are not looked for"
    low, median, high, longest = report["tokens_p5_p50_p95_max"]
    duplicates = "kept" if report["duplicates_kept"] else "dropped"
    return "\n".join(
        (
            f"  rows                 {report['rows']:,}",
            f"  duplicates           {report['duplicate_rows']:,} {duplicates}; with them {report['batch_size']}-row batches"
            f" would hold a false negative {report['false_negative_chance_with_duplicates']:.0%} of the time",
            f"  blank rows           {report['blank_rows_dropped']:,} dropped",
            f"  tokens a row         {low} / {median} / {high} / {longest} (5 %, median, 95 %, longest)",
            f"  cut at the limit     {report['share_at_max_length']:.1%} of the rows reach --max_seq_length",
            f"  span mask            touches {report['share_span_masked']:.1%} of the rows"
            if report["augmentation"] == "span"
            else f"  augmentation         {report['augmentation']}",
        )
    )

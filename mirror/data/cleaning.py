"""Cleaning of a corpus: blank rows, repeated rows, texts that are held out of training, and a report.

Texts are compared by hashes of 64 bits, and rows are selected of a dataset on disk: some 50 bytes of memory per row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from datasets import Dataset, IterableDataset

from mirror.common.errors import InputError
from mirror.common.files import text_digest
from mirror.data.augmentation import augmentation_name, is_maskable
from mirror.data.files import reading
from mirror.data.source import CorpusSource, source_name


if TYPE_CHECKING:  # it imports torch
    from mirror.data.views import TwoViews


READ_ROWS = 10_000  # rows in memory at once
HELD_OUT_TEXTS = 1000
REPORTED_ROWS = 1000  # whose tokens are counted where a run reads few of the rows


@dataclass
class Corpus:
    """Rows to train on, and what was counted while they were read."""

    rows: Dataset | IterableDataset  # columns: text, and text_pair in pair mode
    source: CorpusSource = field(default_factory=CorpusSource)
    blank_rows: int = 0
    duplicate_rows: int = 0  # rows equal to an earlier one, whether dropped or kept
    read_rows: int = 0  # not blank, duplicates included
    equal_pairs: int = 0  # unordered pairs of equal texts among the rows read: each can be a false negative
    held_out_rows: int = 0

    @property
    def has_pairs(self) -> bool:
        """Return whether the rows have a second text."""
        return "text_pair" in (self.rows.column_names or ())

    def sample_texts(self, count: int = 8) -> list[str]:
        """Return `count` texts from everywhere in the corpus, or the first ones of a stream."""
        if isinstance(self.rows, IterableDataset):
            with reading(source_name(self.source)):
                return [row["text"] for row in self.rows.take(count)]
        return list(self.rows.select(even_places(len(self.rows), count))["text"])


def even_places(rows: int, count: int) -> list[int]:
    """Return `count` numbers of rows from everywhere in a corpus, or all of fewer rows."""
    return np.linspace(0, rows - 1, min(count, rows)).astype(int).tolist()


def clean(rows: Dataset, source: CorpusSource | None = None) -> Corpus:
    """Drop blank rows and, unless they are to be kept, repeated rows: in a batch, two equal texts are false negatives.

    The columns of `rows` are stripped strings (`mirror.data.corpus.pick_columns` strips them).
    """
    source = source or CorpusSource()
    hashes = hashes_of(rows, rows.column_names)  # (N, columns)
    position = np.flatnonzero((hashes != hash_of("")).all(axis=1))
    hashes = hashes[position]
    is_first = np.zeros(len(hashes), dtype=bool)
    is_first[_first_rows(hashes)] = True
    kept = np.ones_like(is_first) if source.keep_duplicates else is_first
    seen, limit = len(rows), source.max_train_samples
    if limit is not None and kept.sum() >= limit:  # rows after the last one that is kept count as not read
        end = int(np.flatnonzero(kept)[limit - 1]) + 1
        kept, is_first, hashes, position = kept[:end], is_first[:end], hashes[:end], position[:end]
        seen = int(position[-1]) + 1
    # Unordered pairs of rows that share a text. The same text twice in one row counts once.
    differs = hashes[:, 0] != hashes[:, -1]  # never in a corpus of one column
    _, is_new = _sorted_groups(np.concatenate([hashes[:, 0], hashes[differs, -1]])[:, None])
    counts = np.diff(np.flatnonzero(np.append(is_new, True)))
    pairs = int((counts * (counts - 1) // 2).sum())
    blank, repeated = seen - len(position), int((~is_first).sum())
    return Corpus(rows.select(position[kept]), source, blank, repeated, len(position), pairs)


def hold_out(corpus: Corpus, count: int | None = None) -> tuple[Corpus, Dataset | None]:
    """Take the `count` distinct texts with the lowest hashes out of the corpus. No text is on both sides.

    Return the corpus without these texts, in either column, and their rows, None if there are none. The default count
    is 1,000, at most a tenth of the corpus, and none of a corpus below 500 rows. Of a stream, the hashes are those of its
    first 10 `count` rows. Raises an `InputError` if the corpus has at most `count` texts.
    """
    if "document" in (corpus.rows.column_names or ()):
        return _hold_out_documents(corpus, count)
    if count == 0:
        return corpus, None
    rows = corpus.rows
    if isinstance(rows, IterableDataset):
        rows = Dataset.from_list(list(rows.take(10 * (count or HELD_OUT_TEXTS))))
    hashes = hashes_of(rows, rows.column_names)  # (N, columns)
    first = _first_rows(hashes[:, :1])
    count = _default_count(len(first)) if count is None else count
    if not count:
        return corpus, None
    if count >= len(first):
        raise InputError(f"--validation_samples {count}: the corpus has only {len(first):,} distinct texts")
    chosen = hashes[first[:count], 0]
    if isinstance(corpus.rows, IterableDataset):
        rest = corpus.rows.filter(_is_for_training, fn_kwargs={"held_out": frozenset(chosen.tolist())})
    else:
        is_shared = hashes <= chosen[-1]
        is_shared[is_shared] = np.isin(hashes[is_shared], chosen)
        rest = rows.select(np.flatnonzero(~is_shared.any(axis=1)))
    return replace(corpus, rows=rest, held_out_rows=count), rows.select(np.sort(first[:count]))


def _default_count(texts: int) -> int:
    count = min(HELD_OUT_TEXTS, int(0.1 * texts))
    return count if count >= 50 else 0  # fewer texts tell nothing


def _hold_out_documents(corpus: Corpus, count: int | None) -> tuple[Corpus, Dataset | None]:
    """Take whole documents out of the corpus, those whose first row has the lowest hashes, until about `count` rows are held out.

    The held-out rows keep the column `document`. A row whose text is on the other side is in neither part. Raises an
    `InputError` if every document has more than a `count` that was given.
    """
    rows, rest, is_given = corpus.rows, corpus.rows.remove_columns("document"), bool(count)
    count = _default_count(len(rows)) if count is None else count
    hashes = hashes_of(rows, rest.column_names)
    _, first, document, sizes = np.unique(rows["document"], return_index=True, return_inverse=True, return_counts=True)
    total, chosen = 0, np.zeros(len(sizes), dtype=bool)
    # By one hash of each: the lowest hash of all its rows would choose large documents.
    for number in np.argsort(hashes[first, 0]):
        if total < 0.9 * count and total + sizes[number] <= 1.1 * count:
            chosen[number], total = True, total + sizes[number]
    if is_given and not total:
        raise InputError(f"--validation_samples {count}: every document has at least {sizes.min():,} rows; give more")
    if not total:
        return replace(corpus, rows=rest), None
    held_out = chosen[document]
    shared = np.isin(hashes, np.setdiff1d(hashes[held_out], [hash_of("")])).any(axis=1)
    if shared.all():
        raise InputError(f"--validation_samples {count}: leaves no text to train on; give fewer")
    kept = replace(corpus, rows=rest.select(np.flatnonzero(~shared)), held_out_rows=int(total))
    return kept, rows.select(np.flatnonzero(held_out))


def hash_of(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(text_digest(text), "little"))


def hashes_of(rows: Dataset, columns: list[str]) -> np.ndarray:
    """Return a hash of every text of these columns, (N, columns) uint64."""
    hashes = np.empty((len(rows), len(columns)), dtype="<u8")
    for at, batch in enumerate(rows.select_columns(columns).iter(batch_size=READ_ROWS)):
        block = hashes[at * READ_ROWS :]
        for number, column in enumerate(columns):
            block[: len(batch[column]), number] = np.frombuffer(b"".join(map(text_digest, batch[column])), dtype="<u8")
    return hashes


def _first_rows(hashes: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows that are equal to no earlier one, sorted by their hashes."""
    order, is_new = _sorted_groups(hashes)
    return order[is_new]


def _sorted_groups(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a stable sorting order of (N, K), and whether each row in that order differs from the one before it."""
    order = np.lexsort(rows.T)
    is_new, in_order = np.ones(len(rows), dtype=bool), rows[order]
    is_new[1:] = (in_order[1:] != in_order[:-1]).any(axis=1)
    return order, is_new


def _is_for_training(row: dict[str, str], held_out: frozenset[int]) -> bool:
    return not any(hash_of(text) in held_out for text in row.values())


def second_text(text: str, text_pair: str) -> str:
    """Return the second text of a row, which is the first where there is no pair."""
    return text_pair or text


def false_negative_chance(equal_pairs: int, rows: int, batch_size: int) -> float:
    """Return the chance that a random batch holds two equal texts (Poisson approximation of drawing without replacement)."""
    if rows < 2:
        return 0.0
    return abs(math.expm1(-equal_pairs * batch_size * (batch_size - 1) / (rows * (rows - 1))))


def corpus_report(corpus: Corpus, dataset: TwoViews, batch_size: int) -> dict[str, float | int | str | list[int]]:
    """Return facts of the corpus for the log, `train_results.json` and the model card. They contain no text.

    The report of a stream is empty, because it is not read ahead. `batch_size` rows are compared in one step.
    """
    if isinstance(corpus.rows, IterableDataset):
        return {}
    rows, settings = corpus.rows, dataset.settings
    sides = ["first_ids", "second_ids"] if corpus.has_pairs else ["first_ids"]
    if dataset.few_are_read:
        places = even_places(len(rows), REPORTED_ROWS)
        rows, views = rows.select(places), dataset.__getitems__(places)
        lengths = np.array([[len(view[name]) for name in sides] for view in views])
    else:
        lengths = np.stack([dataset.lengths(name) for name in sides], axis=1)
    lengths = lengths.max(axis=1)
    column = "text_pair" if "text_pair" in rows.column_names else "text"
    span = (settings.span_mask_length, settings.span_mask_min_chars)
    texts = (map(second_text, batch["text"], batch[column]) for batch in rows.iter(batch_size=READ_ROWS))
    masked = sum(is_maskable(text, *span) for batch in texts for text in batch)
    chance = false_negative_chance(corpus.equal_pairs, corpus.read_rows, batch_size)
    return {
        "rows": len(corpus.rows),
        "held_out_rows": corpus.held_out_rows,
        "blank_rows_dropped": corpus.blank_rows,
        "duplicate_rows": corpus.duplicate_rows,
        "duplicates_kept": corpus.source.keep_duplicates,
        "tokens_p5_p50_p95_max": [int(np.percentile(lengths, q)) for q in (5, 50, 95, 100)],
        "tokens_mean": float(lengths.mean()),
        "share_at_max_length": float((lengths >= settings.max_seq_length).mean()),
        "augmentation": augmentation_name(settings.augmentation),
        "share_span_masked": masked / len(rows),
        "measured_rows": len(rows),
        "batch_size": batch_size,
        "false_negative_chance_with_duplicates": chance,
    }


def format_report(report: dict) -> str:
    """Return the report as a few aligned lines."""
    if not report:
        return "  streamed: rows are seen once, duplicates are not looked for"
    low, median, high, longest = report["tokens_p5_p50_p95_max"]
    duplicates = "kept" if report["duplicates_kept"] else "dropped"
    chance = f"{report['false_negative_chance_with_duplicates']:.0%}"
    of = f" of {report['measured_rows']:,} rows" if report["measured_rows"] < report["rows"] else ""
    lines = [
        f"  rows                 {report['rows']:,}, and {report['held_out_rows']:,} held out to test on",
        f"  duplicates           {report['duplicate_rows']:,} {duplicates}; with them {report['batch_size']}-row batches"
        f" would hold a false negative {chance} of the time",
        f"  blank rows           {report['blank_rows_dropped']:,} dropped",
        f"  tokens per row       {low} / {median} / {high} / {longest} (5%, median, 95%, longest{of})",
        f"  cut at the limit     {report['share_at_max_length']:.1%} of the rows reach --max_seq_length",
        f"  span mask            applies to {report['share_span_masked']:.1%} of the rows"
        if report["augmentation"] == "span"
        else f"  augmentation         {report['augmentation']}",
    ]
    return "\n".join(lines)

"""The rows of each stage in a new order every epoch, and the batches made of them.

Everything random is a function of (seed, epoch, row), where row is the position in the order of the epoch: the number of
processes and workers, and resuming, change nothing. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets
from torch import Tensor, tensor
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerBase

from mirror.cmlm.model import IGNORED
from mirror.cmlm.segments import MLMExampleBuilder, SegmentPairBuilder, documents_to_pairs
from mirror.common.errors import InputError
from mirror.data.arrow_cache import map_rows
from mirror.data.augmentation import view_rng
from mirror.data.endless_stream import EndlessStream


Row = dict[str, list[int] | int]


def smoothed_counts(sizes: Sequence[int], exponent: float) -> list[int]:
    """Number of rows of each file in an epoch: shares proportional to (share of all rows) ** exponent.

    The total stays the same. Exponent 1 leaves the files as they are, 0 makes them equal.
    """
    shares = (np.array(sizes) / sum(sizes)) ** exponent
    ends = np.rint(np.cumsum(shares / shares.sum()) * sum(sizes)).astype(int)
    return np.diff(ends, prepend=0).tolist()


def epoch_order(sizes: Sequence[int], exponent: float, seed: int, epoch: int) -> np.ndarray:
    """Indices into the concatenated files in the order of one epoch: (sum of sizes,).

    A file with a count above its size is repeated in full before any of its rows occurs a third time.
    """
    rng = np.random.default_rng([seed, epoch, 0, 1])  # four words: the generators of rows have fewer
    starts = np.cumsum([0, *sizes])
    rows = []
    for start, size, count in zip(starts, sizes, smoothed_counts(sizes, exponent), strict=False):
        rounds = [rng.permutation(size) for _ in range(-(-count // size))]
        rows.append(start + np.concatenate([*rounds, np.empty(0, int)])[:count])
    return rng.permutation(np.concatenate(rows)).astype(int)


class EpochShuffledDataset:
    """Rows of one kind, from one or more files, in a new order every epoch."""

    def __init__(self, files: Sequence[Dataset], smoothing: float, seed: int):
        self.rows = concatenate_datasets(list(files)) if len(files) > 1 else files[0]
        self.sizes, self.smoothing, self.seed = [len(file) for file in files], smoothing, seed
        self._epoch, self._order = -1, np.empty(0, int)

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, epoch: int, index: int) -> dict:
        """Row `index` in the order of an epoch."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(self.sizes, self.smoothing, self.seed, epoch)
        return self.rows[int(self._order[index])]


class PairTokenizer:
    """Rows of `text` and `text_pair` (and `label`) to ids of both, special tokens included."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int):
        self.tokenizer, self.max_seq_length = tokenizer, max_seq_length

    def __call__(self, row: dict[str, str | int]) -> Row:
        encoded = self.tokenizer(
            [row["text"], row["text_pair"]],
            truncation=True,
            max_length=self.max_seq_length,
            split_special_tokens=True,
        )["input_ids"]
        label = {"label": row["label"]} if "label" in row else {}
        return {"first_ids": encoded[0], "second_ids": encoded[1]} | label


class BitextStream:
    """Translations beside the rows of a stage: every row gets one, and no batch holds one twice.

    A pass over them is a whole number of batches, so no batch spans two passes.
    """

    def __init__(self, pairs: EpochShuffledDataset, to_row: PairTokenizer, batch_size: int):
        self.pairs, self.to_row = pairs, to_row
        self.usable = len(pairs) // batch_size * batch_size
        if not self.usable:
            raise InputError(
                f"{len(pairs):,} pairs do not fill one batch of {batch_size}; lower --per_device_train_batch_size"
            )

    def at(self, index: int) -> Row:
        return self.to_row(self.pairs.at(*divmod(index, self.usable)))


class StageDataset(TorchDataset):
    """Rows of a stage: `{"cmlm": ...}`, `{"cmlm": ..., "pairs": ...}`, `{"pairs": ...}` or `{"nli": ...}`; read it in order.

    Args:
        kind: of the main rows, which decide the length of an epoch: "cmlm", "pairs" or "nli".
        rows: the main rows: `first` and `second` of segments, or `text` and `text_pair`.
        to_row: makes a row of them; segments also take a generator.
        batch_size: rows of all processes in one step; an epoch is a whole number of them.
        bitext: the translations of the stage `cmlm_bitext`.
    """

    def __init__(
        self,
        kind: str,
        rows: EpochShuffledDataset,
        to_row: MLMExampleBuilder | SegmentPairBuilder | PairTokenizer,
        batch_size: int,
        bitext: BitextStream | None = None,
    ):
        self.kind, self.rows, self.to_row, self.bitext = kind, rows, to_row, bitext
        self.length = len(rows) // batch_size * batch_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Row]:
        row = self.rows.at(self.epoch, index)
        if isinstance(self.to_row, PairTokenizer):
            made = self.to_row(row)
        else:
            made = self.to_row(row["first"], row["second"], view_rng(self.rows.seed, self.epoch, index))
        return {self.kind: made} | _translation(self.bitext, self.epoch * self.length + index)


class StreamedStageDataset(EndlessStream):
    """The same over a stream of segment pairs: nothing is stored.

    Args:
        batch_size: rows of all processes in one step.
    """

    def __init__(
        self,
        kind: str,
        pairs: IterableDataset,
        to_row: MLMExampleBuilder | SegmentPairBuilder,
        seed: int,
        batch_size: int,
        bitext: BitextStream | None = None,
    ):
        super().__init__(pairs, seed, batch_size)
        self.kind, self.to_row, self.bitext = kind, to_row, bitext

    def make_rows(self, batch: dict[str, list], epoch: int, place: int, number: int) -> Iterator[dict[str, Row]]:
        for index, (first, second) in enumerate(zip(batch["first"], batch["second"], strict=True)):
            rng = view_rng(self.seed, epoch, place * self.batch_size + index)
            made = self.to_row(first, second, rng)
            yield {self.kind: made} | _translation(self.bitext, number * self.batch_size + index)


def _translation(bitext: BitextStream | None, index: int) -> dict[str, Row]:
    return {} if bitext is None else {"pairs": bitext.at(index)}


def segment_dataset(
    documents: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    language: str,
    max_tokens: int,
    num_proc: int | None = None,
) -> Dataset | IterableDataset:
    """Pairs of neighbouring segments, columns `first` and `second`, of rows of `text`.

    Args:
        max_tokens: tokens of a segment, special ones excluded.
    """
    options = {} if isinstance(documents, IterableDataset) else {"num_proc": num_proc, "desc": "Pairs of segments"}
    return map_rows(
        documents,
        documents_to_pairs,
        batched=True,
        remove_columns=documents.column_names or ["text"],
        fn_kwargs={"tokenizer": tokenizer, "language": language, "max_tokens": max_tokens},
        **options,
    )


@dataclass
class StageCollator:
    """Rows become the keyword arguments of `CMLMModel.forward`.

    Two rows of the stage `cmlm`, where 0 is padding, 2 and 3 are the special tokens around a text and 4 is the mask token:

        {"first_ids": [2, 7, 3],  "second_ids": [2, 4, 9, 3], "labels": [-100, 8, -100, -100]}
        {"first_ids": [2, 10, 3], "second_ids": [2, 4, 3],    "labels": [-100, 11, -100]}

    give

        {"cmlm": {"first":  {"input_ids": [[2, 7, 3], [2, 10, 3]],       "attention_mask": [[1, 1, 1], [1, 1, 1]]},
                  "second": {"input_ids": [[2, 4, 9, 3], [2, 4, 3, 0]],  "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]]},
                  "labels": [[-100, 8, -100, -100], [-100, 11, -100, -100]]}}

    and B pairs of texts or of NLI give `input_ids` and `attention_mask` of 2B rows, the first texts before the second; NLI
    also `labels` of (B,).
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, rows: list[dict[str, Row]]) -> dict[str, dict]:
        batch = {}
        for kind in rows[0]:
            own = [row[kind] for row in rows]
            batch[kind] = self._segments(own) if kind == "cmlm" else self._both(own)
            if kind == "nli":
                batch[kind]["labels"] = tensor([row["label"] for row in own])  # (B,)
        return batch

    def _segments(self, rows: list[Row]) -> dict[str, dict[str, Tensor] | Tensor]:
        second = self._pad([row["second_ids"] for row in rows])
        width = second["input_ids"].shape[1]
        labels = [row["labels"] + [IGNORED] * (width - len(row["labels"])) for row in rows]
        return {"first": self._pad([row["first_ids"] for row in rows]), "second": second, "labels": tensor(labels)}

    def _both(self, rows: list[Row]) -> dict[str, Tensor]:
        return self._pad([row["first_ids"] for row in rows] + [row["second_ids"] for row in rows])

    def _pad(self, ids: list[list[int]]) -> dict[str, Tensor]:
        return dict(self.tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt"))

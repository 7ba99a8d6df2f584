"""Datasets that draw the rows of a stage in a new order every epoch, and the collator that makes batches of them.

Everything random is a function of (seed, epoch, row), where row is the position in the order of the epoch. So the number of
processes and workers, and resuming, do not change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets
from torch import Tensor, tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerBase

from mirror.cmlm.model import IGNORED
from mirror.common.errors import InputError
from mirror.data.augmentation import view_rng
from mirror.data.views import EndlessStream


Ids = list[int]
Row = dict[str, Ids | int]


@dataclass(frozen=True)
class Masking:
    """BERT's masking (CMLM, section 2): of the selected tokens 80% become the mask token, 10% random, 10% stay."""

    rate: float  # share of the tokens of s2 to predict
    mask_token_id: int
    random_ids: np.ndarray  # candidates for a random token: all but the special ones

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, rate: float) -> Masking:
        if tokenizer.mask_token_id is None:
            raise InputError(f"the tokenizer of {tokenizer.name_or_path} has no mask token; give a masked LM")
        ordinary = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
        return cls(rate, tokenizer.mask_token_id, ordinary)

    def __call__(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Return the masked ids, and the labels: the original token where it is to be predicted, -100 elsewhere."""
        count = max(1, round(self.rate * len(ids)))  # a fixed number: the paper masks 80 of 256 (section 3)
        chosen = rng.permutation(len(ids))[:count]
        fate = rng.random(count)
        masked, labels = np.array(ids), np.full(len(ids), IGNORED)
        labels[chosen] = masked[chosen]
        masked[chosen[fate < 0.8]] = self.mask_token_id
        random = chosen[(fate >= 0.8) & (fate < 0.9)]
        masked[random] = rng.choice(self.random_ids, len(random))
        return masked.tolist(), labels.tolist()


@dataclass(frozen=True)
class SegmentRowBuilder:
    """Make a row of two segments, with special tokens: swapped or not, the second one masked (not for QuickThought)."""

    masking: Masking | None
    swap_probability: float
    special_tokens: tuple[Ids, Ids]  # before and after a text

    def __call__(self, first: Ids, second: Ids, rng: np.random.Generator) -> Row:
        if rng.random() < self.swap_probability:
            first, second = second, first
        before, after = self.special_tokens
        row = {"first_ids": before + list(first) + after}
        if self.masking is None:
            return row | {"second_ids": before + list(second) + after}
        masked, labels = self.masking(second, rng)
        ignored = [IGNORED] * len(before), [IGNORED] * len(after)
        return row | {"second_ids": before + masked + after, "labels": ignored[0] + labels + ignored[1]}


@dataclass(frozen=True)
class PairTokenizer:
    """Convert a row of `text` and `text_pair` (and `label`) to the ids of both, special tokens included."""

    tokenizer: PreTrainedTokenizerBase
    max_seq_length: int

    def __call__(self, row: dict[str, str | int]) -> Row:
        options = {"truncation": True, "max_length": self.max_seq_length, "split_special_tokens": True}
        first, second = self.tokenizer([row["text"], row["text_pair"]], **options)["input_ids"]
        return {"first_ids": first, "second_ids": second} | {key: row[key] for key in ("label",) if key in row}


def epoch_order(sizes: Sequence[int], exponent: float, seed: int, epoch: int) -> np.ndarray:
    """Return indices into the concatenated files in the order of one epoch: (sum of sizes,).

    The rows of a file are proportional to (its share of all rows) ** exponent: 1 leaves the files as they are, 0 makes
    them equal. A file with a count above its size is repeated in full before any of its rows occurs a third time.
    """
    rng = np.random.default_rng([seed, epoch, 0, 1])  # four words: the generators of rows have fewer
    shares = (np.array(sizes) / sum(sizes)) ** exponent
    counts = np.diff(np.rint(np.cumsum(shares / shares.sum()) * sum(sizes)).astype(int), prepend=0).tolist()
    rows = []
    for start, size, count in zip(np.cumsum([0, *sizes]), sizes, counts, strict=False):
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
        """Return row `index` in the order of an epoch."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(self.sizes, self.smoothing, self.seed, epoch)
        return self.rows[int(self._order[index])]


class BitextStream:
    """Translations beside the rows of a stage: every row gets one, and no batch contains one twice without smoothing.

    A pass over them is a whole number of batches, so no batch spans two passes.
    """

    def __init__(self, pairs: EpochShuffledDataset, to_row: PairTokenizer, batch_size: int):
        self.pairs, self.to_row = pairs, to_row
        self.usable = len(pairs) // batch_size * batch_size
        if not self.usable:
            few = f"{len(pairs):,} pairs do not fill one batch of {batch_size}"
            raise InputError(f"{few}; lower --per_device_train_batch_size")

    def at(self, index: int) -> Row:
        """Return the translation of row `index`, counted from the first step on."""
        return self.to_row(self.pairs.at(*divmod(index, self.usable)))


@dataclass(eq=False)
class StageDataset(TorchDataset):
    """Rows of a stage, to be read in order: `{kind: row}`, with `bitext` also `{"pairs": row}`.

    The main rows, `first` and `second` of segments or `text` and `text_pair`, determine the length of an epoch.
    """

    kind: str  # of the main rows: "cmlm", "pairs" or "nli"
    rows: EpochShuffledDataset
    to_row: SegmentRowBuilder | PairTokenizer
    batch_size: int  # rows of all processes in one step; an epoch is a whole number of them
    bitext: BitextStream | None = None  # of the stage `cmlm_bitext`
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows) // self.batch_size * self.batch_size

    def __getitem__(self, index: int) -> dict[str, Row]:
        row = self.rows.at(self.epoch, index)
        if isinstance(self.to_row, PairTokenizer):
            return {self.kind: self.to_row(row)}
        made = {self.kind: self.to_row(row["first"], row["second"], view_rng(self.rows.seed, self.epoch, index))}
        return made | ({"pairs": self.bitext.at(self.epoch * len(self) + index)} if self.bitext else {})


@dataclass(eq=False)
class StreamedStageDataset(EndlessStream):
    """`StageDataset` over a stream of segment pairs, of which nothing is stored."""

    kind: str
    stream: IterableDataset
    to_row: SegmentRowBuilder
    seed: int
    batch_size: int
    bitext: BitextStream | None = None
    buffer_size: int = 10_000

    def make_rows(self, batch: dict[str, list], epoch: int, place: int, number: int) -> Iterator[dict[str, Row]]:
        for index, (first, second) in enumerate(zip(batch["first"], batch["second"], strict=True)):
            made = {self.kind: self.to_row(first, second, view_rng(self.seed, epoch, place * self.batch_size + index))}
            yield made | ({"pairs": self.bitext.at(number * self.batch_size + index)} if self.bitext else {})


@dataclass
class StageCollator:
    """Collate rows to the keyword arguments of `CMLMModel.forward`.

    B rows of segments, `{"cmlm": {"first_ids": [...], "second_ids": [...], "labels": [...]}}`, give `{"cmlm": {"first":
    inputs, "second": inputs, "labels": (B, T)}}` with `input_ids` and `attention_mask` in both inputs. B pairs of texts or
    of NLI give inputs of 2B rows, the first texts before the second, and NLI also `labels` of (B,).
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, rows: list[dict[str, Row]]) -> dict[str, dict]:
        batch = {}
        for kind in rows[0]:
            own = [row[kind] for row in rows]
            firsts, seconds = ([row[key] for row in own] for key in ("first_ids", "second_ids"))
            if kind == "cmlm":
                labels = pad_sequence([tensor(row["labels"]) for row in own], True, IGNORED)  # (B, T)
                batch[kind] = {"first": self._pad(firsts), "second": self._pad(seconds), "labels": labels}
            else:
                batch[kind] = self._pad(firsts + seconds)
            if kind == "nli":
                batch[kind]["labels"] = tensor([row["label"] for row in own])  # (B,)
        return batch

    def _pad(self, ids: list[Ids]) -> dict[str, Tensor]:
        return dict(self.tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt"))

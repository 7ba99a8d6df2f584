"""From rows of text to the token ids of both views, cached on disk or streamed. Knows nothing of training.

Everything here is a function of (seed, epoch, row), so the number of processes and workers, and resuming, change nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset, List, Value
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset as TorchIterableDataset
from torch.utils.data import get_worker_info
from transformers import PreTrainedTokenizerBase

from mirror.common.errors import InputError, library_errors
from mirror.data.augmentation import (
    AUGMENTATIONS,
    UserNoise,
    View,
    augmentation_name,
    mask_tokens,
    span_mask,
    view_rng,
)
from mirror.data.cache import map_rows
from mirror.data.documents import PLAIN_TEXT


IDS = Features({name: List(Value("int32")) for name in ("first_ids", "second_ids")})


@dataclass(frozen=True)
class ViewSettings:
    """Settings of the views of a text.

    `augmentation` is a name in `mirror.data.augmentation.AUGMENTATIONS`, or a function `(text, rng) -> text`. `rng` is
    the NumPy `Generator` of this seed, epoch, row and view (`view_rng`), the same that the built-in ones get.
    """

    span_mask_length: int  # characters; 0: no masking
    span_mask_min_chars: int  # shorter texts are not masked
    mask_token: str | None  # a literal to write instead of the tokenizer's own mask token
    max_seq_length: int  # tokens, special ones included
    seed: int
    augmentation: str | UserNoise = "span"
    rate: float = 0.0  # share of words or tokens changed; spans, `none` and functions have none
    prompt: str = ""  # text before every text, without noise
    second_prompt: str | None = None  # the same for second views, where it differs

    def view(self, text: str, rng: np.random.Generator) -> View:
        """Return the text with its noise. Single tokens are masked later, in `ViewTokenizer.masked`."""
        if callable(self.augmentation):
            # Its result is plain text: a `[MASK]` in it is characters, not the mask token.
            view = [self.augmentation(text, rng)]
            if not isinstance(view[0], str):
                name, kind = augmentation_name(self.augmentation), type(view[0]).__name__
                raise InputError(f"augmentation {name} returned {kind} for a text; return a str")
        elif self.augmentation == "span":
            view = span_mask(text, self.span_mask_length, self.span_mask_min_chars, rng)
        else:
            view = AUGMENTATIONS[self.augmentation](text, self.rate, rng)
        first, *rest = view if self.mask_token is None else [f" {self.mask_token} ".join(view)]
        prompt = self.prompt if self.second_prompt is None else self.second_prompt
        return [prompt + first, *rest]


class ViewTokenizer:
    """Converts views to token ids. Special tokens in a user's text are plain text. Only our own mask is the mask token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int):
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.special_tokens = special_tokens_around(tokenizer)

    def __call__(self, views: list[View]) -> list[list[int]]:
        """Return the ids of each view, special tokens included, cut to `max_seq_length`."""
        # The segment after a mask starts a new word, which byte-level BPE writes with a leading space.
        pieces = [" " + part if index and part else part for view in views for index, part in enumerate(view)]
        with library_errors(f"{self.tokenizer.name_or_path}: its tokenizer fails on these texts"):
            encoded = self.tokenizer(pieces, **PLAIN_TEXT)
        segments = iter(encoded["input_ids"])
        before, after = self.special_tokens
        max_tokens = self.max_seq_length - len(before) - len(after)
        rows = []
        for view in views:
            ids = list(next(segments))
            for _ in view[1:]:
                ids += [self.tokenizer.mask_token_id, *next(segments)]
            ids = ids[-max_tokens:] if self.tokenizer.truncation_side == "left" else ids[:max_tokens]
            rows.append(before + ids + after)
        return rows

    def masked(self, ids: list[int], rate: float, rng: np.random.Generator) -> list[int]:
        """Return the row with single tokens of the text masked. The special tokens around it stay."""
        before, after = self.special_tokens
        end = len(ids) - len(after)
        return before + mask_tokens(ids[len(before) : end], self.tokenizer.mask_token_id, rate, rng) + ids[end:]


def special_tokens_around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens that this tokenizer puts before and after a single text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    return ids[: special.index(0)], ids[len(special) - special[::-1].index(0) :]


def tokenize_rows(
    batch: dict[str, list], rows: list[int], tokenizer: PreTrainedTokenizerBase, settings: ViewSettings, epoch: int
) -> dict[str, list[list[int]]]:
    """Return `first_ids` and `second_ids` of a batch of `text`, and `text_pair` for pairs. This is the mapped function.

    `rows` are the numbers of the rows in the corpus. Settings and epoch are part of the key of the cache.
    """
    to_ids = ViewTokenizer(tokenizer, settings.max_seq_length)

    # Among pairs, a row without a second text has two views of the first.
    second = [pair or text for text, pair in zip(batch["text"], batch.get("text_pair", batch["text"]), strict=True)]
    rngs = [view_rng(settings.seed, epoch, row) for row in rows]
    second_ids = to_ids([settings.view(text, rng) for text, rng in zip(second, rngs, strict=True)])
    if settings.augmentation == "token":
        second_ids = [to_ids.masked(row, settings.rate, rng) for row, rng in zip(second_ids, rngs, strict=True)]
    return {"first_ids": to_ids([[settings.prompt + text] for text in batch["text"]]), "second_ids": second_ids}


class TwoViewDataset(TorchDataset):
    """Rows of `first_ids` and `second_ids` with the noise of one epoch, memory-mapped from the cache of `datasets`.

    `texts` are rows of `text`, and `text_pair` for pairs. With `num_proc`, dill has to pickle noise of a user. With
    `few_are_read` the views of a row are made when it is read. They are the same.
    """

    def __init__(
        self,
        texts: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        settings: ViewSettings,
        num_proc: int | None = None,
        few_are_read: bool = False,
    ):
        self.texts, self.tokenizer, self.settings, self.num_proc = texts, tokenizer, settings, num_proc
        self.few_are_read, self.epoch = few_are_read, -1
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Make the views of this epoch, or read them from the cache. Without noise those of the first epoch stay."""
        if epoch == self.epoch or (self.settings.augmentation == "none" and self.epoch >= 0):
            return
        self.epoch = epoch
        if not self.few_are_read:
            self.rows = map_rows(
                self.texts,
                tokenize_rows,
                calls=(span_mask,),  # stands for all built-in noise: the source of its module is part of the key
                user_function=self.settings.augmentation if callable(self.settings.augmentation) else None,
                fn_kwargs={"tokenizer": self.tokenizer, "settings": self.settings, "epoch": epoch},
                **{"batched": True, "with_indices": True, "num_proc": self.num_proc, "features": IDS},
                remove_columns=self.texts.column_names,
                desc=f"Two views of each text, epoch {epoch}",
            )

    def lengths(self, column: str) -> np.ndarray:
        """Return the number of tokens of each row's `first_ids` or `second_ids`, (N,)."""
        return pc.list_value_length(self.rows.data.column(column)).to_numpy()

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, list[int]]]:
        if self.few_are_read:
            columns = tokenize_rows(self.texts[indices], indices, self.tokenizer, self.settings, self.epoch)
        else:
            columns = self.rows[indices]
        if "text_pair" in self.texts.column_names:  # whose false negatives are found by the numbers of their rows
            columns["row"] = indices
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


class EndlessStream(TorchIterableDataset):
    """A stream that repeats without end, each time in another order, in whole batches. The rest of a pass is dropped.

    Every worker of the data loader reads the whole stream and makes only those batches that the loader will ask it for, so the
    number of workers changes nothing. Trainer sees one endless epoch, so its number of steps is enough to resume.
    `batch_size` are the rows of all processes in one step. The next row is drawn from `buffer_size` rows.
    """

    def __init__(self, stream: IterableDataset, seed: int, batch_size: int, buffer_size: int = 10_000):
        self.stream, self.seed, self.batch_size, self.buffer_size = stream, seed, batch_size, buffer_size

    def make_rows(self, batch: dict[str, list], epoch: int, place: int, number: int) -> Iterable[dict]:
        """Return the rows of a stored batch, after `epoch` passes, `place` batches in it and `number` in all."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[dict]:
        worker = get_worker_info()
        own, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        number = 0
        for epoch in itertools.count():
            rows = self.stream.shuffle(seed=self.seed + epoch, buffer_size=self.buffer_size)
            # `iter` of a `datasets` stream is the same in every worker. Plain iteration would split its files among them.
            for place, batch in enumerate(rows.iter(self.batch_size, drop_last_batch=True)):
                if number % workers == own:
                    yield from self.make_rows(batch, epoch, place, number)
                number += 1


class StreamedTwoViewDataset(EndlessStream):
    """Two views of the rows of a stream, `batch_size` of them in one step of all processes. Nothing is stored."""

    def __init__(
        self, texts: IterableDataset, tokenizer: PreTrainedTokenizerBase, settings: ViewSettings, batch_size: int
    ):
        numbered = texts.map(lambda batch, rows: {"row": rows}, batched=True, with_indices=True)
        super().__init__(numbered, settings.seed, batch_size)
        self.tokenizer, self.settings = tokenizer, settings

    def make_rows(self, batch: dict[str, list], epoch: int, place: int, number: int) -> Iterator[dict[str, list[int]]]:
        views = tokenize_rows(batch, batch.pop("row"), self.tokenizer, self.settings, epoch)
        for first, second in zip(views["first_ids"], views["second_ids"], strict=True):
            yield {"first_ids": first, "second_ids": second}


TwoViews = TwoViewDataset | StreamedTwoViewDataset

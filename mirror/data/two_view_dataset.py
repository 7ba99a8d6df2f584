"""From rows of text to the token ids of both views, through a cached `datasets` map. Knows nothing of training.

Everything here is a function of (seed, epoch, row), so the number of processes and workers, and resuming, change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset, List, Value
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerBase

from mirror.data.arrow_cache import map_rows
from mirror.data.augmentation import View, mask_tokens, span_mask, view_rng, word_view
from mirror.data.endless_stream import EndlessStream


IDS = Features({name: List(Value("int32")) for name in ("first_ids", "second_ids")})


@dataclass(frozen=True)
class ViewSettings:
    """How the views of a text are made; the first one is the text itself unless `both_views`."""

    span_mask_length: int  # characters; 0: no masking
    span_mask_min_chars: int  # shorter texts are not masked
    mask_token: str | None  # a literal to write instead of the tokenizer's own mask token
    max_seq_length: int  # tokens, special ones included
    seed: int
    augmentation: str = "span"  # one of `mirror.data.augmentation.AUGMENTATIONS`
    rate: float = 0.0  # share of words or tokens changed; spans and `none` have no rate
    both_views: bool = False
    prompt: str = ""  # before every text, and without noise

    def view(self, text: str, rng: np.random.Generator) -> View:
        """The text with its noise; tokens are masked later, in `ViewTokenizer.masked`."""
        if self.augmentation == "span":
            view = span_mask(text, self.span_mask_length, self.span_mask_min_chars, rng)
        elif self.augmentation in ("token", "none"):
            view = [text]
        else:
            view = word_view(text, self.augmentation, self.rate, rng)
        first, *rest = view if self.mask_token is None else [f" {self.mask_token} ".join(view)]
        return [self.prompt + first, *rest]


class ViewTokenizer:
    """Token ids of views. Special-token text inside user input is plain text; only our own mask is the mask token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int):
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.special_tokens = special_tokens_around(tokenizer)

    def __call__(self, views: list[View]) -> list[list[int]]:
        """Ids of each view, special tokens included, cut to `max_seq_length`."""
        # The segment after a mask starts a new word, which byte-level BPE writes with a leading space.
        pieces = [
            " " + segment if index and segment else segment for view in views for index, segment in enumerate(view)
        ]
        encoded = iter(
            self.tokenizer(pieces, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        )
        before, after = self.special_tokens
        max_tokens = self.max_seq_length - len(before) - len(after)
        rows = []
        for view in views:
            ids = list(next(encoded))
            for _ in view[1:]:
                ids += [self.tokenizer.mask_token_id, *next(encoded)]
            rows.append(before + ids[:max_tokens] + after)
        return rows

    def masked(self, ids: list[int], rate: float, rng: np.random.Generator) -> list[int]:
        """The row with single tokens of the text masked; the special ones around it stay."""
        before, after = self.special_tokens
        end = len(ids) - len(after)
        content = mask_tokens(ids[len(before) : end], self.tokenizer.mask_token_id, rate, rng)
        return before + content + ids[end:]


def special_tokens_around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that this tokenizer puts before and after a single text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    first = special.index(0)
    last = len(special) - special[::-1].index(0)
    return ids[:first], ids[last:]


def tokenize_rows(
    batch: dict[str, list[str]], rows: list[int], tokenizer: PreTrainedTokenizerBase, settings: dict, epoch: int
) -> dict[str, list[list[int]]]:
    """The mapped function. `settings` is a `ViewSettings` as a dict: part of the cache key, like `epoch`."""
    view_settings = ViewSettings(**settings)
    to_ids = ViewTokenizer(tokenizer, view_settings.max_seq_length)
    seconds = batch.get("text_pair", batch["text"])

    def noisy_ids(texts: list[str], first_view: bool) -> list[list[int]]:
        rngs = [view_rng(view_settings.seed, epoch, row, first_view) for row in rows]
        ids = to_ids([view_settings.view(text, rng) for text, rng in zip(texts, rngs, strict=True)])
        if view_settings.augmentation != "token":
            return ids
        return [to_ids.masked(row, view_settings.rate, rng) for row, rng in zip(ids, rngs, strict=True)]

    first_ids = (
        noisy_ids(batch["text"], True)
        if view_settings.both_views
        else to_ids([[view_settings.prompt + t] for t in batch["text"]])
    )
    return {"first_ids": first_ids, "second_ids": noisy_ids(seconds, False)}


class TwoViewDataset(TorchDataset):
    """Rows of `first_ids` and `second_ids` with the masks of one epoch, memory-mapped from the cache of `datasets`.

    Args:
        texts: rows of `text`, and `text_pair` for pairs.
        num_proc: processes of the map.
    """

    def __init__(
        self, texts: Dataset, tokenizer: PreTrainedTokenizerBase, settings: ViewSettings, num_proc: int | None = None
    ):
        self.texts, self.tokenizer, self.settings, self.num_proc = texts, tokenizer, settings, num_proc
        self.epoch = -1
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Make the views of this epoch, or read them from the cache."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        self.rows = map_rows(
            self.texts,
            tokenize_rows,
            calls=(span_mask,),
            batched=True,
            with_indices=True,
            num_proc=self.num_proc,
            remove_columns=self.texts.column_names,
            features=IDS,
            fn_kwargs={"tokenizer": self.tokenizer, "settings": asdict(self.settings), "epoch": epoch},
            desc=f"Two views of each text, epoch {epoch}",
        )

    def lengths(self, column: str) -> np.ndarray:
        """(N,) tokens of each row's `first_ids` or `second_ids`."""
        return pc.list_value_length(self.rows.data.column(column)).to_numpy()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> list[dict[str, list[int]]]:
        columns = self.rows[indices]
        return [
            {"first_ids": first, "second_ids": second}
            for first, second in zip(columns["first_ids"], columns["second_ids"], strict=True)
        ]


class StreamedTwoViewDataset(EndlessStream):
    """The same over a stream: nothing is stored.

    Args:
        batch_size: texts of all processes in one step.
    """

    def __init__(
        self, texts: IterableDataset, tokenizer: PreTrainedTokenizerBase, settings: ViewSettings, batch_size: int
    ):
        super().__init__(texts.map(_number, batched=True, with_indices=True), settings.seed, batch_size)
        self.tokenizer, self.settings = tokenizer, settings

    def make_rows(self, batch: dict[str, list], epoch: int, place: int, number: int) -> Iterator[dict[str, list[int]]]:
        rows = batch.pop("row")
        views = tokenize_rows(batch, rows, self.tokenizer, asdict(self.settings), epoch)
        for first, second in zip(views["first_ids"], views["second_ids"], strict=True):
            yield {"first_ids": first, "second_ids": second}


def _number(batch: dict[str, list[str]], rows: list[int]) -> dict[str, list[int]]:
    return {"row": rows}


def two_view_dataset(
    texts: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    settings: ViewSettings,
    batch_size: int,
    num_proc: int | None = None,
) -> TwoViewDataset | StreamedTwoViewDataset:
    """The views of a dataset, or of a stream.

    Args:
        batch_size: texts of all processes in one step, of which a stream gives a whole number.
    """
    if isinstance(texts, IterableDataset):
        return StreamedTwoViewDataset(texts, tokenizer, settings, batch_size)
    return TwoViewDataset(texts, tokenizer, settings, num_proc)

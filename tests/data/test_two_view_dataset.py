"""Token ids of both views: our mask is a mask, the user's text is text, and processes change nothing."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import replace

import datasets
import pytest
from datasets import Dataset

from mirror.common.errors import InputError
from mirror.data.augmentation import span_mask
from mirror.data.corpus import load_corpus
from mirror.data.two_view_dataset import (
    StreamedTwoViewDataset,
    TwoViewDataset,
    ViewSettings,
    ViewTokenizer,
    special_tokens_around,
    two_view_dataset,
)
from tests.two_at_once import run_two_processes


SETTINGS = ViewSettings(span_mask_length=5, span_mask_min_chars=20, mask_token=None, max_seq_length=16, seed=3)


def rows_of(dataset) -> list[dict]:
    return [dataset[index] for index in range(len(dataset))]


def test_the_mask_stands_between_segments(tokenizer):
    cls, sep, mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
    cat, dog = tokenizer.convert_tokens_to_ids(["cat", "dog"])
    to_ids = ViewTokenizer(tokenizer, 16)
    assert to_ids([["cat", "dog"]]) == [[cls, cat, mask, dog, sep]]
    assert to_ids([["cat dog"], ["", "dog"], ["cat", ""]]) == [
        [cls, cat, dog, sep],
        [cls, mask, dog, sep],
        [cls, cat, mask, sep],
    ]


def test_special_tokens_in_user_text_are_text(tokenizer):
    ids = ViewTokenizer(tokenizer, 16)([["cat [MASK] [SEP] dog"]])[0]
    assert tokenizer.mask_token_id not in ids
    assert ids.count(tokenizer.sep_token_id) == 1


def test_long_views_are_cut_to_the_limit_and_keep_their_frame(tokenizer):
    ids = ViewTokenizer(tokenizer, 6)([["cat " * 20], ["cat " * 20, "dog"]])
    assert [len(row) for row in ids] == [6, 6]
    assert all(row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id for row in ids)


def test_first_views_are_whole_and_second_views_hold_one_mask(tokenizer, sentences):
    dataset = TwoViewDataset(Dataset.from_dict({"text": sentences}), tokenizer, SETTINGS)
    for text, row in zip(sentences, rows_of(dataset), strict=True):
        assert row["first_ids"] == tokenizer(text, truncation=True, max_length=16)["input_ids"]
        if len(row["second_ids"]) < 16:  # otherwise the mask may lie behind the cut
            assert row["second_ids"].count(tokenizer.mask_token_id) == (len(text) >= 20)


def test_masks_are_fresh_each_epoch_and_the_same_again(tokenizer, sentences):
    dataset = TwoViewDataset(Dataset.from_dict({"text": sentences}), tokenizer, SETTINGS)
    epoch_0 = rows_of(dataset)
    dataset.set_epoch(1)
    epoch_1 = rows_of(dataset)
    dataset.set_epoch(0)
    assert epoch_0 != epoch_1
    assert rows_of(dataset) == epoch_0
    assert [row["first_ids"] for row in epoch_0] == [row["first_ids"] for row in epoch_1]


def test_processes_change_nothing(tokenizer, sentences):
    texts = Dataset.from_dict({"text": sentences})
    alone = TwoViewDataset(texts, tokenizer, SETTINGS)
    together = TwoViewDataset(texts, tokenizer, SETTINGS, num_proc=2)
    assert rows_of(alone) == rows_of(together)


def test_another_seed_masks_elsewhere(tokenizer, sentences):
    texts = Dataset.from_dict({"text": sentences})
    other = ViewSettings(**{**vars(SETTINGS), "seed": 4})
    assert rows_of(TwoViewDataset(texts, tokenizer, SETTINGS)) != rows_of(TwoViewDataset(texts, tokenizer, other))


def test_a_stream_gives_the_same_rows(tokenizer, sentences):
    texts = Dataset.from_dict({"text": sentences})
    held = rows_of(TwoViewDataset(texts, tokenizer, SETTINGS))
    stream = StreamedTwoViewDataset(texts.to_iterable_dataset(), tokenizer, SETTINGS, batch_size=20)
    streamed = list(itertools.islice(stream, len(sentences)))
    assert streamed != held  # shuffled
    assert sorted(map(str, streamed)) == sorted(map(str, held))


def test_rows_are_fetched_together_as_one_by_one(tokenizer, sentences):
    dataset = two_view_dataset(Dataset.from_dict({"text": sentences[:9]}), tokenizer, SETTINGS, batch_size=3)
    assert (
        dataset.__getitems__([7, 0]) == [dataset[7], dataset[0]]
        and dataset[7]["first_ids"] != dataset[7]["second_ids"]
    )


def test_special_tokens_may_be_more_on_one_side():
    def tokenize(text: str, return_special_tokens_mask: bool) -> dict[str, list[int]]:
        assert text == "a" and return_special_tokens_mask
        return {"input_ids": [1, 2, 5, 6, 9], "special_tokens_mask": [1, 1, 0, 0, 1]}

    assert special_tokens_around(tokenize) == ([1, 2], [9])


def test_pairs_keep_their_sides(tokenizer):
    texts = Dataset.from_dict({"text": ["cat", "dog"], "text_pair": ["small cat", "large dog"]})
    dataset = TwoViewDataset(texts, tokenizer, SETTINGS)
    assert tokenizer.decode(dataset[1]["first_ids"]) == "[CLS] dog [SEP]"
    assert tokenizer.decode(dataset[1]["second_ids"]) == "[CLS] large dog [SEP]"


def test_a_literal_mask_is_text(tokenizer):
    settings = ViewSettings(**{**vars(SETTINGS), "mask_token": "cat"})
    dataset = TwoViewDataset(Dataset.from_dict({"text": ["dog dog dog dog dog dog dog"]}), tokenizer, settings)
    ids = dataset[0]["second_ids"]
    assert tokenizer.mask_token_id not in ids and tokenizer.convert_tokens_to_ids("cat") in ids


def test_masking_needs_a_mask_token(tokenizer):
    from transformers import BertTokenizerFast

    from mirror.training.config import MirrorConfig

    bare = BertTokenizerFast(vocab=tokenizer.get_vocab())
    bare.mask_token = None
    with pytest.raises(InputError, match="no mask token; use --span_mask_length 0"):
        MirrorConfig().view_settings(bare)
    assert MirrorConfig(span_mask_length=0).view_settings(bare).mask_token is None


# ---- The cache -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cached_texts(sentences, tmp_path, monkeypatch) -> Dataset:
    """Texts of a file, memory-mapped from a cache of their own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "texts.txt").write_text("\n".join([*sentences, sentences[0], ""]))
    return load_corpus(str(tmp_path / "texts.txt")).rows


@pytest.fixture
def maps(monkeypatch) -> list[int]:
    """One entry for every batch that is tokenized, and not read from the cache."""
    done = []
    tokenize = ViewTokenizer.__call__
    monkeypatch.setattr(ViewTokenizer, "__call__", lambda self, views: done.append(1) or tokenize(self, views))
    return done


def test_a_second_run_reads_the_cache(cached_texts, tokenizer, tmp_path, maps):
    first = rows_of(TwoViewDataset(cached_texts, tokenizer, SETTINGS))
    assert maps
    tokenizer(["cat"], truncation=True, max_length=5)  # leaves its truncation in the tokenizer, as encoding does
    again = load_corpus(str(tmp_path / "texts.txt")).rows
    maps.clear()
    second = TwoViewDataset(again, tokenizer, SETTINGS)
    assert not maps and rows_of(second) == first
    assert second.rows.cache_files  # memory-mapped, not held


def test_another_seed_or_epoch_does_not_read_the_cache_of_the_first(cached_texts, tokenizer, maps):
    dataset = TwoViewDataset(cached_texts, tokenizer, SETTINGS)
    for change in (
        lambda: dataset.set_epoch(1),
        lambda: TwoViewDataset(cached_texts, tokenizer, replace(SETTINGS, seed=4)),
        lambda: TwoViewDataset(cached_texts, tokenizer, replace(SETTINGS, max_seq_length=12)),
    ):
        maps.clear()
        change()
        assert maps
    maps.clear()
    dataset.set_epoch(0)
    assert not maps


def test_other_code_does_not_read_the_cache(cached_texts, tokenizer, maps, monkeypatch):
    TwoViewDataset(cached_texts, tokenizer, SETTINGS)
    source = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda module: source(module) + "# changed")
    maps.clear()
    TwoViewDataset(cached_texts, tokenizer, SETTINGS)
    assert maps


def test_other_noise_does_not_read_the_cache(cached_texts, tokenizer, maps, monkeypatch):
    TwoViewDataset(cached_texts, tokenizer, SETTINGS)
    source, noise = inspect.getsource, inspect.getmodule(span_mask)
    monkeypatch.setattr(inspect, "getsource", lambda module: source(module) + "# changed" * (module is noise))
    maps.clear()
    TwoViewDataset(cached_texts, tokenizer, SETTINGS)
    assert maps


@pytest.mark.slow
def test_the_second_process_reads_what_the_first_one_wrote(bert_folder, sentences, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    run_two_processes("-m", "tests.data.cached_in_two_processes", bert_folder, str(tmp_path))
    first, second = (int((tmp_path / f"batches-{rank}").read_text()) for rank in (0, 1))
    assert first >= 4 and second == 0  # two views in each of two epochs

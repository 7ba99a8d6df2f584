"""Token ids of both views: our mask is a mask, the user's text is text, and the number of processes changes nothing."""

from __future__ import annotations

import inspect
import itertools
import sys
from dataclasses import replace
from functools import partial

import datasets
import numpy as np
import pytest
from datasets import Dataset
from torch.utils.data import DataLoader

from mirror.common.errors import InputError
from mirror.data.augmentation import span_mask, view_rng
from mirror.data.corpus import load_corpus
from mirror.data.views import StreamedTwoViewDataset, TwoViewDataset, ViewSettings, ViewTokenizer, tokenize_rows
from tests.processes import run_two_processes


SETTINGS = ViewSettings(span_mask_length=5, span_mask_min_chars=20, mask_token=None, max_seq_length=16, seed=3)


def rows_of(dataset) -> list[dict]:
    return [dataset[index] for index in range(len(dataset))]


def test_the_mask_stands_between_segments(tokenizer):
    cls, sep, mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
    cat, dog = tokenizer.convert_tokens_to_ids(["cat", "dog"])
    to_ids = ViewTokenizer(tokenizer, 16)
    assert to_ids([["cat", "dog"]]) == [[cls, cat, mask, dog, sep]]
    rows = to_ids([["cat dog"], ["", "dog"], ["cat", ""]])
    assert rows == [[cls, cat, dog, sep], [cls, mask, dog, sep], [cls, cat, mask, sep]]


def test_special_tokens_in_user_text_are_text(tokenizer):
    ids = ViewTokenizer(tokenizer, 16)([["cat [MASK] [SEP] dog"]])[0]
    assert tokenizer.mask_token_id not in ids
    assert ids.count(tokenizer.sep_token_id) == 1


def test_long_views_are_cut_to_the_limit_and_keep_their_frame(tokenizer):
    ids = ViewTokenizer(tokenizer, 6)([["cat " * 20], ["cat " * 20, "dog"]])
    assert [len(row) for row in ids] == [6, 6]
    assert all(row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id for row in ids)


def test_processes_and_streams_give_the_same_rows(tokenizer, sentences):
    texts = Dataset.from_dict({"text": sentences})
    held = rows_of(TwoViewDataset(texts, tokenizer, SETTINGS))
    assert rows_of(TwoViewDataset(texts, tokenizer, SETTINGS, num_proc=2)) == held
    assert rows_of(TwoViewDataset(texts, tokenizer, replace(SETTINGS, seed=4))) != held
    stream = StreamedTwoViewDataset(texts.to_iterable_dataset(), tokenizer, SETTINGS, batch_size=20)
    streamed = list(itertools.islice(stream, len(sentences)))
    assert streamed != held  # shuffled
    assert sorted(map(str, streamed)) == sorted(map(str, held))


@pytest.mark.parametrize("has_pairs", [False, True])
def test_views_made_when_they_are_read_are_the_same(tokenizer, sentences, has_pairs):
    texts = Dataset.from_dict({"text": sentences} | ({"text_pair": sentences[::-1]} if has_pairs else {}))
    held, read = TwoViewDataset(texts, tokenizer, SETTINGS), TwoViewDataset(texts, tokenizer, SETTINGS, None, True)
    first = rows_of(held)
    assert rows_of(read) == first
    held.set_epoch(1), read.set_epoch(1)
    indices = [40, 3, 77]
    assert read.__getitems__(indices) == held.__getitems__(indices) != [first[index] for index in indices]


def test_pairs_keep_their_sides(tokenizer):
    texts = Dataset.from_dict({"text": ["cat", "dog"], "text_pair": ["small cat", "large dog"]})
    dataset = TwoViewDataset(texts, tokenizer, SETTINGS)
    assert tokenizer.decode(dataset[1]["first_ids"]) == "[CLS] dog [SEP]"
    assert tokenizer.decode(dataset[1]["second_ids"]) == "[CLS] large dog [SEP]"


def test_a_literal_mask_is_text(tokenizer):
    texts = Dataset.from_dict({"text": ["dog dog dog dog dog dog dog"]})
    dataset = TwoViewDataset(texts, tokenizer, replace(SETTINGS, mask_token="cat"))
    ids = dataset[0]["second_ids"]
    assert tokenizer.mask_token_id not in ids and tokenizer.convert_tokens_to_ids("cat") in ids


# ---- The cache -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cached_texts(sentences, tmp_path, monkeypatch) -> Dataset:
    """Return texts of a file, memory-mapped from their own cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "texts.txt").write_text("\n".join([*sentences, sentences[0], ""]))
    return load_corpus(str(tmp_path / "texts.txt")).rows


@pytest.fixture
def maps(monkeypatch) -> list[int]:
    """Count the batches that are tokenized instead of read from the cache."""
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


@pytest.mark.parametrize("of", [tokenize_rows, span_mask])
def test_other_code_does_not_read_the_cache(cached_texts, tokenizer, maps, monkeypatch, of):
    TwoViewDataset(cached_texts, tokenizer, SETTINGS)
    source, changed = inspect.getsource, inspect.getmodule(of)
    monkeypatch.setattr(inspect, "getsource", lambda module: source(module) + "# changed" * (module is changed))
    maps.clear()
    TwoViewDataset(cached_texts, tokenizer, SETTINGS)
    assert maps


# ---- Noise of a user ------------------------------------------------------------------------------------------------------


def swap(text: str, rng: np.random.Generator) -> str:
    return " ".join(rng.permutation(text.split()))


class Repeat:
    def __init__(self, times: int):
        self.times = times

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        return " ".join([text] * (1 + int(rng.integers(self.times))))


def with_noise(noise, **changes) -> ViewSettings:
    return replace(SETTINGS, augmentation=noise, **changes)


def test_a_function_gets_the_generator_of_its_row_and_returns_plain_text(tokenizer, sentences):
    texts, settings = Dataset.from_dict({"text": sentences}), with_noise(swap, prompt="the ")
    dataset, to_ids = TwoViewDataset(texts, tokenizer, settings), ViewTokenizer(tokenizer, 16)
    dataset.set_epoch(1)
    for number, text in enumerate(sentences[:50]):
        second = swap(text, view_rng(3, 1, number))
        expected = dict(zip(("first_ids", "second_ids"), to_ids([["the " + text], ["the " + second]]), strict=True))
        assert dataset[number] == expected
    (row,) = rows_of(TwoViewDataset(texts.select([0]), tokenizer, with_noise(lambda text, rng: "[MASK] cat [SEP]")))
    assert row["second_ids"] == to_ids([["[MASK] cat [SEP]"]])[0] and tokenizer.mask_token_id not in row["second_ids"]


@pytest.mark.parametrize(
    "noise",
    [
        lambda text, rng: text[: rng.integers(1, len(text))],
        *(pytest.param(noise, marks=pytest.mark.slow) for noise in (swap, Repeat(3), partial(swap))),
    ],
)
def test_a_function_gives_the_same_rows_in_processes_streams_and_later(cached_texts, tokenizer, noise):
    settings = with_noise(noise)
    dataset = TwoViewDataset(cached_texts, tokenizer, settings)
    held = rows_of(dataset)
    dataset.set_epoch(1)
    assert rows_of(dataset) != held
    dataset.set_epoch(0)
    texts = Dataset.from_dict({"text": cached_texts["text"][:]})  # in memory: nothing is read from the cache
    assert rows_of(dataset) == held == rows_of(TwoViewDataset(texts, tokenizer, settings, num_proc=2))
    stream = StreamedTwoViewDataset(texts.to_iterable_dataset(), tokenizer, settings, batch_size=20)
    workers = DataLoader(stream, batch_size=None, num_workers=2)
    streamed = list(itertools.islice(workers, len(texts) // 20 * 20))
    assert {str(row) for row in streamed} <= {str(row) for row in held}


def noise_that_adds(word: str):
    return lambda text, rng: f"{text} {word}"


def test_the_cache_knows_what_a_function_does(cached_texts, tokenizer, maps, monkeypatch):
    def is_made(noise) -> bool:
        maps.clear()
        TwoViewDataset(cached_texts, tokenizer, with_noise(noise))
        return bool(maps)

    for first, other in [
        (swap, Repeat(2)),
        (noise_that_adds("cat"), noise_that_adds("dog")),  # the same code, another value closed over
        (Repeat(3), Repeat(4)),
        (partial(lambda text, rng, word: word, word="a"), partial(lambda text, rng, word: word, word="b")),
    ]:
        assert is_made(first) and not is_made(first) and is_made(other) and not is_made(other)
    assert not is_made(noise_that_adds("cat"))
    source, here = inspect.getsource, sys.modules[__name__]
    monkeypatch.setattr(inspect, "getsource", lambda module: source(module) + "# changed" * (module is here))
    assert is_made(swap)  # whose name is the same


def test_a_function_that_cannot_be_hashed_is_not_cached_and_the_log_says_so(
    cached_texts, tokenizer, maps, tmp_path, caplog
):
    used = (number for number in range(3))  # no generator can be pickled

    def counting(text: str, rng: np.random.Generator) -> str:
        next(used, None)
        return swap(text, rng)

    files = {*tmp_path.rglob("*.arrow")}
    for _ in range(2):
        maps.clear()
        caplog.clear()
        dataset = TwoViewDataset(cached_texts, tokenizer, with_noise(counting), num_proc=2)
        assert maps and "The rows made by counting are not cached: it cannot be hashed (" in caplog.text
    assert rows_of(dataset) == rows_of(TwoViewDataset(cached_texts, tokenizer, with_noise(swap)))
    assert len({*tmp_path.rglob("*.arrow")} - files) == 1  # that of `swap`


@pytest.mark.parametrize("num_proc", [None, 2])
def test_a_function_that_returns_no_text_is_named(tokenizer, sentences, num_proc):
    texts = Dataset.from_dict({"text": sentences[:4]})
    with pytest.raises(InputError, match="augmentation split returned list for a text; return a str"):

        def split(text, rng):
            return text.split()

        TwoViewDataset(texts, tokenizer, with_noise(split), num_proc=num_proc)


@pytest.mark.slow
def test_the_second_process_reads_what_the_first_one_wrote(bert_folder, sentences, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    run_two_processes("-m", "tests.data.cached_in_two_processes", bert_folder, str(tmp_path))
    first, second = (int((tmp_path / f"batches-{rank}").read_text()) for rank in (0, 1))
    assert first >= 4 and second == 0  # two views in each of two epochs


def test_rows_without_noise_are_tokenized_once(tokenizer, sentences, monkeypatch):
    dataset = TwoViewDataset(Dataset.from_dict({"text": sentences}), tokenizer, replace(SETTINGS, augmentation="none"))
    first = rows_of(dataset)
    monkeypatch.setattr("mirror.data.views.map_rows", None)  # not to be called
    dataset.set_epoch(1)
    assert rows_of(dataset) == first
    with pytest.raises(TypeError):
        TwoViewDataset(Dataset.from_dict({"text": sentences}), tokenizer, SETTINGS)

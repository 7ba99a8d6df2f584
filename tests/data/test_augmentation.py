"""Noise on texts and tokens: of the stated rate, reproducible, and never everything."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from datasets import Dataset
from transformers import BertTokenizerFast

from mirror.common.errors import InputError
from mirror.data.augmentation import AUGMENTATIONS, DEFAULT_RATES, mask_tokens, span_mask, view_rng, words
from mirror.data.views import TwoViewDataset, ViewSettings
from mirror.training.config import MirrorConfig


def test_the_two_segments_are_the_text_without_the_span():
    text = "abcdefghij"
    for row in range(50):
        before, after = span_mask(text, 3, min_chars=5, rng=view_rng(1, 0, row))
        assert text.startswith(before) and text.endswith(after)
        assert len(before) + len(after) == len(text) - 3


def test_every_position_is_equally_likely():
    # "aaaa..." is where the original went wrong: it removed the first occurrence of the span's text.
    starts = Counter(len(span_mask("a" * 10, 4, 0, view_rng(0, 0, row))[0]) for row in range(7000))
    assert sorted(starts) == list(range(7))  # 0 .. 10 - 4
    assert all(abs(count - 1000) < 150 for count in starts.values())  # 5 standard deviations


@pytest.mark.parametrize(
    ("text", "length", "min_chars"),
    [("short", 5, 0), ("shorter than thirty characters", 5, 31), ("anything at all", 0, 0), ("", 2, 0)],
)
def test_texts_that_stay_whole(text, length, min_chars):
    assert span_mask(text, length, min_chars, view_rng(0, 0, 0)) == [text]


TEXT = " ".join(f"w{number}" for number in range(40))
ON_WORDS = ("whole_word", "reorder", "delete", "crop")


def collect_settings(tokenizer, seed: int = 3, **flags) -> ViewSettings:
    return MirrorConfig(**{"span_mask_min_chars": 10, "max_seq_length": 40, "seed": seed} | flags).view_settings(
        tokenizer
    )


def rows_of(tokenizer, texts: list[str], epoch: int = 0, **flags) -> list[tuple[list[int], list[int]]]:
    dataset = TwoViewDataset(Dataset.from_dict({"text": texts}), tokenizer, collect_settings(tokenizer, **flags))
    dataset.set_epoch(epoch)
    return [(row["first_ids"], row["second_ids"]) for row in dataset]


def touched(view: list[str], augmentation: str) -> int:
    """Return how many of the words of TEXT the noise changed."""
    if augmentation == "whole_word":
        return len(view) - 1
    left = view[0].split()
    if augmentation == "reorder":
        return sum(word != other for word, other in zip(left, TEXT.split(), strict=True))
    return 40 - len(left)


@pytest.mark.parametrize("augmentation", ON_WORDS)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.6])
def test_the_stated_share_of_words_is_touched(augmentation, rate):
    views = [AUGMENTATIONS[augmentation](TEXT, rate, view_rng(5, 0, row)) for row in range(500)]
    share = sum(touched(view, augmentation) for view in views) / (40 * 500)
    assert share == pytest.approx(rate, abs=0.015)  # 4 standard deviations at 20,000 words


def test_the_stated_share_of_tokens_is_masked_and_the_rest_stays():
    ids = list(range(100, 140))
    rows = [mask_tokens(ids, 4, 0.15, view_rng(5, 0, row)) for row in range(500)]
    assert sum(row.count(4) for row in rows) / (40 * 500) == pytest.approx(0.15, abs=0.01)
    assert all(new in (4, old) for row in rows for new, old in zip(row, ids, strict=True))
    share_at_each_place = np.mean([[token == 4 for token in row] for row in rows], axis=0)
    assert share_at_each_place.min() > 0.08 and share_at_each_place.max() < 0.22  # none is favored


def test_words_are_said_twice_as_often_as_in_esimcse():
    """Of 40 words 0 to max(2, rate 40), each number equally likely; each copy stands right after its word."""
    counts: Counter[int] = Counter()
    for row in range(3000):
        (view,) = AUGMENTATIONS["repeat"](TEXT, 0.2, view_rng(5, 0, row))
        left = view.split()
        assert [word for word, _ in groupby(left)] == TEXT.split()
        counts[len(left) - 40] += 1
    assert set(counts) == set(range(9)) and all(abs(count - 333) < 90 for count in counts.values())  # 5 deviations
    short = {AUGMENTATIONS["repeat"]("a b", 0.2, view_rng(5, 0, row))[0] for row in range(200)}
    assert short == {"a b", "a a b", "a b b", "a a b b"}
    assert AUGMENTATIONS["repeat"]("", 0.2, view_rng(5, 0, 0)) == [""]


def test_a_character_of_a_script_without_spaces_is_repeated_without_one():
    views = {AUGMENTATIONS["repeat"]("東京 bay", 0.3, view_rng(5, 0, row))[0] for row in range(200)}
    assert {"東東京 bay", "東京京 bay", "東京 bay bay"} <= views


def queries(text: str, rows: int) -> Counter[str]:
    return Counter(AUGMENTATIONS["query"](text, 0.0, view_rng(5, 0, row))[0] for row in range(rows))


def test_a_query_has_two_to_five_words_in_their_order():
    counts: Counter[int] = Counter()
    for view, times in queries(TEXT, 4000).items():
        places = [TEXT.split().index(word) for word in view.split()]
        assert places == sorted(set(places))
        counts[len(places)] += times
    assert set(counts) == {2, 3, 4, 5} and all(abs(count - 1000) < 140 for count in counts.values())  # 5 deviations
    assert set(queries("東京 bay", 200)) >= {"東 bay", "京 bay", "東京", "東京 bay"}
    assert queries("cat", 50) == {"cat": 50} and queries("", 3) == {"": 3}


def test_a_word_of_twice_the_letters_is_drawn_for_a_query_twice_as_often():
    """Two words of "a b cc": "cc" is the first drawn in 1/2, the second in 1/2 * 2/3, so it stays in 5/6."""
    views = queries("a b cc", 16000)
    two = {view: count for view, count in views.items() if len(view.split()) == 2}
    # They are a fourth: the others have all three words.
    assert set(two) == {"a b", "a cc", "b cc"} and sum(two.values()) == pytest.approx(4000, abs=275)  # 5 deviations
    assert two["a b"] / sum(two.values()) == pytest.approx(1 / 6, abs=0.03)
    assert two["a cc"] == pytest.approx(two["b cc"], rel=0.15)


def test_crops_start_anywhere():
    starts = Counter(AUGMENTATIONS["crop"]("a b c d e f", 0.5, view_rng(0, 0, row))[0] for row in range(4000))
    assert set(starts) == {"a b c", "b c d", "c d e", "d e f"}
    assert all(abs(count - 1000) < 140 for count in starts.values())  # 5 standard deviations


@pytest.mark.parametrize("text", ["cat", "  cat ", "東", "cat dog", "a", "!", "กำ"])
@pytest.mark.parametrize("augmentation", [*ON_WORDS, "query"])
def test_no_view_is_empty(text, augmentation):
    for row in range(200):
        view = AUGMENTATIONS[augmentation](text, 0.99, view_rng(0, 0, row))
        assert any(segment.strip() for segment in view)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't stop, now", ["don't", "stop,", "now"]),
        ("我爱。 NLP。", ["我", "爱", "。", "NLP。"]),
        ("カタカナとtest", ["カ", "タ", "カ", "ナ", "と", "test"]),
        ("한국어 문장", ["한국어", "문장"]),  # Korean has blanks
        ("ที่นี่", ["ที่", "นี่"]),  # a consonant keeps its vowel and tone marks
        ("\ta  b\n", ["a", "b"]),
    ],
)
def test_what_a_word_is(text, expected):
    assert [text[start:end] for start, end in words(text)] == expected


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_a_view_depends_on_seed_epoch_and_row_only(tokenizer, sentences, augmentation):
    flags = {"augmentation": augmentation}
    if augmentation in DEFAULT_RATES:
        flags["augmentation_rate"] = 0.4
    texts = [*sentences[:30], *sentences[:30]]
    rows = rows_of(tokenizer, texts, **flags)
    assert rows_of(tokenizer, texts, **flags) == rows
    other_seed, other_epoch = rows_of(tokenizer, texts, seed=4, **flags), rows_of(tokenizer, texts, epoch=1, **flags)
    if augmentation == "none":
        assert other_seed == other_epoch == rows and all(first == second for first, second in rows)
    else:
        assert other_seed != rows and other_epoch != rows and rows[:30] != rows[30:]
    assert all(len(first) > 2 and len(second) > 2 for first, second in rows)


@pytest.mark.parametrize("augmentation", ["span", "token", "delete"])
def test_the_first_view_is_the_text_itself(tokenizer, sentences, augmentation):
    rows = rows_of(tokenizer, sentences, augmentation=augmentation)
    plain = [tokenizer(text)["input_ids"] for text in sentences]
    assert [first for first, _ in rows] == [ids[:39] + ids[-1:] if len(ids) > 40 else ids for ids in plain]
    assert any(first != second for first, second in rows)


def test_the_default_is_the_span_with_its_old_random_stream(tokenizer, sentences):
    default = ViewSettings(span_mask_length=5, span_mask_min_chars=20, mask_token=None, max_seq_length=16, seed=3)
    assert default.augmentation == "span"
    dataset = TwoViewDataset(Dataset.from_dict({"text": sentences}), tokenizer, default)
    for row, text in enumerate(sentences[:50]):
        segments = span_mask(text, 5, 20, np.random.default_rng([3, 0, row]))
        ids = tokenizer(" [MASK] ".join(segments), truncation=True, max_length=16)["input_ids"]
        assert dataset[row]["second_ids"] == ids


def test_masked_tokens_are_the_text_s_own(tokenizer, sentences):
    for text, (first, second) in zip(
        sentences, rows_of(tokenizer, sentences, augmentation="token", augmentation_rate=0.9), strict=True
    ):
        ids = tokenizer(text, truncation=True, max_length=40)["input_ids"]
        assert first == ids and len(second) == len(ids)
        assert (second[0], second[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert second.count(tokenizer.mask_token_id) < len(ids) - 2
        assert all(new in (tokenizer.mask_token_id, old) for new, old in zip(second, ids, strict=True))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"augmentation": "tokens"}, "did you mean 'token'"),
        ({"augmentation_rate": 0.2}, "--augmentation span has no rate"),
        ({"augmentation": "none", "augmentation_rate": 0.2}, "--augmentation none has no rate"),
        (
            {"augmentation": "crop", "augmentation_rate": 1.0},
            r"--augmentation_rate must be a share or probability in \[0, 1\)",
        ),
        ({"augmentation": "token", "mask_token": "[MASK]"}, "leave --mask_token out"),
    ],
)
def test_flags_that_do_not_fit(flags, message):
    with pytest.raises(InputError, match=message):
        MirrorConfig(**flags)


def test_masks_need_a_mask_token(tokenizer):
    bare = BertTokenizerFast(vocab=tokenizer.get_vocab())
    bare.mask_token = None
    with pytest.raises(InputError, match="no mask token; use --span_mask_length 0"):
        collect_settings(bare)
    for augmentation in ("token", "whole_word"):
        with pytest.raises(InputError, match="no mask token; use --augmentation delete"):
            collect_settings(bare, augmentation=augmentation)
    for augmentation in ("reorder", "delete", "crop", "none"):
        assert collect_settings(bare, augmentation=augmentation).augmentation == augmentation

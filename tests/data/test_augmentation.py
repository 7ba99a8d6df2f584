"""Noise on words and tokens: of the stated rate, the same again, and never all there is."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from datasets import Dataset
from transformers import BertTokenizerFast

from mirror.common.errors import InputError
from mirror.data.augmentation import AUGMENTATIONS, DEFAULT_RATES, mask_tokens, span_mask, view_rng, word_view, words
from mirror.data.two_view_dataset import TwoViewDataset, ViewSettings
from mirror.training.config import MirrorConfig


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
    """How many of the words of TEXT the noise touched."""
    if augmentation == "whole_word":
        return len(view) - 1
    left = view[0].split()
    if augmentation == "reorder":
        return sum(word != other for word, other in zip(left, TEXT.split(), strict=True))
    return 40 - len(left)


@pytest.mark.parametrize("augmentation", ON_WORDS)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.6])
def test_the_stated_share_of_words_is_touched(augmentation, rate):
    views = [word_view(TEXT, augmentation, rate, view_rng(5, 0, row)) for row in range(500)]
    share = sum(touched(view, augmentation) for view in views) / (40 * 500)
    assert share == pytest.approx(rate, abs=0.015)  # 4 standard deviations at 20,000 words


def test_the_stated_share_of_tokens_is_masked_and_the_rest_stays():
    ids = list(range(100, 140))
    rows = [mask_tokens(ids, 4, 0.15, view_rng(5, 0, row)) for row in range(500)]
    assert sum(row.count(4) for row in rows) / (40 * 500) == pytest.approx(0.15, abs=0.01)
    assert all(new in (4, old) for row in rows for new, old in zip(row, ids, strict=True))
    share_at_each_place = np.mean([[token == 4 for token in row] for row in rows], axis=0)
    assert share_at_each_place.min() > 0.08 and share_at_each_place.max() < 0.22  # none is favoured


def test_what_each_noise_does():
    rng = np.random.default_rng(1)
    words_left = TEXT.split()
    masked = " [MASK] ".join(word_view(TEXT, "whole_word", 0.3, rng)).split()
    assert "[MASK]" in masked
    assert all(new in ("[MASK]", old) for new, old in zip(masked, words_left, strict=True))
    assert Counter(word_view(TEXT, "reorder", 0.5, rng)[0].split()) == Counter(words_left)
    (deleted,) = word_view(TEXT, "delete", 0.3, rng)
    assert deleted == " ".join(word for word in words_left if word in deleted.split())  # in order, one blank between
    (cropped,) = word_view(TEXT, "crop", 0.25, rng)
    assert cropped in TEXT and len(cropped.split()) == 30


def test_words_are_said_twice_as_often_as_in_esimcse():
    """Of 40 words 0 to max(2, rate 40), each number equally likely; each copy stands right after its word."""
    counts: Counter[int] = Counter()
    for row in range(3000):
        (view,) = word_view(TEXT, "repeat", 0.2, view_rng(5, 0, row))
        left = view.split()
        assert [word for word, _ in groupby(left)] == TEXT.split()
        counts[len(left) - 40] += 1
    assert set(counts) == set(range(9)) and all(abs(count - 333) < 90 for count in counts.values())  # 5 deviations
    short = {word_view("a b", "repeat", 0.2, view_rng(5, 0, row))[0] for row in range(200)}
    assert short == {"a b", "a a b", "a b b", "a a b b"}
    assert word_view("", "repeat", 0.2, view_rng(5, 0, 0)) == [""]


def test_a_character_of_a_script_without_spaces_is_repeated_without_one():
    views = {word_view("東京 bay", "repeat", 0.3, view_rng(5, 0, row))[0] for row in range(200)}
    assert {"東東京 bay", "東京京 bay", "東京 bay bay"} <= views


def test_crops_start_anywhere():
    starts = Counter(word_view("a b c d e f", "crop", 0.5, view_rng(0, 0, row))[0] for row in range(4000))
    assert set(starts) == {"a b c", "b c d", "c d e", "d e f"}
    assert all(abs(count - 1000) < 140 for count in starts.values())  # 5 standard deviations


def test_two_masked_words_are_two_masks():
    views = {tuple(word_view("cat dog bird", "whole_word", 0.7, view_rng(0, 0, row))) for row in range(200)}
    assert ("", "", "bird") in views and ("cat", "", "") in views and ("", "dog", "") in views


@pytest.mark.parametrize("text", ["cat", "  cat ", "東", "cat dog", "a", "!", "กำ"])
@pytest.mark.parametrize("augmentation", ON_WORDS)
def test_no_view_is_empty(text, augmentation):
    for row in range(200):
        view = word_view(text, augmentation, 0.99, view_rng(0, 0, row))
        assert any(segment.strip() for segment in view)


def test_no_view_is_all_masks():
    for row in range(200):
        assert mask_tokens([7, 8], 4, 0.99, view_rng(0, 0, row)) != [4, 4]
    assert mask_tokens([7], 4, 0.99, view_rng(0, 0, 0)) == [7]


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


def test_noise_on_a_language_without_blanks():
    text = "今天天气很好我们去公园"
    (shuffled,) = word_view(text, "reorder", 0.5, view_rng(0, 0, 1))
    assert shuffled != text and Counter(shuffled) == Counter(text)
    (shorter,) = word_view(text, "delete", 0.3, view_rng(0, 0, 1))
    assert 0 < len(shorter) < len(text)


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_a_view_depends_on_seed_epoch_and_row_only(tokenizer, sentences, augmentation):
    flags = {"augmentation": augmentation, "augment_both_views": True}
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
def test_noise_in_the_first_view_leaves_the_second_as_it_was(tokenizer, sentences, augmentation):
    one = rows_of(tokenizer, sentences, augmentation=augmentation)
    both = rows_of(tokenizer, sentences, augmentation=augmentation, augment_both_views=True)
    assert [second for _, second in one] == [second for _, second in both]
    assert [first for first, _ in one] != [first for first, _ in both]
    assert sum(first == second for first, second in both) < 100  # the two draw independently
    plain = [tokenizer(text)["input_ids"] for text in sentences]
    assert [first for first, _ in one] == [ids[:39] + ids[-1:] if len(ids) > 40 else ids for ids in plain]


def test_the_default_is_the_span_with_its_old_random_stream(tokenizer, sentences):
    default = ViewSettings(span_mask_length=5, span_mask_min_chars=20, mask_token=None, max_seq_length=16, seed=3)
    assert (default.augmentation, default.both_views) == ("span", False)
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


def test_default_rates_are_filled_in():
    assert DEFAULT_RATES == {
        "token": 0.15,
        "whole_word": 0.15,
        "reorder": 0.1,
        "delete": 0.1,
        "crop": 0.1,
        "repeat": 0.32,
    }
    for augmentation, rate in DEFAULT_RATES.items():
        assert MirrorConfig(augmentation=augmentation).augmentation_rate == rate
    assert MirrorConfig().augmentation_rate is None and MirrorConfig(augmentation="none").augmentation_rate is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"augmentation": "tokens"}, "did you mean 'token'"),
        ({"augmentation_rate": 0.2}, "--augmentation span has no rate"),
        ({"augmentation": "none", "augmentation_rate": 0.2}, "--augmentation none has no rate"),
        ({"augmentation": "crop", "augmentation_rate": 1.0}, r"--augmentation_rate is a probability in \[0, 1\)"),
        ({"augmentation": "token", "mask_token": "[MASK]"}, "leave --mask_token out"),
    ],
)
def test_flags_that_do_not_fit(flags, message):
    with pytest.raises(InputError, match=message):
        MirrorConfig(**flags)


def test_masks_need_a_mask_token(tokenizer):
    bare = BertTokenizerFast(vocab=tokenizer.get_vocab())
    bare.mask_token = None
    for augmentation in ("token", "whole_word"):
        with pytest.raises(InputError, match="no mask token; use --augmentation delete"):
            collect_settings(bare, augmentation=augmentation)
    for augmentation in ("reorder", "delete", "crop", "none"):
        assert collect_settings(bare, augmentation=augmentation).augmentation == augmentation

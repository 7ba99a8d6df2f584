"""Documents to pairs of segments, and pairs to masked rows."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset

from mirror.cmlm.data import segment_dataset
from mirror.cmlm.model import IGNORED
from mirror.cmlm.segments import Masking, MLMExampleBuilder, segment_pairs, split_sentences
from mirror.common.errors import InputError
from mirror.data.augmentation import view_rng
from mirror.data.two_view_dataset import special_tokens_around


def row_maker(tokenizer, rate=0.313, swap=0.5) -> MLMExampleBuilder:
    return MLMExampleBuilder(Masking.of(tokenizer, rate), swap, special_tokens_around(tokenizer))


def test_sentences_of_lines_and_scripts():
    assert split_sentences("Dr. Smith left. He slept.\nA new line\n\n", "en") == [
        "Dr. Smith left.",
        " He slept.",
        "A new line",
    ]
    assert split_sentences("今日は晴れです。明日は雨です。", "ja") == ["今日は晴れです。", "明日は雨です。"]
    assert split_sentences("One here. Two there.", "xx") == ["One here.", " Two there."]


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ([], []),
        ([[1]], []),  # no neighbour
        ([[1], [2]], [([1], [2])]),
        ([[1, 2], [3], [4, 5], [6]], [([1, 2, 3], [4, 5, 6])]),
        ([[1], [2], [3], [4]], [([1, 2], [3, 4])]),  # not [1, 2, 3] and [4]: the last pair is even
        ([[1, 2, 3], [4, 5, 6], [7]], [([1, 2, 3], [4, 5, 6])]),  # 7 has no neighbour left
        ([[1, 2, 3, 4, 5]], [([1, 2, 3], [4, 5])]),  # a sentence longer than a segment
        ([[1, 2], [3, 4], [5, 6], [7, 8]], [([1, 2], [3, 4]), ([5, 6], [7, 8])]),
    ],
)
def test_segments_of_three_tokens(sentences, expected):
    assert segment_pairs(sentences, max_tokens=3) == expected


def test_segments_keep_every_token_in_order_and_never_overflow():
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = rng.integers(1, 15, size=rng.integers(0, 12))
        ids = iter(range(1000))
        sentences = [[next(ids) for _ in range(length)] for length in lengths]
        pairs = segment_pairs(sentences, max_tokens=10)
        kept = [token for pair in pairs for segment in pair for token in segment]
        assert kept == list(range(len(kept)))  # nothing skipped, nothing twice
        assert lengths.sum() - len(kept) <= 10  # at most one last piece is left out
        assert all(0 < len(segment) <= 10 for pair in pairs for segment in pair)


def test_no_pair_crosses_a_document(tokenizer):
    """Each document repeats words of its own, so a pair that crosses holds words of two."""
    words = ["cat", "dog", "bird", "fish", "tree", "house", "river"]
    documents = Dataset.from_dict({"text": ["\n".join([f"{word} {word}"] * 7) for word in words]})
    pairs = segment_dataset(documents, tokenizer, "en", max_tokens=5)
    assert len(pairs) == 14  # 7 lines of two tokens: two lines to a segment, then 3 lines left in two segments
    for pair in pairs:
        assert len(set(pair["first"]) | set(pair["second"])) == 1
    assert {tokenizer.decode(pair["first"][:1]) for pair in pairs} == set(words)


def test_special_tokens_in_text_are_plain_text(tokenizer):
    documents = Dataset.from_dict({"text": ["a cat [MASK] sees\na dog [SEP] runs"]})
    (pair,) = segment_dataset(documents, tokenizer, "en", max_tokens=20)
    assert not set(pair["first"] + pair["second"]) & {tokenizer.mask_token_id, tokenizer.sep_token_id}


def test_processes_change_no_pair(tokenizer, sentences):
    documents = Dataset.from_dict({"text": ["\n".join(sentences[i : i + 6]) for i in range(0, 60, 6)]})
    alone = segment_dataset(documents, tokenizer, "en", max_tokens=12)
    helped = segment_dataset(documents, tokenizer, "en", max_tokens=12, num_proc=2)
    assert list(alone) == list(helped) and len(alone) > 20


def test_the_frame_of_a_text(tokenizer):
    assert special_tokens_around(tokenizer) == ([tokenizer.cls_token_id], [tokenizer.sep_token_id])


def test_masked_share_and_the_80_10_10_rule(tokenizer):
    ids = list(range(5, 105))  # a hundred different ordinary tokens
    make = Masking.of(tokenizer, 0.313)
    chosen = masked = kept = changed = 0
    for row in range(400):
        new, labels = make(ids, view_rng(1, 0, row))
        for old, now, label in zip(ids, new, labels, strict=True):
            if label == IGNORED:
                assert now == old
                continue
            assert label == old
            chosen += 1
            masked += now == tokenizer.mask_token_id
            kept += now == old
            changed += now not in (tokenizer.mask_token_id, old)
            assert now == tokenizer.mask_token_id or now not in tokenizer.all_special_ids
    assert chosen == 400 * 31  # exactly: the paper masks a fixed number, 80 of 256
    assert masked / chosen == pytest.approx(0.8, abs=0.015)
    assert kept / chosen == pytest.approx(0.1, abs=0.015)
    assert changed / chosen == pytest.approx(0.1, abs=0.015)


def test_a_full_segment_of_the_paper_has_eighty_masked_tokens(tokenizer):
    _, labels = Masking.of(tokenizer, 0.313)([7] * 254, view_rng(0, 0, 0))
    assert sum(label != IGNORED for label in labels) == 80


def test_the_order_is_swapped_half_of_the_time(tokenizer):
    first, second = [10, 11], [20, 21, 22]
    make = row_maker(tokenizer)
    swapped = sum(make(first, second, view_rng(3, 0, row))["first_ids"][1:-1] == second for row in range(2000))
    assert swapped / 2000 == pytest.approx(0.5, abs=0.04)
    never, always = row_maker(tokenizer, swap=0.0), row_maker(tokenizer, swap=1.0)
    assert never(first, second, view_rng(3, 0, 0))["first_ids"][1:-1] == first
    assert always(first, second, view_rng(3, 0, 0))["first_ids"][1:-1] == second


def test_a_row_is_a_function_of_seed_epoch_and_row(tokenizer):
    make, first, second = row_maker(tokenizer), list(range(10, 40)), list(range(50, 90))
    assert make(first, second, view_rng(1, 2, 3)) == make(first, second, view_rng(1, 2, 3))
    others = [make(first, second, view_rng(*key)) for key in ((2, 2, 3), (1, 3, 3), (1, 2, 4))]
    assert all(other != make(first, second, view_rng(1, 2, 3)) for other in others)


def test_special_tokens_are_never_masked_and_s1_is_whole(tokenizer):
    row = row_maker(tokenizer, rate=1.0, swap=0.0)([10, 11], [20, 21, 22], view_rng(0, 0, 0))
    assert row["labels"] == [IGNORED, 20, 21, 22, IGNORED]
    assert row["first_ids"] == [tokenizer.cls_token_id, 10, 11, tokenizer.sep_token_id]
    assert (row["second_ids"][0], row["second_ids"][-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


def test_a_tokenizer_without_mask_token_is_refused(tokenizer):
    bare = type(tokenizer)(vocab=tokenizer.get_vocab(), mask_token=None)
    bare.mask_token = None
    with pytest.raises(InputError, match="has no mask token; give a masked LM"):
        Masking.of(bare, 0.3)

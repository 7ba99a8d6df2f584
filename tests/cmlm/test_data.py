"""Tests of masking, the order of an epoch, rows and batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from datasets import Dataset

from mirror.cmlm.data import (
    BitextStream,
    EpochShuffledDataset,
    Masking,
    PairTokenizer,
    SegmentRowBuilder,
    StageCollator,
    StageDataset,
    StreamedStageDataset,
    epoch_order,
)
from mirror.cmlm.model import IGNORED
from mirror.cmlm.reading import segment_documents
from mirror.cmlm.trainer import CMLMConfig, stage_dataset
from mirror.common.errors import InputError
from mirror.data.augmentation import view_rng
from mirror.data.views import special_tokens_around


def row_builder(tokenizer, rate=0.313, swap=0.5) -> SegmentRowBuilder:
    return SegmentRowBuilder(Masking.of(tokenizer, rate), swap, special_tokens_around(tokenizer))


def test_masked_share_and_the_80_10_10_rule(tokenizer):
    ids = np.arange(5, 105)  # a hundred different ordinary tokens
    rows = [Masking.of(tokenizer, 0.313)(ids.tolist(), view_rng(1, 0, row)) for row in range(400)]
    new, labels = (np.array(side) for side in zip(*rows, strict=True))
    chosen = labels != IGNORED
    assert (chosen.sum(1) == 31).all()  # a fixed number in every row
    assert (np.where(chosen, labels, new) == ids).all()  # labels are the originals, and the rest is unchanged
    new, old = new[chosen], labels[chosen]
    is_mask = new == tokenizer.mask_token_id
    assert is_mask.mean() == pytest.approx(0.8, abs=0.015)
    assert (new == old).mean() == pytest.approx(0.1, abs=0.015)
    assert not set(new[~is_mask].tolist()) & set(tokenizer.all_special_ids)


def test_a_full_segment_of_the_paper_has_eighty_masked_tokens(tokenizer):
    _, labels = Masking.of(tokenizer, 0.313)([7] * 254, view_rng(0, 0, 0))
    assert sum(label != IGNORED for label in labels) == 80


def test_the_order_is_swapped_half_of_the_time(tokenizer):
    first, second = [10, 11], [20, 21, 22]

    def swapped(swap: float) -> float:
        make = row_builder(tokenizer, swap=swap)
        return np.mean([make(first, second, view_rng(3, 0, row))["first_ids"][1:-1] == second for row in range(2000)])

    assert (swapped(0.0), swapped(0.5), swapped(1.0)) == (0, pytest.approx(0.5, abs=0.04), 1)


def test_special_tokens_are_never_masked_and_s1_is_whole(tokenizer):
    row = row_builder(tokenizer, rate=1.0, swap=0.0)([10, 11], [20, 21, 22], view_rng(0, 0, 0))
    assert row["labels"] == [IGNORED, 20, 21, 22, IGNORED]
    assert row["first_ids"] == [tokenizer.cls_token_id, 10, 11, tokenizer.sep_token_id]
    assert (row["second_ids"][0], row["second_ids"][-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


def test_a_tokenizer_without_mask_token_is_refused(tokenizer):
    bare = type(tokenizer)(vocab=tokenizer.get_vocab(), mask_token=None)
    bare.mask_token = None
    with pytest.raises(InputError, match="has no mask token; give a masked LM"):
        Masking.of(bare, 0.3)


@pytest.mark.parametrize(("exponent", "counts"), [(1.0, [900, 100]), (0.0, [500, 500]), (0.3, [659, 341])])
def test_language_smoothing_by_hand(exponent, counts):
    shares = np.array([0.9**exponent, 0.1**exponent])
    assert (1000 * shares / shares.sum()).round().tolist() == counts
    assert np.bincount(epoch_order([900, 100], exponent, seed=1, epoch=0) >= 900).tolist() == counts


def test_an_epoch_without_smoothing_is_a_new_permutation():
    first, again, second = (epoch_order([30, 10], 1.0, seed=1, epoch=epoch) for epoch in (0, 0, 1))
    assert sorted(first) == list(range(40)) and (first == again).all() and (first != second).any()


def test_the_rows_of_a_small_file_are_repeated_evenly():
    order = epoch_order([90, 10], 0.0, seed=1, epoch=0)
    counts = np.bincount(order, minlength=100)
    assert counts[:90].max() == 1 and counts[:90].sum() == 50 and (counts[90:] == 5).all()


def bitext(count: int, to_row, batch_size: int) -> BitextStream:
    columns = {name: [f"{name} {i}" for i in range(count)] for name in ("text", "text_pair")}
    return BitextStream(EpochShuffledDataset([Dataset.from_dict(columns)], 1.0, seed=4), to_row, batch_size)


def test_no_batch_contains_a_translation_twice():
    stream = bitext(10, lambda row: row["text"], batch_size=4)
    batches = [{stream.at(start + place) for place in range(4)} for start in range(0, 400, 4)]
    assert all(len(batch) == 4 for batch in batches)
    assert len(set.union(*batches)) == 10  # what one pass leaves out, another contains
    with pytest.raises(InputError, match="10 pairs do not fill one batch of 11"):
        bitext(10, None, batch_size=11)


def segments(tokenizer, sentences, streaming=False):
    documents = Dataset.from_dict({"text": ["\n".join(sentences[i : i + 6]) for i in range(0, 120, 6)]})
    documents = documents.to_iterable_dataset() if streaming else documents
    return segment_documents([documents], tokenizer, ["en"], max_tokens=12)[0]


def test_rows_depend_on_seed_epoch_and_place_only(tokenizer, sentences):
    rows, pairs = segments(tokenizer, sentences), bitext(50, PairTokenizer(tokenizer, 8), batch_size=8)
    dataset, twin = (
        StageDataset("cmlm", EpochShuffledDataset([rows], 1.0, seed=4), row_builder(tokenizer), 8, pairs)
        for _ in range(2)
    )
    assert len(dataset) == len(rows) // 8 * 8
    early = dataset[3]
    dataset.set_epoch(1)
    assert dataset[3] != early
    twin.set_epoch(1)
    assert [twin[place] for place in (9, 3)] == [dataset[place] for place in (9, 3)]
    dataset.set_epoch(0)
    assert dataset[3] == early and set(early) == {"cmlm", "pairs"}


def test_a_stream_draws_new_rows_in_every_pass(tokenizer, sentences):
    count = len(segments(tokenizer, sentences))
    stream = segments(tokenizer, sentences, streaming=True)
    dataset = StreamedStageDataset("cmlm", stream, row_builder(tokenizer), seed=4, batch_size=1)
    rows = list(itertools.islice(dataset, 2 * count))
    assert rows == list(itertools.islice(dataset, 2 * count))
    assert rows[:count] != rows[count:]  # another order, other masks


def test_a_stream_of_files_of_unequal_length_has_every_row_once(tokenizer, sentences, tmp_path):
    flags = {"max_seq_length": 16, "per_device_train_batch_size": 1, "max_steps": 1, "bf16": False}
    config = CMLMConfig(output_dir=str(tmp_path), **flags)
    files = [Dataset.from_dict({"text": ["\n".join(sentences[a:b])]}) for a, b in ((0, 60), (60, 70), (70, 100))]
    rows = stage_dataset(tokenizer, config, files).rows.rows
    stream = stage_dataset(tokenizer, config, [file.to_iterable_dataset() for file in files]).stream
    stored, streamed = (sorted((row["first"], row["second"]) for row in found) for found in (rows, stream))
    assert len(stored) > 20 and streamed == stored


def test_the_batch_of_the_collators_docstring(tokenizer):
    rows = [
        {"cmlm": {"first_ids": [2, 7, 3], "second_ids": [2, 4, 9, 3], "labels": [-100, 8, -100, -100]}},
        {"cmlm": {"first_ids": [2, 10, 3], "second_ids": [2, 4, 3], "labels": [-100, 11, -100]}},
    ]
    batch = StageCollator(tokenizer)(rows)["cmlm"]
    assert batch["first"]["input_ids"].tolist() == [[2, 7, 3], [2, 10, 3]]
    assert batch["second"]["input_ids"].tolist() == [[2, 4, 9, 3], [2, 4, 3, 0]]
    assert batch["second"]["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["labels"].tolist() == [[-100, 8, -100, -100], [-100, 11, -100, -100]]


def test_pairs_become_twice_as_many_rows(tokenizer):
    row = PairTokenizer(tokenizer, 4)({"text": "a cat sees a dog", "text_pair": "a [MASK]", "label": 2})
    assert [len(row["first_ids"]), row["label"]] == [4, 2] and tokenizer.mask_token_id not in row["second_ids"]
    batch = StageCollator(tokenizer)([{"nli": row}, {"nli": row | {"label": 0}}])["nli"]
    assert batch["input_ids"].shape[0] == 4 and batch["labels"].tolist() == [2, 0]
    assert batch["input_ids"][0].tolist()[:4] == row["first_ids"]

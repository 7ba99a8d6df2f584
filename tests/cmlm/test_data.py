"""Reading documents and pairs, the order of an epoch, and batches."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from mirror.cmlm.config import CMLMConfig
from mirror.cmlm.data import (
    BitextStream,
    EpochShuffledDataset,
    PairTokenizer,
    StageCollator,
    StageDataset,
    StreamedStageDataset,
    epoch_order,
    segment_dataset,
    smoothed_counts,
)
from mirror.cmlm.reading import read_documents, read_labelled_pairs, read_pairs
from mirror.cmlm.segments import Masking, MLMExampleBuilder
from mirror.cmlm.stages import stage_dataset
from mirror.common.errors import InputError
from mirror.data.corpus import CorpusSource
from mirror.data.two_view_dataset import special_tokens_around


TWO_DOCUMENTS = "A cat. It runs.\nIt sleeps.\n\nA dog. It eats.\n"


def texts_of(parts) -> list[list[str]]:
    return [[row["text"].strip() for row in part] for part in parts]


@pytest.mark.parametrize("streaming", [False, True])
def test_empty_lines_part_the_documents_of_a_txt_file(tmp_path, streaming):
    (tmp_path / "d.txt").write_text(TWO_DOCUMENTS)
    settings = CorpusSource(train_file=(str(tmp_path / "d.txt"),), streaming=streaming)
    assert texts_of(read_documents(settings)) == [["A cat. It runs.\nIt sleeps.", "A dog. It eats."]]
    by_line = [["A cat. It runs.", "It sleeps.", "A dog. It eats."]]
    assert texts_of(read_documents(settings, line_is_document=True)) == by_line


def test_rows_of_tables_are_documents(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": "A cat. It runs."}\n{"text": "A dog. It eats."}\n')
    Dataset.from_dict({"body": ["One. Two."], "id": [3]}).to_parquet(tmp_path / "d.parquet")
    both = read_documents(CorpusSource(train_file=(str(tmp_path / "d.jsonl"),)))
    assert texts_of(both) == [["A cat. It runs.", "A dog. It eats."]]
    one = CorpusSource(train_file=(str(tmp_path / "d.parquet"),), text_column="body")
    assert texts_of(read_documents(one)) == [["One. Two."]]


def test_a_file_that_is_one_document_is_mentioned(tmp_path, caplog):
    (tmp_path / "d.txt").write_text("A cat.\nA dog.\n")
    read_documents(CorpusSource(train_file=(str(tmp_path / "d.txt"),)))
    assert "d.txt has no empty line, so it is one document" in caplog.text


def test_the_first_two_text_columns_are_a_pair(tmp_path):
    (tmp_path / "b.tsv").write_text("id\ten\tfr\n1\ta cat\tun chat\n2\ta dog\tun chien\n2\t \tvide\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": 7, "label": "x", "en": "a cat", "fr": "un chat"}) + "\n")
    (rows,) = read_pairs("--bitext_file", [str(tmp_path / "b.tsv")], ["en", "fr"])
    assert [tuple(row.values()) for row in rows] == [
        ("a cat", "un chat"),
        ("a dog", "un chien"),
    ]  # the blank one is out
    (rows,) = read_pairs("--bitext_file", [str(tmp_path / "b.jsonl")], None)  # a number and a label are no text
    assert [tuple(row.values()) for row in rows] == [("a cat", "un chat")]


def test_bad_pair_files_are_named(tmp_path):
    (tmp_path / "b.tsv").write_text("en\tlabel\na cat\t1\n")
    with pytest.raises(InputError, match=r"b.tsv: two columns of text expected, found en"):
        read_pairs("--bitext_file", [str(tmp_path / "b.tsv")], None)
    with pytest.raises(InputError, match=r"b.tsv has no column 'fr'; it has en, label"):
        read_pairs("--bitext_file", [str(tmp_path / "b.tsv")], ["en", "fr"])
    with pytest.raises(InputError, match=r"--bitext_file missing.tsv: no such file"):
        read_pairs("--bitext_file", ["missing.tsv"], None)


def test_labels_of_every_spelling(tmp_path):
    (tmp_path / "n.tsv").write_text(
        "premise\thypothesis\tlabel\na\tb\tENTAILMENT\nc\td\tneutral\ne\tf\t-\ng\th\tcontradiction\ni\tj\t2\n"
    )
    (rows,) = read_labelled_pairs([str(tmp_path / "n.tsv")], None)
    assert [tuple(row.values()) for row in rows] == [("a", "b", 0), ("c", "d", 1), ("g", "h", 2), ("i", "j", 2)]
    features = Features(
        {"p": Value("string"), "h": Value("string"), "label": ClassLabel(names=["neutral", "entailment"])}
    )
    Dataset.from_dict({"p": ["a", "b"], "h": ["c", "d"], "label": [0, 1]}, features=features).to_parquet(
        tmp_path / "n.parquet"
    )
    (rows,) = read_labelled_pairs([str(tmp_path / "n.parquet")], None)
    assert rows["label"][:] == [1, 0]  # by name, not by number


def test_the_columns_of_sick(tmp_path):
    (tmp_path / "s.tsv").write_text("subset\tsentence1\tsentence2\tscore\tentailment\nT\ta\tb\t4.5\tNEUTRAL\n")
    (rows,) = read_labelled_pairs([str(tmp_path / "s.tsv")], ["sentence1", "sentence2"], "entailment")
    assert list(rows) == [{"text": "a", "text_pair": "b", "label": 1}]


def test_an_unknown_label_names_its_row(tmp_path):
    (tmp_path / "n.tsv").write_text("p\th\tlabel\na\tb\tneutral\nc\td\tmaybe\n")
    with pytest.raises(InputError, match=r"n.tsv, row 2: label 'maybe'; expected entailment, neutral, contradiction"):
        read_labelled_pairs([str(tmp_path / "n.tsv")], None)
    (tmp_path / "n.tsv").write_text("p\th\na\tb\n")
    with pytest.raises(InputError, match=r"n.tsv has no column 'label'; it has p, h; choose with --label_column"):
        read_labelled_pairs([str(tmp_path / "n.tsv")], None)


def test_language_smoothing_by_hand():
    assert smoothed_counts([900, 100], 1.0) == [900, 100]
    assert smoothed_counts([900, 100], 0.0) == [500, 500]
    shares = np.array([0.9**0.3, 0.1**0.3])
    expected = (1000 * shares / shares.sum()).round().tolist()
    assert smoothed_counts([900, 100], 0.3) == expected == [659, 341]


def test_an_epoch_without_smoothing_is_a_permutation_drawn_anew():
    first, again, second = (epoch_order([30, 10], 1.0, seed=1, epoch=epoch) for epoch in (0, 0, 1))
    assert sorted(first) == list(range(40)) and (first == again).all() and (first != second).any()


def test_a_small_file_is_gone_through_evenly():
    order = epoch_order([90, 10], 0.0, seed=1, epoch=0)
    counts = np.bincount(order, minlength=100)
    assert counts[:90].max() == 1 and counts[:90].sum() == 50 and (counts[90:] == 5).all()


def pairs(count: int) -> Dataset:
    return Dataset.from_dict(
        {"text": [f"first {i}" for i in range(count)], "text_pair": [f"last {i}" for i in range(count)]}
    )


def test_no_batch_holds_a_companion_twice(tokenizer):
    company = BitextStream(EpochShuffledDataset([pairs(10)], 1.0, seed=0), lambda row: row["text"], batch_size=4)
    rounds = [[company.at(start + place) for place in range(4)] for start in range(0, 400, 4)]
    assert all(len(set(batch)) == 4 for batch in rounds)
    assert len({text for batch in rounds for text in batch}) == 10  # what one round leaves out, another brings
    with pytest.raises(InputError, match="10 pairs do not fill one batch of 11"):
        BitextStream(EpochShuffledDataset([pairs(10)], 1.0, seed=0), lambda row: row, batch_size=11)


def segments(tokenizer, sentences, streaming=False):
    documents = Dataset.from_dict({"text": ["\n".join(sentences[i : i + 6]) for i in range(0, 120, 6)]})
    if streaming:
        documents = documents.to_iterable_dataset()
    return segment_dataset(documents, tokenizer, "en", max_tokens=12)


def maker(tokenizer) -> MLMExampleBuilder:
    return MLMExampleBuilder(Masking.of(tokenizer, 0.3), 0.5, special_tokens_around(tokenizer))


def test_rows_depend_on_seed_epoch_and_place_only(tokenizer, sentences):
    rows = segments(tokenizer, sentences)
    company = BitextStream(EpochShuffledDataset([pairs(50)], 1.0, seed=4), PairTokenizer(tokenizer, 8), batch_size=8)
    dataset, twin = (
        StageDataset("cmlm", EpochShuffledDataset([rows], 1.0, seed=4), maker(tokenizer), 8, company) for _ in range(2)
    )
    assert len(dataset) == len(rows) // 8 * 8
    early = dataset[3]
    dataset.set_epoch(1)
    assert dataset[3] != early
    twin.set_epoch(1)
    assert [twin[place] for place in (9, 3)] == [dataset[place] for place in (9, 3)]
    dataset.set_epoch(0)
    assert dataset[3] == early and set(early) == {"cmlm", "pairs"}


def test_a_stream_gives_rows_of_the_same_kind(tokenizer, sentences):
    count = len(segments(tokenizer, sentences))
    stream = segments(tokenizer, sentences, streaming=True)
    dataset = StreamedStageDataset("cmlm", stream, maker(tokenizer), seed=4, batch_size=1)
    rows = list(itertools.islice(dataset, 2 * count))
    assert rows == list(itertools.islice(dataset, 2 * count))
    assert rows[:count] != rows[count:]  # another order, other masks


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


def test_a_stream_of_files_of_unequal_length_has_every_row_once(bert_folder, tokenizer, sentences, tmp_path):
    flags = {"max_seq_length": 16, "per_device_train_batch_size": 1, "max_steps": 1, "bf16": False}
    config = CMLMConfig(output_dir=str(tmp_path), **flags)
    files = [Dataset.from_dict({"text": ["\n".join(sentences[a:b])]}) for a, b in ((0, 60), (60, 70), (70, 100))]
    rows = stage_dataset(tokenizer, config, files).rows.rows
    stream = stage_dataset(tokenizer, config, [file.to_iterable_dataset() for file in files]).stream

    def pairs(found) -> list[tuple]:
        return sorted((tuple(row["first"]), tuple(row["second"])) for row in found)

    assert len(pairs(rows)) > 20 and pairs(stream) == pairs(rows)

"""Tests of reading documents and pairs, and of splitting documents into pairs of segments."""

from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from mirror.cmlm.reading import (
    read_documents,
    read_labeled_pairs,
    read_pairs,
    segment_documents,
    segment_pairs,
    split_sentences,
)
from mirror.common.errors import InputError
from mirror.data.source import CorpusSource


def texts_of(parts) -> list[list[str]]:
    return [[row["text"].strip() for row in part] for part in parts]


@pytest.mark.parametrize("streaming", [False, True])
def test_empty_lines_separate_the_documents_of_a_txt_file(tmp_path, streaming):
    (tmp_path / "d.txt").write_text("A cat. It runs.\nIt sleeps.\n\nA dog. It eats.\n")
    source = CorpusSource(train_file=(str(tmp_path / "d.txt"),), streaming=streaming)
    assert texts_of(read_documents(source)) == [["A cat. It runs.\nIt sleeps.", "A dog. It eats."]]
    by_line = [["A cat. It runs.", "It sleeps.", "A dog. It eats."]]
    assert texts_of(read_documents(source, line_is_document=True)) == by_line


def test_a_line_of_spaces_is_an_empty_line(tmp_path):
    (tmp_path / "d.txt").write_text("A cat runs.\n   \nA dog eats.\n\t\nA bird sings.\n")
    source = CorpusSource(train_file=(str(tmp_path / "d.txt"),))
    assert texts_of(read_documents(source)) == [["A cat runs.", "A dog eats.", "A bird sings."]]


def test_rows_of_tables_are_documents(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"body": "A cat. It runs."}\n{"body": "A dog. It eats."}\n')
    source = CorpusSource(train_file=(str(tmp_path / "d.jsonl"),), text_column="body")
    assert texts_of(read_documents(source)) == [["A cat. It runs.", "A dog. It eats."]]


def test_the_first_two_text_columns_are_a_pair(tmp_path):
    (tmp_path / "b.tsv").write_text("id\ten\tfr\n1\ta cat\tun chat\n2\ta dog\tun chien\n2\t \tvide\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": 7, "label": "x", "en": "a cat", "fr": "un chat"}) + "\n")
    (rows,) = read_pairs("--bitext_file", [str(tmp_path / "b.tsv")], ["en", "fr"])  # without the blank one
    assert [tuple(row.values()) for row in rows] == [("a cat", "un chat"), ("a dog", "un chien")]
    (rows,) = read_pairs("--bitext_file", [str(tmp_path / "b.jsonl")], None)  # a number and a label are no text
    assert [tuple(row.values()) for row in rows] == [("a cat", "un chat")]


def test_bad_pair_files_are_named(tmp_path):
    (tmp_path / "b.tsv").write_text("en\tlabel\na cat\t1\n")
    for names, columns, message in (
        ([str(tmp_path / "b.tsv")], None, "b.tsv: two columns of text expected, found en"),
        ([str(tmp_path / "b.tsv")], ["en", "fr"], "b.tsv has no column 'fr'; it has en, label"),
        (["missing.tsv"], None, "--bitext_file missing.tsv: no such file"),
    ):
        with pytest.raises(InputError, match=message):
            read_pairs("--bitext_file", names, columns)


def test_a_folder_of_documents_is_not_running_text(tmp_path):
    (tmp_path / "a.md").write_text("# Guide\n\nThe cat runs.\n")
    with pytest.raises(InputError, match="CMLM reads running text; give txt files"):
        read_documents(CorpusSource((str(tmp_path),)))


def test_labels_of_every_spelling(tmp_path):
    (tmp_path / "n.tsv").write_text(
        "premise\thypothesis\tlabel\na\tb\tENTAILMENT\nc\td\tneutral\ne\tf\t-\ng\th\tcontradiction\ni\tj\t2\n"
        " \tk\t1\nl\t\t1\n"  # without a text
    )
    (rows,) = read_labeled_pairs([str(tmp_path / "n.tsv")], None)
    assert [tuple(row.values()) for row in rows] == [("a", "b", 0), ("c", "d", 1), ("g", "h", 2), ("i", "j", 2)]
    names = ClassLabel(names=["neutral", "entailment"])
    features = Features({"p": Value("string"), "h": Value("string"), "label": names})
    table = Dataset.from_dict({"p": ["a", "b"], "h": ["c", "d"], "label": [0, 1]}, features=features)
    table.to_parquet(tmp_path / "n.parquet")
    (rows,) = read_labeled_pairs([str(tmp_path / "n.parquet")], None)
    assert rows["label"][:] == [1, 0]  # by name, not by number


def test_the_columns_of_sick(tmp_path):
    (tmp_path / "s.tsv").write_text("subset\tsentence1\tsentence2\tscore\tentailment\nT\ta\tb\t4.5\tNEUTRAL\n")
    (rows,) = read_labeled_pairs([str(tmp_path / "s.tsv")], ["sentence1", "sentence2"], "entailment")
    assert list(rows) == [{"text": "a", "text_pair": "b", "label": 1}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("p\th\tlabel\na\tb\tneutral\nc\td\tmaybe\n", "n.tsv, row 2: label 'maybe'; expected entailment, neutral,"),
        ("p\th\na\tb\n", "n.tsv has no column 'label'; it has p, h; choose with --label_column"),
        ("p\th\tlabel\na\tb\t-\n", "n.tsv: no labeled pair in it"),
    ],
)
def test_wrong_labels_are_one_line(tmp_path, content, message):
    (tmp_path / "n.tsv").write_text(content)
    with pytest.raises(InputError, match=message):
        read_labeled_pairs([str(tmp_path / "n.tsv")], None)


def test_sentences_of_lines_and_scripts():
    text = "Dr. Smith left. He slept.\nA new line\n\n"
    assert split_sentences(text, "en") == ["Dr. Smith left.", " He slept.", "A new line"]
    assert split_sentences("今日は晴れです。明日は雨です。", "ja") == ["今日は晴れです。", "明日は雨です。"]
    assert split_sentences("One here. Two there.", "xx") == ["One here.", " Two there."]


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ([], []),
        ([[1]], []),  # no neighbor
        ([[1], [2]], [([1], [2])]),
        ([[1, 2], [3], [4, 5], [6]], [([1, 2, 3], [4, 5, 6])]),
        ([[1], [2], [3], [4]], [([1, 2], [3, 4])]),  # not [1, 2, 3] and [4]: the last pair is even
        ([[1, 2, 3], [4, 5, 6], [7]], [([1, 2, 3], [4, 5, 6])]),  # 7 has no neighbor left
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
    """Each document repeats a word of its own, so a pair that crosses contains two words."""
    words = ["cat", "dog", "bird", "fish", "tree", "house", "river"]
    documents = Dataset.from_dict({"text": ["\n".join([f"{word} {word}"] * 7) for word in words]})
    (pairs,) = segment_documents([documents], tokenizer, ["en"], max_tokens=5)
    assert len(pairs) == 14  # 7 lines of two tokens: two lines to a segment, then 3 lines left in two segments
    for pair in pairs:
        assert len(set(pair["first"]) | set(pair["second"])) == 1
    assert {tokenizer.decode(pair["first"][:1]) for pair in pairs} == set(words)


def test_special_tokens_in_text_are_plain_text(tokenizer):
    documents = Dataset.from_dict({"text": ["a cat [MASK] sees\na dog [SEP] runs"]})
    ((pair,),) = segment_documents([documents], tokenizer, ["en"], max_tokens=20)
    assert not set(pair["first"] + pair["second"]) & {tokenizer.mask_token_id, tokenizer.sep_token_id}

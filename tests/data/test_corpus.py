"""Reading every format, cleaning, and one clear line for what is wrong with a file."""

from __future__ import annotations

import gzip
import json

import pytest
from datasets import Dataset

from mirror.common.errors import InputError
from mirror.data.corpus import (
    CorpusSource,
    as_corpus,
    false_negative_chance,
    load_corpus,
)
from mirror.data.files import check_text_file, expand_paths


TEXTS = ["a cat", "null", "007", "naïve 日本 🎈", 'said "no"']


def texts_of(path, **settings) -> list[str]:
    return list(load_corpus(CorpusSource(train_file=(str(path),), **settings)).rows["text"])


def write(path, content: str):
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_every_text_format_gives_the_same_rows(tmp_path, ending):
    quoted = [text.replace('"', '""') for text in TEXTS]
    files = [
        write(tmp_path / f"a.txt{ending}", "\n".join(TEXTS)),
        write(tmp_path / f"a.csv{ending}", "text\n" + "".join(f'"{text}"\n' for text in quoted)),
        write(tmp_path / f"a.tsv{ending}", "label\ttext\n" + "".join(f"1\t{text}\n" for text in TEXTS)),
        write(tmp_path / f"a.jsonl{ending}", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)),
        write(tmp_path / f"a.json{ending}", json.dumps([{"text": text, "other": 1} for text in TEXTS])),
    ]
    assert [texts_of(path) for path in files] == [TEXTS] * 5


def test_parquet_and_a_dataset_folder(tmp_path):
    dataset = Dataset.from_dict({"sentence": TEXTS, "id": range(len(TEXTS))})
    dataset.to_parquet(tmp_path / "a.parquet")
    assert texts_of(tmp_path / "a.parquet", text_column="sentence") == TEXTS
    corpus = load_corpus(CorpusSource(dataset_name=str(tmp_path), text_column="sentence"))
    assert list(corpus.rows["text"]) == TEXTS


def test_globs_and_several_files_keep_their_order(tmp_path):
    for name in ("b.txt", "a.txt"):
        write(tmp_path / name, f"text of {name}\n")
    assert texts_of(tmp_path / "*.txt") == ["text of a.txt", "text of b.txt"]
    assert [path.name for path in expand_paths([str(tmp_path / "b.txt"), str(tmp_path / "a.txt")])] == [
        "b.txt",
        "a.txt",
    ]


def test_blank_rows_and_duplicates_go_and_are_counted():
    corpus = as_corpus(["a", " a ", "", "b", "  ", "a"])
    assert list(corpus.rows["text"]) == ["a", "b"]
    assert (corpus.blank_rows, corpus.duplicate_rows, corpus.read_rows) == (2, 2, 4)
    assert corpus.equal_pairs == 3  # three a's


def test_keeping_duplicates_and_taking_only_some():
    assert list(as_corpus(["a", "a", "b"], CorpusSource(keep_duplicates=True)).rows["text"]) == ["a", "a", "b"]
    some = as_corpus(["a", "", "a", "b", "b", "c", ""], CorpusSource(max_train_samples=2))
    assert list(some.rows["text"]) == ["a", "b"]
    assert (some.blank_rows, some.duplicate_rows, some.read_rows) == (
        1,
        1,
        3,
    )  # what comes after the last row is not read


def test_pairs_from_columns_and_from_lines(tmp_path):
    write(tmp_path / "a.tsv", "x\ty\na\tb\nc\td\na\tb\n")
    corpus = load_corpus(CorpusSource(train_file=(str(tmp_path / "a.tsv"),), pair_columns=("y", "x")))
    assert corpus.rows.to_dict() == {"text": ["b", "d"], "text_pair": ["a", "c"]}
    write(tmp_path / "a.txt", "a || b\n\nc||d\n")
    corpus = load_corpus(CorpusSource(train_file=(str(tmp_path / "a.txt"),), pair_separator="||"))
    assert corpus.rows.to_dict() == {"text": ["a", "c"], "text_pair": ["b", "d"]}
    assert corpus.blank_rows == 1


def test_a_stream_gives_the_rows_that_are_not_blank(tmp_path):
    path = write(tmp_path / "a.txt", "a\n\nb\na\n")
    corpus = load_corpus(CorpusSource(train_file=(str(path),), streaming=True))
    assert [row["text"] for row in corpus.rows] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt is empty"),
        ("a.txt", b" \n\n", r"a\.txt: no text in it"),
        ("a.txt", b"good\nb\xe9d\n", r"a\.txt, line 2: not UTF-8"),
        ("a.txt", b"good\n\0\1\n", r"a\.txt, line 2: not a text file"),
        ("a.txt", b"x" * (1 << 20) + b"yz", r"a\.txt: no text in it"),
        ("a.txt", b"x" * (1 << 26) + b"yz", r"a\.txt, line 1: not a text file \(a line over 67,108,864 bytes\)"),
        ("a.txt", b"a\nb" * (1 << 18) + b"\nb\xe9d\n", r"a\.txt, line 262146: not UTF-8"),
        ("a.txt", b"a\nb\xe9", r"a\.txt, line 2: not UTF-8"),
        ("a.txt.gz", gzip.compress(b"\n" * 2_000_000), r"a\.txt\.gz: unpacks to over 200 times its size"),
        ("a.pdf", b"x", r"a\.pdf: unknown ending; one of txt, csv"),
        ("a.csv", b"x,y\n1,2\n", r"a\.csv has no column 'text'; it has x, y; choose with --text_column"),
        ("a.csv", b"\xef\xbb\xbf", r"a\.csv, line 1: no names of columns"),
        ("a.csv", b"\ntext\n1\n", r"a\.csv, line 1: no names of columns"),
        ("a.csv", b"text" * 50_000 + b"\n1\n", r"a\.csv, line 1: field larger than"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl: .*JSON"),
        ("a.txt.gz", b"not gzip", r"a\.txt\.gz: .*gzip"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_corpus(CorpusSource(train_file=(str(tmp_path / name),)))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_empty_glob(tmp_path):
    for pattern in ("absent.txt", "*.txt"):
        with pytest.raises(InputError, match="no such file"):
            expand_paths([str(tmp_path / pattern)])


def test_a_line_that_is_no_pair_is_numbered(tmp_path):
    path = write(tmp_path / "a.txt", "a||b\nonly one\n")
    with pytest.raises(InputError, match=r"line 2: 1 texts around '\|\|', expected 2"):
        load_corpus(CorpusSource(train_file=(str(path),), pair_separator="||"))


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbftext\nhello\n")
    check_text_file(path)
    assert texts_of(path) == ["hello"]


def test_the_chance_of_a_false_negative_is_that_of_drawing(sentences):
    import random

    rows = [*range(100), 0, 1, 2, 3, 4]  # five texts twice
    generator = random.Random(0)
    draws = [generator.sample(rows, 30) for _ in range(4000)]
    share = sum(len(set(draw)) < 30 for draw in draws) / len(draws)
    assert false_negative_chance(5, 105, 30) == pytest.approx(share, abs=0.03)
    assert false_negative_chance(0, 105, 30) == 0


def test_a_folder_and_a_name_with_brackets(tmp_path):
    write(tmp_path / "notes [v2].txt", "a note\n")
    write(tmp_path / "b.csv", "text\nanother\n")
    write(tmp_path / "picture.png", "no text")
    assert texts_of(tmp_path / "notes [v2].txt") == ["a note"]
    assert texts_of(tmp_path) == ["another", "a note"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no such file"):
        expand_paths([str(tmp_path / "empty")])


def test_a_byte_order_mark_is_not_part_of_the_first_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbffirst\nsecond\n")
    assert texts_of(tmp_path / "a.txt") == ["first", "second"]

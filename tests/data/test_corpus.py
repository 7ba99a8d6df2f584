"""Every format is read and cleaned, and an error in a file is one clear line."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

import run_encode
from mirror.common.errors import InputError
from mirror.data.cleaning import false_negative_chance
from mirror.data.corpus import as_corpus, load_corpus, read_batches, text_rows
from mirror.data.files import LEFT_OUT, MAX_LINE_BYTES, expand_paths
from mirror.data.source import CorpusSource
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


TEXTS = ["a cat", "null", "007", "naïve 日本 🎈", 'said "no"']


def texts_of(path, **settings) -> list[str]:
    return list(load_corpus(CorpusSource(train_file=(str(path),), **settings)).rows["text"])


def write(path, content: str):
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_a_parquet_file_of_many_rows_keeps_their_order(tmp_path):
    texts = [f"text {number % 7 if number % 3 else number}" for number in range(25_000)]
    table = pa.table({"other": texts[::-1], "text": texts})
    # The dictionary is full after some pages, and the others are plain.
    pq.write_table(table, tmp_path / "a.parquet", dictionary_pagesize_limit=9999)
    assert texts_of(tmp_path / "a.parquet", keep_duplicates=True) == texts


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
        ("a.txt", b"a\nb" * (1 << 12) + b"\nb\xe9d\n", r"a\.txt, line 4098: not UTF-8"),
        ("a.txt", b"a\nb\xe9", r"a\.txt, line 2: not UTF-8"),
        ("a.txt.gz", gzip.compress(b"%099d\n" % 0 * 11_000), r"a\.txt\.gz: unpacks to over 200 times its size"),
        ("a.xyz", b"x", r"a\.xyz: unknown ending; one of txt, csv"),
        ("a.csv", b"x,y\n1,2\n", r"a\.csv has no column 'text'; it has x, y; choose with --text_column"),
        ("a.csv", b"\xef\xbb\xbf", r"a\.csv, line 1: no names of columns"),
        ("a.csv", b"\ntext\n1\n", r"a\.csv, line 1: no names of columns"),
        ("a.csv", b"text" * 50_000 + b",x\n1,2\n", r"a\.csv has no column 'text'; it has texttext"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not JSON \(Expecting value, column 9\)"),
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
    with pytest.raises(InputError, match=r"line 2: 1 texts around '\|\|', not 2"):
        load_corpus(CorpusSource(train_file=(str(path),), pair_separator="||"))


def test_the_chance_of_a_false_negative_is_that_of_drawing(sentences):
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
    with pytest.raises(InputError, match="empty: no texts or documents in this folder"):
        expand_paths([str(tmp_path / "empty")])


def test_hidden_files_of_a_folder_are_skipped(tmp_path):
    write(tmp_path / "notes.txt", "a note\n")
    for name in ("._notes.txt", ".hidden.csv", "~$notes.csv", "Thumbs.db"):
        (tmp_path / name).write_bytes(b"\0\1\2")
    assert texts_of(tmp_path) == ["a note"]


PANDAS_MISSING = pd.Series(["a", None], dtype="string")


@pytest.mark.parametrize(
    "texts",
    [
        pd.Series(["a", "b"], index=[5, 6]), np.array(["a", "b"]), (text for text in "ab"), ("a", "b"), {"text": ["a", "b"]},
        pd.DataFrame({"text": ["a", "b"], "n": [1, None]}), pd.DataFrame({"title": ["a", "b"]}), pd.Series(["a", "b"], dtype="string"),
    ],
    ids=lambda texts: type(texts).__name__,
)  # fmt: skip
def test_texts_in_memory_of_every_kind(texts):
    assert as_corpus(texts).rows["text"][:] == ["a", "b"]


def test_a_name_is_a_file_or_folder_and_no_list_of_characters(tmp_path):
    write(tmp_path / "a.txt", "one\ntwo\n")
    for name in (tmp_path / "a.txt", str(tmp_path / "a.txt"), tmp_path, str(tmp_path)):
        assert as_corpus(name).rows["text"][:] == ["one", "two"]
    for name, message in (
        ("a cat", "a cat: no such file"),
        ("", "'': no such file"),
        (str(tmp_path / "b.txt"), "no such file"),
    ):
        with pytest.raises(InputError, match=message):
            as_corpus(name)


def test_the_columns_of_a_data_frame():
    frame = pd.DataFrame({"title": ["a", ""], "body": ["x", "y"], "n": [1, 2]})
    assert load_corpus(frame, text_column="title").rows["text"][:] == ["a"]
    assert load_corpus(frame, text_column=["title", "body"]).rows["text"][:] == ["a. x", "y"]
    assert load_corpus(frame, pair_columns=["title", "body"]).rows.to_dict() == {"text": ["a"], "text_pair": ["x"]}
    with_pairs = pd.DataFrame({"text": ["a"], "text_pair": ["b"], "title": ["t"]})
    assert load_corpus(with_pairs).rows.to_dict() == {"text": ["a"], "text_pair": ["b"]}
    assert load_corpus(with_pairs, text_column="title").rows.to_dict() == {"text": ["t"]}


def test_a_dataset_a_mapping_and_a_source_take_the_options(tmp_path):
    table = {"title": ["t"], "body": ["b"]}
    (tmp_path / "a.csv").write_text("title,body\nt,b\n")
    source = CorpusSource(train_file=str(tmp_path / "a.csv"))
    for each in (table, Dataset.from_dict(table), pd.DataFrame(table), source, tmp_path / "a.csv"):
        assert load_corpus(each, text_column="body").rows["text"][:] == ["b"], each
    with pytest.raises(InputError, match="--pair_columns must be two names, got ab"):
        CorpusSource(pair_columns="ab")
    for nothing in ([], CorpusSource()):
        with pytest.raises(InputError, match="no texts; name files in train_file"):
            load_corpus(nothing)


def test_a_column_of_labels_is_no_text():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    rows = Dataset.from_dict({"text": ["a"], "label": [1]}, features=features)
    with pytest.raises(InputError, match=r"column 'label' holds ClassLabel\(.*\), not text; choose one with text"):
        load_corpus(rows, pair_columns=["text", "label"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], r"index 1 of 'text' is None \(NoneType\), not a text"),
        (["a", float("nan")], r"index 1 of 'text' is nan \(float\), not a text"),
        (PANDAS_MISSING, r"index 1 of 'text' is <NA> \(NAType\), not a text"),
        (np.array([["a"]]), r"index 0 of 'text' is array.* \(ndarray\), not a text"),
        ([{"text": "a"}], r"index 0 of 'text' is .*dict"),
        (pd.DataFrame({"text": ["a", 5]}), r"index 1 of 'text' is 5 \(int\), not a text"),
        (pd.DataFrame({"a": ["a"], "b": ["b"]}), "train_dataset has no column 'text'; it has a, b"),
        (DatasetDict(train=Dataset.from_dict({"text": ["a"]})), r"several splits; choose one of train, as in data\['train'\]"),
        ([], "train_dataset: no rows in it"),
        (pd.DataFrame({"text": []}), "train_dataset: no rows in it"),
        ([" "], "train_dataset: no text in it"),
        (None, "NoneType holds no texts"),
    ],
)  # fmt: skip
def test_what_is_no_text_in_memory_is_one_line(texts, message):
    with pytest.raises(InputError, match=message) as caught:
        as_corpus(texts)
    assert "\n" not in str(caught.value)


# Damaged files, read completely and as a stream


ROWS = [{"id": number, "text": f"text {number} of the cat"} for number in range(300)]


def jsonl(rows: list) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(**columns) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=100)
    return buffer.getvalue()


LINES = [row["text"] for row in ROWS]
WHOLE_PARQUET = parquet(text=LINES)
DAMAGED: dict[str, tuple[str, bytes]] = {
    "json is empty": ("json", b"{}"),
    "json with a number among rows": ("json", b'[{"text": "a"}, 3]'),
    "jsonl cut": ("jsonl", jsonl(ROWS)[:-9]),
    "jsonl with a word in the middle": ("jsonl", jsonl([*ROWS[:200], "x", *ROWS[200:]])),
    "txt.gz cut": ("txt.gz", gzip.compress("\n".join(LINES).encode())[:-20]),
    "jsonl.gz with a changed byte": ("jsonl.gz", bytes(b ^ (i == 300) for i, b in enumerate(gzip.compress(jsonl(ROWS))))),
    "parquet cut": ("parquet", WHOLE_PARQUET[:-20]),
    "parquet is empty": ("parquet", b""),
    "parquet with a damaged page": ("parquet", WHOLE_PARQUET[:60] + b"\0" * 300 + WHOLE_PARQUET[360:]),
    "parquet without rows": ("parquet", parquet(text=pa.array([], pa.string()))),
}  # fmt: skip


def read_all(path: Path, **options) -> list[str]:
    corpus = load_corpus(CorpusSource(train_file=(str(path),), **options))
    return [text for batch in read_batches(corpus.rows, 50, str(path)) for text in batch["text"]]


@pytest.mark.parametrize("streaming", [False, True], ids=["memory", "stream"])
@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_one_line(tmp_path, kind, streaming, capfd, caplog):
    ending, data = DAMAGED[kind]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_all(path, streaming=streaming)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    assert "cache" not in caplog.text and "Failed to read" not in capfd.readouterr().err


def test_a_stream_that_breaks_in_the_middle_of_a_training_is_one_line(tmp_path, bert_folder):
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "".join(f"text {number}\n" for number in range(11_000)) + "one,two\n")
    config = MirrorConfig(
        output_dir=str(tmp_path / "out"), max_steps=10_000, per_device_train_batch_size=200, bf16=False, pooling="mean",
        max_seq_length=8, disable_tqdm=True,
    )  # fmt: skip
    corpus = load_corpus(CorpusSource(train_file=(str(path),), streaming=True))
    trainer = MirrorTrainer(bert_folder, config, corpus)
    trainer.settings["train_file"] = [str(path)]
    trainer.compute_loss = lambda model, inputs, **rest: sum(weight.sum() for weight in model.parameters()) * 0
    with pytest.raises(InputError) as caught:
        trainer.train()
    assert str(caught.value).startswith(f"{path}, line 11002: 2 fields, the header has 1")


def test_bytes_are_decoded_where_they_are_text(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(text=["naïve".encode(), None, b"x"]))
    assert read_all(path) == read_all(path, streaming=True) == ["naïve", "x"]
    path.write_bytes(parquet(text=pa.array([b"ab"], pa.large_binary())))
    assert read_all(path) == ["ab"]


LONG = "y" * (MAX_LINE_BYTES + 1)


@pytest.mark.parametrize("streaming", [False, True], ids=["memory", "stream"])
@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_a_line_that_is_too_long_is_left_out_and_counted(tmp_path, ending, streaming, caplog):
    data = "\n".join(["a", "b" * MAX_LINE_BYTES, LONG, "c", LONG + "z"]).encode()
    path = tmp_path / f"a.{ending}"
    path.write_bytes(gzip.compress(data + bytes(range(32, 127)) * 400) if ending == "txt.gz" else data)
    if ending == "txt.gz":
        path.write_bytes(gzip.compress(data, compresslevel=0))  # a text packs less well than this one would
    assert read_all(path, streaming=streaming) == ["a", "b" * MAX_LINE_BYTES, "c"]
    assert f"{path}: 2 line(s) over 1 MB left out, first line 3" in caplog.text
    with pytest.raises(InputError, match=r"line 3: over 1 MB; break it into texts"):
        read_all(path, streaming=streaming, strict=True)


def test_a_file_that_was_mended_is_not_said_to_lack_lines(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text(f"a\n{LONG}\n")
    assert read_all(path) == ["a"] and path in LEFT_OUT
    path.write_text("a\nb\n")
    assert read_all(path) == ["a", "b"] and path not in LEFT_OUT
    assert read_all(path) == ["a", "b"] and path not in LEFT_OUT  # from the cache


def test_a_table_may_have_long_lines_and_long_texts(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": LONG}, *ROWS]))
    assert len(read_all(path, strict=True)) == 301


def test_every_line_gets_a_vector_so_none_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(f"a\n{LONG}\n")
    argv = ["run_encode.py", "--model_name_or_path", "m", "--input_file", str(tmp_path / "a.txt"), "--output_dir", "v"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(InputError, match="line 2: over 1 MB"):
        run_encode.main()


@pytest.mark.parametrize("ending", ["csv", "tsv", "txt"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_blank_line_is_a_row_where_a_line_is_a_text(tmp_path, ending, streaming):
    """A vector for each line, and none of them shifted."""
    (tmp_path / f"a.{ending}").write_text(("" if ending == "txt" else "text\n") + "one\n\nthree\n")
    rows = text_rows(CorpusSource(train_file=(str(tmp_path / f"a.{ending}"),), streaming=streaming), strip=False)
    assert [row["text"] or "" for row in rows] == ["one", "", "three"]

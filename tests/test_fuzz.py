"""Any bytes and any text: a row that is accepted comes out as it is, and what is refused is refused by `InputError`."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror.common.errors import InputError
from mirror.data.augmentation import span_mask, view_rng
from mirror.data.corpus import CorpusSource, load_corpus
from mirror.data.files import check_text_file
from mirror.data.two_view_dataset import ViewTokenizer


hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


CASES = int(os.environ.get("MIRROR_FUZZ_CASES", "100000"))
QUICK = settings(
    max_examples=200, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
READING = settings(QUICK, max_examples=40)  # datasets takes some 20 ms to open a file
LONG = settings(QUICK, max_examples=CASES, derandomize=False)
# Every plane, with the characters that readers trip over far more often than chance would draw them.
NASTY = st.one_of(
    st.sampled_from("\u202e\u2066\u200b\u200d\ufeff\u0085\u2028\u2029\x0b\x0c\x1c\x1e\r\n\t\0\"',\\\u0301\U0010ffff"),
    st.sampled_from(["\r\n", "[MASK]", "[SEP]", "\U0001f468\u200d\U0001f469"]),
)
CHARACTERS = st.one_of(NASTY, st.characters(exclude_categories=["Cs"]))
TEXT = st.lists(CHARACTERS, max_size=60).map("".join)
WITH_SURROGATES = st.lists(st.one_of(CHARACTERS, st.characters(categories=["Cs"])), max_size=60).map("".join)
BYTES = st.one_of(st.binary(max_size=200), TEXT.flatmap(lambda text: st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])
                  .map(lambda encoding: text.encode(encoding, "replace"))))  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quiet_datasets():
    datasets.disable_progress_bars()


def read(ending: str, content: bytes, **options) -> list[str]:
    """The texts of a file; with a folder and a cache of its own, which are gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(folder) / "cache")
        path = Path(folder) / f"a.{ending}"
        path.write_bytes(content)
        return list(load_corpus(CorpusSource(train_file=(str(path),), **options)).rows["text"])


def or_refused(ending: str, content: bytes, **options) -> list[str] | None:
    try:
        return read(ending, content, **options)
    except InputError as error:
        assert "\n" not in str(error)
        return None


def any_bytes(ending: str, content: bytes) -> None:
    or_refused(ending, content)


def text_file(content: str) -> None:
    """Rows of a text file are its lines; only a newline, with or without a return before it, ends one.

    A byte-order mark at the start belongs to the encoding and is no part of the first row.
    """
    rows = or_refused("txt", content.encode())
    if rows is not None:
        lines = content.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
        assert rows == list(dict.fromkeys(stripped for line in lines if (stripped := line.strip())))


def json_lines(texts: list[str]) -> None:
    rows = or_refused("jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    if rows is not None:
        assert rows == list(dict.fromkeys(stripped for text in texts if (stripped := text.strip())))


def quoted_csv(texts: list[str]) -> None:
    quoted = [
        '"{}"\n'.format(text.replace('"', '""')) for text in ["text", *texts]
    ]  # csv.writer refuses NUL on Python 3.10
    rows = or_refused("csv", "".join(quoted).encode())
    if rows is not None:
        expected = list(dict.fromkeys(stripped for text in texts if (stripped := text.strip())))
        assert [row.replace("\r\n", "\n").replace("\r", "\n") for row in rows] == [
            row.replace("\r\n", "\n").replace("\r", "\n") for row in expected
        ]


def views(text: str, length: int, seed: int) -> None:
    """A view is the text with a span cut out, blanks beside it aside; nothing else goes and nothing comes."""
    view = span_mask(text, length, 1, view_rng(seed, 0, 0))
    if len(view) == 1:
        assert view == [text]
        return
    before, after = view
    assert text.startswith(before) and text.endswith(after)
    gone = text[len(before) : len(text) - len(after)]
    assert len(gone) >= length and len(gone.strip()) <= length


def tokens(tokenizer, texts: list[str]) -> None:
    """Framed, within the limit, and no special token from the text of a user."""
    rows = ViewTokenizer(tokenizer, 16)([[text] for text in texts])
    assert len(rows) == len(texts)
    special = {tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    for row in rows:
        assert 2 <= len(row) <= 16 and (row[0], row[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert not special & set(row[1:-1])


ENDINGS = st.sampled_from(["txt", "csv", "tsv", "json", "jsonl", "parquet", "txt.gz", "jsonl.gz"])
TEXTS = st.lists(TEXT, min_size=1, max_size=6)
READERS = {
    "any_bytes": (any_bytes, {"ending": ENDINGS, "content": BYTES}),
    "text_file": (text_file, {"content": TEXT}),
    "json_lines": (json_lines, {"texts": TEXTS}),
    "quoted_csv": (quoted_csv, {"texts": TEXTS}),
}


@pytest.mark.parametrize("name", READERS)
def test_readers(name):
    check, cases = READERS[name]
    READING(given(**cases)(check))()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_readers_at_length(name):
    check, cases = READERS[name]
    LONG(given(**cases)(check))()


VIEWS = {"text": WITH_SURROGATES, "length": st.integers(0, 12), "seed": st.integers(0, 2**32 - 1)}


@QUICK
@given(**VIEWS)
def test_views(text, length, seed):
    views(text, length, seed)


@pytest.mark.slow
@LONG
@given(**VIEWS)
def test_views_at_length(text, length, seed):
    views(text, length, seed)


def test_tokens(tokenizer):
    QUICK(given(texts=TEXTS)(lambda texts: tokens(tokenizer, texts)))()


@pytest.mark.slow
def test_tokens_at_length(tokenizer):
    LONG(given(texts=TEXTS)(lambda texts: tokens(tokenizer, texts)))()


def test_a_surrogate_in_json_is_refused_by_name_or_comes_out():
    or_refused("jsonl", b'{"text": "a \\ud800 b"}\n{"text": "good"}\n')


def test_a_nested_column_is_refused(tmp_path):
    pq.write_table(pa.table({"text": [{"a": 1}], "other": [["x"]]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="column 'text' holds .*Value"):
        load_corpus(CorpusSource(train_file=(str(tmp_path / "a.parquet"),)))


def test_a_line_without_an_end_is_refused_after_its_first_megabyte(tmp_path):
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a gigabyte of nothing, which takes no room on the disk
    with pytest.raises(InputError, match="line 1: not a text file"):
        check_text_file(path)

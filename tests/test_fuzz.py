"""Fuzz the readers, views and tokenization: an accepted row comes out as it is, and a file is refused by `InputError`.

`MIRROR_FUZZ_CASES=100000` tries more cases than the few of the quick suite, with another seed each time.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import datasets
import pytest

from mirror.common.errors import InputError
from mirror.data.augmentation import span_mask, view_rng
from mirror.data.corpus import load_corpus
from mirror.data.files import check_text_file
from mirror.data.source import CorpusSource
from mirror.data.views import ViewTokenizer


hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


CASES = int(os.environ.get("MIRROR_FUZZ_CASES", "0"))
CHECKED = settings(
    max_examples=CASES or 200,
    deadline=None,
    database=None,
    derandomize=not CASES,
    suppress_health_check=list(HealthCheck),
)
READING = settings(CHECKED, max_examples=CASES or 40)  # datasets takes some 20 ms to open a file
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


def read(ending: str, content: bytes) -> list[str] | None:
    """Return the texts of a file, read in a folder and with a cache of its own, or None if it is refused with one line."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(folder) / "cache")
        path = Path(folder) / f"a.{ending}"
        path.write_bytes(content)
        try:
            return list(load_corpus(CorpusSource(train_file=(str(path),))).rows["text"])
        except InputError as error:
            assert "\n" not in str(error)
            return None


def text_file(content: str) -> None:
    """Check that rows are lines, which only a newline ends, and that a byte-order mark is no part of the first one."""
    rows = read("txt", content.encode())
    if rows is not None:
        assert rows == distinct(content.removeprefix("\ufeff").split("\n"))


def json_lines(texts: list[str]) -> None:
    rows = read("jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    assert rows is None or rows == distinct(texts)


def quoted_csv(texts: list[str]) -> None:
    # csv.writer refuses NUL on Python 3.10
    quoted = ('"{}"\n'.format(text.replace('"', '""')) for text in ["text", *texts])
    rows = read("csv", "".join(quoted).encode())
    assert rows is None or list(map(one_newline, rows)) == list(map(one_newline, distinct(texts)))


def distinct(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(stripped for text in texts if (stripped := text.strip())))


def one_newline(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


ENDINGS = st.sampled_from(["txt", "csv", "tsv", "json", "jsonl", "parquet", "txt.gz", "jsonl.gz"])
TEXTS = st.lists(TEXT, min_size=1, max_size=6)
READERS = {
    "any_bytes": (lambda ending, content: read(ending, content) and None, {"ending": ENDINGS, "content": BYTES}),
    "text_file": (text_file, {"content": TEXT}),
    "json_lines": (json_lines, {"texts": TEXTS}),
    "quoted_csv": (quoted_csv, {"texts": TEXTS}),
}


@pytest.mark.parametrize("name", READERS)
def test_readers(name):
    check, cases = READERS[name]
    READING(given(**cases)(check))()


@CHECKED
@given(text=WITH_SURROGATES, length=st.integers(0, 12), seed=st.integers(0, 2**32 - 1))
def test_views(text, length, seed):
    """A view is the text with a span cut out, and the blanks beside it. Nothing else goes and nothing comes."""
    view = span_mask(text, length, 1, view_rng(seed, 0, 0))
    if len(view) == 1:
        assert view == [text]
        return
    before, after = view
    assert text.startswith(before) and text.endswith(after)
    gone = text[len(before) : len(text) - len(after)]
    assert len(gone) >= length and len(gone.strip()) <= length


def test_tokens(tokenizer):
    """Rows are framed and within the limit, and a user's text gives no special token."""
    special = {tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}

    @CHECKED
    @given(texts=TEXTS)
    def check(texts):
        rows = ViewTokenizer(tokenizer, 16)([[text] for text in texts])
        assert len(rows) == len(texts)
        for row in rows:
            assert 2 <= len(row) <= 16 and (row[0], row[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
            assert not special & set(row[1:-1])

    check()


def test_a_surrogate_in_json_is_refused_by_name_or_comes_out():
    read("jsonl", b'{"text": "a \\ud800 b"}\n{"text": "good"}\n')


def test_a_line_without_an_end_is_refused_after_its_first_megabyte(tmp_path):
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a gigabyte of nothing, which takes no room on the disk
    with pytest.raises(InputError, match="line 1: not a text file"):
        check_text_file(path)

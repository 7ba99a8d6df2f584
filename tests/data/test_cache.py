"""Truncated files of the datasets cache are detected and written again, wherever they were cut."""

from __future__ import annotations

import os
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from datasets import Dataset

from mirror.common.errors import InputError
from mirror.data.cache import load_dataset, map_rows
from mirror.data.corpus import load_corpus
from mirror.data.source import CorpusSource


TEXTS = [f"text {number}" for number in range(3500)]  # datasets writes a thousand rows to a batch


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def settings(tmp_path) -> CorpusSource:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    return CorpusSource(train_file=(str(tmp_path / "texts.txt"),))


def inside_a_batch(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def between_two_batches(path: Path) -> None:
    """Cut where no library complains."""
    with path.open("rb") as file:
        stream = pa.ipc.open_stream(file)
        for _ in range(2):
            stream.read_next_batch()
        end = file.tell()
    os.truncate(path, end)
    assert len(Dataset.from_file(str(path))) == 2000


def to_nothing(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("cut", [inside_a_batch, between_two_batches, to_nothing])
def test_a_truncated_file_is_written_again(settings, cache, cut, caplog):
    assert list(load_corpus(settings).rows["text"]) == TEXTS
    files = sorted(cache.rglob("*.arrow"))
    assert len(files) == 2  # what was read, and what was mapped from it
    for path in files:
        cut(path)
        caplog.clear()
        assert list(load_corpus(settings).rows["text"]) == TEXTS
        assert "is truncated and is written again" in caplog.text
        caplog.clear()
        assert list(load_corpus(settings).rows["text"]) == TEXTS and not caplog.text


def test_rows_in_memory_streams_and_missing_files_pass(settings, tmp_path, caplog):
    rows = Dataset.from_dict({"text": TEXTS[:3]})
    assert list(map_rows(rows, lambda row: {"text": row["text"].upper()})["text"])[2] == "TEXT 2"
    stream = map_rows(rows.to_iterable_dataset(), lambda row: {"text": row["text"].upper()})
    assert next(iter(stream)) == {"text": "TEXT 0"}
    with pytest.raises(FileNotFoundError):
        load_dataset("text", data_files=str(tmp_path / "absent.txt"), split="train")
    assert not caplog.text


def test_a_truncated_description_is_that_of_the_cache_and_written_again(settings, cache, caplog):
    assert list(load_corpus(settings).rows["text"]) == TEXTS
    (info,) = cache.rglob("dataset_info.json")
    os.truncate(info, 40)
    assert list(load_corpus(settings).rows["text"]) == TEXTS
    assert "a file of the datasets cache is truncated" in caplog.text
    caplog.clear()
    assert list(load_corpus(settings).rows["text"]) == TEXTS and not caplog.text


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")])
def test_a_cache_that_cannot_be_written_is_named(settings, cache, caplog, monkeypatch, error):
    def refuse(*args, **options):
        error.filename = str(cache / "text")
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(InputError, match=r"the datasets cache .*cache cannot be written .*; set HF_DATASETS_CACHE"):
        load_corpus(settings)
    assert not caplog.text

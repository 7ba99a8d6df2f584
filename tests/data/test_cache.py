"""Truncated files of the datasets cache are detected and written again, wherever they were cut."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from datasets import Dataset

from mirror.common.errors import InputError
from mirror.data.cache import load_dataset, map_rows, tokenizer_state
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


@pytest.fixture
def folder(tmp_path) -> Path:
    """A dataset that `datasets` reads."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.txt").write_text("\n".join(TEXTS))
    return tmp_path / "data"


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
    assert len(files) == 1
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


def test_a_truncated_description_is_an_error_that_names_the_cache(folder, cache):
    settings = CorpusSource(dataset_name=str(folder))
    assert list(load_corpus(settings).rows["text"]) == TEXTS
    (info,) = cache.rglob("dataset_info.json")
    os.truncate(info, 40)
    with pytest.raises(
        InputError, match=f"not JSON .*; if your files are right, delete the dataset_info.json .* {cache}"
    ):
        load_corpus(settings)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")])
@pytest.mark.parametrize("place", ["cache/text", "."], ids=["inside", "parent"])
def test_a_cache_that_cannot_be_written_is_named(settings, cache, folder, caplog, monkeypatch, error, place):
    def refuse(*args, **options):
        error.filename = str(cache.parent / place)
        raise error

    words = r"the datasets cache .*cache cannot be written .*; set HF_DATASETS_CACHE"
    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    for source in (CorpusSource(dataset_name=str(folder)), settings):
        with pytest.raises(InputError, match=words):
            load_corpus(source)
    assert not caplog.text


def test_a_cache_below_a_file_is_named(settings, cache):
    cache.write_text("")
    with pytest.raises(InputError, match=r"the datasets cache .*cache cannot be written .*; set HF_DATASETS_CACHE"):
        load_corpus(settings)


def write(path: Path, texts: list[str], time: int = 10**18) -> Path:
    """Write the texts and one modification time, as `cp -p`, `rsync -a` and tar do."""
    if path.suffix == ".parquet":
        Dataset.from_dict({"text": texts}).to_parquet(path)
    else:
        path.write_text("".join(f"{text}\n" for text in (["text"] if path.suffix in (".csv", ".tsv") else []) + texts))
    os.utime(path, ns=(time, time))
    return path


@pytest.mark.parametrize("ending", ["txt", "csv", "tsv", "parquet"])
def test_a_file_replaced_by_one_of_the_same_size_and_time_is_read_anew(tmp_path, ending):
    for texts in (["one", "two"], ["six", "ten"], ["one", "two"]):
        path = write(tmp_path / f"a.{ending}", texts)
        assert load_corpus(path).rows["text"][:] == texts


def test_a_link_that_is_switched_between_releases_is_read_anew(tmp_path):
    for release, texts in (("one", ["a"]), ("two", ["b"]), ("one", ["a"])):
        (tmp_path / release).mkdir(exist_ok=True)
        write(tmp_path / release / "a.txt", texts)
        (tmp_path / "current").unlink(missing_ok=True)
        (tmp_path / "current").symlink_to(release)
        assert load_corpus(tmp_path / "current" / "a.txt").rows["text"][:] == texts


@pytest.mark.parametrize("ending", ["txt", "csv", "parquet"])
def test_a_local_folder_of_a_dataset_is_read_anew(tmp_path, ending):
    (tmp_path / "data").mkdir()
    for texts in (["one", "two"], ["six", "ten"]):
        write(tmp_path / "data" / f"train.{ending}", texts)
        assert load_corpus(CorpusSource(dataset_name=str(tmp_path / "data"))).rows["text"][:] == texts


def test_rows_are_stored_once_for_each_choice_of_columns(tmp_path, cache):
    (tmp_path / "a.csv").write_text("title,text\nx,y\n")
    for _ in range(2):
        for options in (
            {},
            {"text_column": "title"},
            {"text_column": ["title", "text"]},
            {"pair_columns": ["title", "text"]},
        ):
            load_corpus(tmp_path / "a.csv", **options)
    assert len(list(cache.rglob("*.arrow"))) == 4 and not list(cache.rglob("*.tmp"))


def test_a_file_that_changes_while_it_is_read_is_not_stored(tmp_path, cache, monkeypatch):
    path = write(tmp_path / "a.txt", TEXTS)
    monkeypatch.setattr("mirror.data.cache.arrow_batches", lambda *args: path.write_text("more") and ())
    with pytest.raises(InputError, match=r"a\.txt changed while it was read"):
        load_corpus(path)
    assert not list(cache.rglob("*.*"))


def test_the_mask_of_a_tokenizer_is_part_of_what_rows_are_found_by(tokenizer):
    other = copy.deepcopy(tokenizer)
    other.mask_token = "[UNK]"
    assert tokenizer_state(copy.deepcopy(tokenizer)) == tokenizer_state(tokenizer) != tokenizer_state(other)

"""A file is complete or absent, and an interrupted replacement of a folder never looks complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from mirror.common.files import atomic_path, atomic_write_text, make_output_folder, replace_files


def test_a_file_is_written_under_a_hidden_name_of_this_process_and_renamed_at_the_end(tmp_path):
    path = tmp_path / "new" / "folder" / "a.json"
    with atomic_path(path) as temporary:
        temporary.write_text("whole")
        assert temporary == path.parent / f"_a.json.{os.getpid()}.tmp" and not path.exists()
    assert [each.name for each in path.parent.iterdir()] == ["a.json"] and path.read_text() == "whole"


def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path):
    atomic_write_text(tmp_path / "a.txt", "東京")
    assert (tmp_path / "a.txt").read_bytes() == "東京".encode()
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "b.txt"):
        raise ZeroDivisionError  # before anything is written
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"a.txt": "東京"}


def test_the_file_that_says_all_is_there_goes_first_and_comes_last(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    for folder, word in ((source, "new"), (target, "old")):
        (folder / "layers").mkdir(parents=True)
        for name in ("a.json", "manifest.json", "z.json", f"layers/{word}.json"):
            (folder / name).write_text(word)
    (target / "kept.txt").write_text("kept")
    moved, move = [], Path.replace

    def recorded(self, to):
        assert not (target / "manifest.json").exists()
        moved.append(self.name)
        return move(self, to)

    monkeypatch.setattr(Path, "replace", recorded)
    replace_files(source, target, last="manifest.json")
    assert moved == ["a.json", "layers", "z.json", "manifest.json"] and not source.exists()
    contents = {path.relative_to(target).as_posix(): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert contents.pop("kept.txt") == "kept"
    assert contents == dict.fromkeys(("a.json", "manifest.json", "z.json", "layers/new.json"), "new")


def test_an_output_folder_may_exist_and_may_be_deep_but_may_be_no_file(tmp_path):
    for _ in range(2):
        assert make_output_folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
        assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--output_dir .*/file cannot be a folder: File exists; choose another path"):
        make_output_folder(tmp_path / "file")

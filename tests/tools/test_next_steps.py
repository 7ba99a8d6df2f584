"""The commands that a run ends with: each is one that its program takes, or runs."""

from __future__ import annotations

import shlex
import sys

import pytest
from datasets import Dataset

from mirror.tools.next_steps import after_encoding, after_scoring, after_training
from tests.documents import ROOT, Block
from tests.test_docs import complaints


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def run(tmp_path):
    """A finished run, in a folder with a space in its name."""
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "train_results.json").touch()
    return str(folder)


def commands(text: str) -> list[list[str]]:
    heading, *lines = text.splitlines()
    assert heading == "next:"
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("started_as", ["/somewhere/run_mirror.py", "/usr/bin/mirror-train"])
def test_every_next_command_is_taken_by_its_program(run, tmp_path, monkeypatch, started_as):
    monkeypatch.setattr(sys, "argv", [started_as])
    results = [tmp_path / "a" / "results.json", tmp_path / "b" / "results.json"]
    texts = (
        after_training(run, "me/base"),
        after_scoring(["me/base", run], results),
        after_scoring(["me/base"], results[:1]),
    )
    for text in texts:
        assert complaints([Block("next", 1, "bash", text.replace("next:\n", ""))], tmp_path) == ""
        assert ("python run_" in text) <= started_as.endswith(".py")


def test_the_scores_of_a_run_go_on_its_card(run, tmp_path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    card, push = commands(after_scoring(["me/base", run], [before, after]))[1:]
    assert card[2:] == ["mirror.tools.model_card", run, "--results", str(before), str(after)]
    assert push[2:4] == ["mirror.tools.push", run]
    (card,) = [words for words in commands(after_scoring([run], [after])) if "mirror.tools.model_card" in words]
    assert card[-2:] == ["--results", str(after)]


def test_the_vectors_are_read_by_the_command_that_is_printed(tmp_path, capsys):
    folder = tmp_path / "the vectors"
    folder.mkdir()
    Dataset.from_dict({"row": [0, 1]}).to_parquet(folder / "shard-000000.parquet")
    ((program, flag, code),) = commands(after_encoding(str(folder)))
    assert (program, flag) == ("python", "-c")
    exec(code, {})
    assert "num_rows: 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("base", "shown"),
    [
        (str(ROOT / "mirror" / "assets" / "mini-mlm"), "mirror/assets/mini-mlm"),
        ("/models/bert", "/models/bert"),
        ("org/bert", "org/bert"),
    ],
)
def test_the_embedded_model_of_a_checkout_is_named_from_the_working_directory(run, base, shown):
    (demo,) = [argv for argv in commands(after_training(run, base)) if "--before" in argv]
    assert demo[-1] == shown

"""Tests that the public API is lazy and documented, and that every Python example of the documentation runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mirror
from tests.documents import ROOT, blocks


PAGES = ("docs/api.md", "README.md")


def test_importing_the_package_imports_no_torch():
    code = "import sys, mirror; mirror.__version__; print('torch' in sys.modules, sorted(mirror.__all__) == mirror.__all__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr


@pytest.mark.parametrize("name", mirror.__all__)
def test_every_name_is_there_and_documented(name):
    assert getattr(mirror, name).__doc__
    assert f"`{name}`" in (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert name in dir(mirror)


@pytest.fixture(scope="module")
def workplace(bert_folder, sentences, tmp_path_factory) -> Path:
    """A folder in which the examples run one after another, as a reader would run them."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("my_texts.txt", "data/docs/train.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(sentences))
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, workplace, bert_folder, monkeypatch):
    """On a tiny model in place of BERT; the folders that an earlier example of the page left are there."""
    monkeypatch.chdir(workplace)
    examples = [block for block in blocks(page) if block.language == "python"]
    assert examples
    for example in examples:
        code = example.text.replace('"bert-base-uncased"', repr(bert_folder))
        exec(compile(code, str(example), "exec"), {"__name__": "example"})

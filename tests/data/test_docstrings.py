"""The docstring corpus: what is read and what is not, and splits that share no summary."""

from __future__ import annotations

import pytest

from data_scripts.pretrain_mini_mlm import pretraining_paragraphs
from mirror.data import docstrings as docstring_corpus
from mirror.data.docstrings import Docstring, search_pairs, split_name, training_texts


SOURCE = '''
def read_csv(path):
    """Read a comma-separated file. Then do more.

    A second paragraph of plain prose about files.

    >>> read_csv("a")
    """

class HTTPServer:
    """Serve requests over a socket."""

    def _private(self):
        """Not part of the public interface."""

def undocumented():
    pass

def terse():
    """Too short."""
'''


def entry(summary: str, name: str = "some name", *more: str) -> Docstring:
    return Docstring(name, summary, (summary, *more))


@pytest.mark.parametrize(
    ("identifier", "words"),
    [("read_csv", "read csv"), ("ReadCSV", "read csv"), ("HTTPServer", "http server"), ("atan2", "atan 2")],
)
def test_names_become_words(identifier, words):
    assert split_name(identifier) == words


def test_what_a_file_gives(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found = docstring_corpus._parse(path)
    assert [(item.name, item.summary) for item in found] == [
        ("read csv", "Read a comma-separated file."),
        ("http server", "Serve requests over a socket."),
    ]
    assert found[0].paragraphs == (
        "Read a comma-separated file. Then do more.",
        "A second paragraph of plain prose about files.",
    )


def test_a_file_that_does_not_parse_gives_nothing(tmp_path):
    for name, content in (("a.py", b"def ("), ("b.py", b"\xff\xfe"), ("c.py", b"x\0")):
        (tmp_path / name).write_bytes(content)
        assert docstring_corpus._parse(tmp_path / name) == []


def test_no_summary_is_in_two_parts():
    entries = [entry(f"Do the thing number {number} to the data.", f"thing {number}") for number in range(400)]
    test, dev = ({summary for _, summary in search_pairs(entries, part)} for part in ("test", "dev"))
    train = {text for text in training_texts(entries) if text.startswith("Do")}
    assert 60 < len(test) < 140  # a quarter of 400, give or take four standard deviations
    assert 20 < len(dev) < 80  # an eighth
    assert len(test) + len(dev) + len(train) == len(test | dev | train) == 400


def summaries_of(*parts: str) -> list[str]:
    texts = (f"Summary with the number {n}." for n in range(99))
    return [text for text in texts if entry(text).part in parts]


def test_each_query_and_each_target_is_there_once():
    held_out = summaries_of("test")
    entries = [entry(held_out[0], "read csv"), entry(held_out[1], "read csv"), entry(held_out[0].upper(), "load csv")]
    assert search_pairs([*entries, entry(held_out[2], "oneword")]) == [("read csv", held_out[0])]


def test_a_held_out_summary_is_in_no_pretraining_paragraph():
    (kept, *_), held_out = summaries_of("train"), summaries_of("dev", "test")
    entries = [*map(entry, held_out), entry(kept, "a name", *held_out, "A paragraph of its own.")]
    assert pretraining_paragraphs(entries) == [kept, "A paragraph of its own."]

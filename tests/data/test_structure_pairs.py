"""Pairs from the structure of documents: of every kind, and what is left out."""

from __future__ import annotations

import json
import sys

import pytest

from mirror.common.errors import InputError
from mirror.data.document_corpus import describe_pairs, structure_pairs
from mirror.data.documents import read_documents
from mirror.tools import documents as tool


FILES = {
    "guide.md": "# City guide\n\nAll about the city of stars.\n\n## Open the door\n\nRead the [list of keys](keys.html#keys)."
    "\n\nThe door is green.\n\n## Introduction\n\nThe first letter of the guide.\n",
    "keys.html": "<h1 id='keys'>Keys</h1><p>The small key opens the old house.</p><h2>Why is it red?</h2><p>The king likes red.</p>",
    "tool.py": '"""Tools to open doors and houses."""\n\n\ndef open_door(key):\n    """Open the old door with a key."""\n',
    **{f"{n}.md": f"# Part {n} of it\n\n## Introduction\n\nThe first letter of part {n}." for n in range(5)},
}


@pytest.fixture
def documents(tokenizer, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return read_documents([str(tmp_path)], tokenizer, 24)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("title", ("City guide", "All about the city of stars.")),
        ("title", ("tool", "Tools to open doors and houses.")),
        ("heading", ("City guide > Open the door", "Read the list of keys. The door is green.")),
        ("question", ("Why is it red?", "The king likes red.")),
        ("link", ("list of keys", "The small key opens the old house.")),
        ("signature", ("open door", "Open the old door with a key.")),
    ],
)
def test_every_kind(kind, expected, documents):
    found = structure_pairs(documents, [kind]).pairs
    assert {pair.kind for pair in found} == {kind}
    assert expected in [(pair.anchor, pair.positive) for pair in found]


def test_a_pair_knows_where_its_passage_is(documents):
    for pair in structure_pairs(documents).pairs:
        name = pair.file.rpartition("/")[2]
        passage = next(each for each in documents[pair.document].passages if each.offset == pair.offset)
        assert (documents[pair.document].file, passage.heading) == (pair.file, pair.heading) and name in FILES


def test_what_is_left_out(tokenizer, tmp_path, documents):
    found = structure_pairs(documents)
    assert not any("Introduction" in pair.anchor for pair in found.pairs)
    assert found.dropped["anchors on more than 3 sections"] == 6
    (tmp_path / "z.md").write_text("# 12\n\nThe king.\n\n## a cat runs\n\nA cat runs\n\n## Short one\n\nOf it")
    (pair,) = structure_pairs(read_documents([str(tmp_path / "z.md")], tokenizer, 24), ["heading"]).pairs
    assert pair.anchor == "12 > a cat runs"  # of which only the path differs
    dropped = structure_pairs(read_documents([str(tmp_path / "z.md")], tokenizer, 24)).dropped
    assert dropped["too short"] == 3
    report = describe_pairs(found)
    assert "question   1; in 0% the second shares" in report and "left out   6: anchors on more" in report


def test_the_command_writes_pairs_and_a_report(documents, tmp_path, capsys, monkeypatch):
    output = tmp_path / "pairs.jsonl"
    monkeypatch.setattr(
        sys, "argv", ["mirror-documents", str(tmp_path), "--output", str(output), "--pairs", "question"]
    )
    tool.main()
    (row,) = map(json.loads, output.read_text().splitlines())
    assert row == {
        **{"anchor": "Why is it red?", "positive": "The king likes red.", "kind": "question"},
        **{"file": str(tmp_path / "keys.html"), "heading": "Keys > Why is it red?"},
        "offset": FILES["keys.html"].index("The king"),
    }
    assert capsys.readouterr().out.startswith("1 pairs\n  question   1; in ")
    monkeypatch.setattr(
        sys, "argv", ["mirror-documents", str(tmp_path / "0.md"), "--output", "none", "--pairs", "link"]
    )
    with pytest.raises(InputError, match=r"0\.md: no pairs; no heading, question, name or link leads to a text"):
        tool.main()
    assert not (tmp_path / "none").exists()

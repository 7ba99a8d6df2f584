"""Documents of every format become passages along their structure, and what cannot be read is named."""

from __future__ import annotations

import json
import logging
import os
import re
import zipfile

import matplotlib
import pptx
import pytest
from matplotlib.figure import Figure

from mirror.common.errors import InputError
from mirror.data.corpus import load_corpus
from mirror.data.document_formats import parse
from mirror.data.documents import are_documents, find_documents, read_documents


MARKDOWN = """---
title: Front matter
---
# Guide

The guide tells you [how to install](#install) the program, and *why*.

## Install

Run the installer first. It asks a few questions.

```bash
pip install program
```

### Windows

| system | file |
| --- | --- |
| Windows | setup.exe |

- Download the file.
- Open it.
"""
HTML = """<html><head><title>Guide — Program</title><style>p {color: red}</style></head><body>
<nav><a href="/">Home of navigation</a></nav><header role="banner">Banner text</header>
<main><section id="guide"><h1>Guide<a class="headerlink" href="#guide">¶</a></h1>
<p>The guide tells you <a href="#install">how to install</a> the program, and <em>why</em>.</p>
<section id="install"><h2>Install</h2><p>Run the installer first. It asks a few questions.</p>
<pre>pip install program</pre><script>var hidden = "script text"</script>
<h3>Windows</h3><table><thead><tr><th>system</th></tr></thead><tr><td>Windows</td><td>setup.exe</td></tr></table>
<ul><li>Download the file.</li><li>Open it.</li></ul></section></section></main>
<footer>Footer text</footer></body></html>"""
RST = """
Guide
=====

The guide tells you :ref:`how to install <install>` the :term:`program`, and *why*.

.. _install:

Install
-------

Run the installer first. It asks a few questions.

.. code-block:: bash

   pip install program

.. toctree::

   navigation

.. autosummary::
   :toctree: generated

   name_of_a_function

Windows
~~~~~~~

.. versionadded:: 2.0
   Windows setup.exe

* Download the file.
* Open it.
"""
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": MARKDOWN.partition("```")[0].partition("---\n# ")[2].join(["# ", ""])},
        {"cell_type": "code", "source": ["pip install program"], "outputs": [{"text": ["output text"]}]},
        {"cell_type": "markdown", "source": MARKDOWN.rpartition("```\n")[2].splitlines(keepends=True)},
    ],
    "nbformat": 4,
}
PARAGRAPHS = [
    ("Guide", "text", "The guide tells you how to install the program, and why."),
    ("Guide > Install", "text", "Run the installer first. It asks a few questions."),
    ("Guide > Install", "code", "pip install program"),
    ("Guide > Install > Windows", "text", "Windows setup.exe Download the file. Open it."),
]


def write_epub(path, chapters):
    with zipfile.ZipFile(path, "w") as book:
        root = '<rootfile full-path="OEBPS/book.opf"/>'
        book.writestr("META-INF/container.xml", f"<container><rootfiles>{root}</rootfiles></container>")
        items = "".join(f'<item id="c{number}" href="{number}.xhtml"/>' for number in range(len(chapters)))
        spine = "".join(f'<itemref idref="c{number}"/>' for number in range(len(chapters)))
        title = '<title xmlns="http://purl.org/dc/elements/1.1/">The Book</title>'
        book.writestr(
            "OEBPS/book.opf",
            f"<package><metadata>{title}</metadata><manifest>{items}</manifest><spine>{spine}</spine></package>",
        )
        for number, chapter in enumerate(chapters):
            book.writestr(f"OEBPS/{number}.xhtml", chapter)


def write_office(path, sections):
    """Write a heading and a paragraph for each section: one level below the last in Word, a slide in PowerPoint."""
    if path.suffix == ".docx":
        names = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
        body = ""
        for level, (heading, paragraph) in enumerate(sections, 1):
            style = f'<w:pPr><w:pStyle w:val="Heading{level}"/></w:pPr>'
            body += f"<w:p>{style}<w:r><w:t>{heading}</w:t></w:r></w:p><w:p><w:r><w:t>{paragraph}</w:t></w:r></w:p>"
        with zipfile.ZipFile(path, "w") as document:
            root = f'<w:document xmlns:w="{names}"><w:body>{body}</w:body></w:document>'
            document.writestr("word/document.xml", root)
    elif path.suffix == ".pptx":
        slides = pptx.Presentation()
        for heading, paragraph in sections:
            slide = slides.slides.add_slide(slides.slide_layouts[1])
            slide.shapes.title.text, slide.placeholders[1].text = heading, paragraph
        slides.save(path)
    else:
        figure = Figure()
        for line, text in enumerate(text for section in sections for text in section):
            figure.text(0.1, 0.9 - 0.2 * line, text)
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            figure.savefig(path)


def read(path, tokenizer, max_tokens=64):
    documents = read_documents([str(path)], tokenizer, max_tokens)
    return [(passage.heading, passage.kind, passage.text) for document in documents for passage in document.passages]


def test_the_names_of_chapters_are_addresses(tokenizer, tmp_path):
    write_epub(tmp_path / "a.epub", ["<p>The first chapter is here.</p>"])
    with zipfile.ZipFile(tmp_path / "a.epub") as book, zipfile.ZipFile(tmp_path / "b.epub", "w") as other:
        for name in book.namelist():
            content = book.read(name).replace(b'href="0.xhtml"', b'href="../Text/chapter%201.xhtml"')
            other.writestr("Text/chapter 1.xhtml" if name.endswith("0.xhtml") else name, content)
    assert read(tmp_path / "b.epub", tokenizer) == read(tmp_path / "a.epub", tokenizer) != []


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.md", MARKDOWN), ("a.html", HTML), ("a.rst", RST), ("a.ipynb", json.dumps(NOTEBOOK)), ("a.epub", HTML)],
)
def test_every_format_has_the_same_structure(name, content, tokenizer, tmp_path):
    path = tmp_path / name
    if name == "a.epub":
        write_epub(path, [content])
    else:
        path.write_text(content, encoding="utf-8")
    assert read(path, tokenizer) == PARAGRAPHS
    if name != "a.epub":
        for passage in read_documents([str(path)], tokenizer, 64)[0].passages[:3]:
            assert content[passage.offset :].startswith(passage.text.split()[0])


@pytest.mark.parametrize(
    ("name", "headings"), [("a.docx", ("Guide", "Guide > Install")), ("a.pptx", ("Guide", "Install")), ("a.pdf", None)]
)
def test_office_files(name, headings, tokenizer, tmp_path):
    """PDF has paragraphs only."""
    sections = [("Guide", "It tells you why."), ("Install", "Run the installer first.")]
    write_office(tmp_path / name, sections)
    if headings:
        expected = [(heading, "text", text) for heading, (_, text) in zip(headings, sections, strict=True)]
    else:
        expected = [("", "text", "Guide It tells you why. Install Run the installer first.")]
    assert read(tmp_path / name, tokenizer) == expected
    write_office(tmp_path / f"scan-{name}", [("", "")])
    with pytest.raises(InputError, match="no text in it; a scan needs text recognition"):
        parse(tmp_path / f"scan-{name}")
    content = (tmp_path / name).read_bytes()
    for damaged in (content[: len(content) // 2], b"PK", b"%PDF-1.4 plain text", b"Plain text.", b"<p>A page.</p>"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(InputError, match=r"^damaged \((BadZipFile|PDFSyntaxError|PSEOF): "):
            parse(tmp_path / name)


@pytest.mark.parametrize("ending", ["docx", "pptx", "pdf"])
def test_office_files_without_the_extras_of_markitdown(ending, tmp_path, monkeypatch):
    write_office(tmp_path / f"a.{ending}", [("Guide", "It tells you why.")])
    missing = (ImportError, ImportError("none"), None)
    monkeypatch.setattr(f"markitdown.converters._{ending}_converter._dependency_exc_info", missing)
    with pytest.raises(InputError, match=r"^needs pip install 'mirror-encoders\[documents\]'"):
        parse(tmp_path / f"a.{ending}")


PYTHON = '''#!/usr/bin/env python
"""Tools for reading files of many formats."""

# Set by the tests and read by nobody else.
LIMIT = 3
\f

class CsvReader:
    """Read tables of comma-separated values.

    >>> CsvReader()

    Parameters
    ----------
    path: str
    """

    def next_row(self):
        """Return the next row as a list."""
        # The last row may lack
        # its line end, as Excel writes it.
        return []


if True:

    def count_rows(path):
        """Count the rows of a file without its header."""
'''


def test_python_gives_docstrings_and_comments_under_names(tokenizer, tmp_path):
    path = tmp_path / "tables.py"
    path.write_text(PYTHON)
    (document,) = read_documents([str(path)], tokenizer, 64)
    assert document.title == "tables"  # words of its name
    assert [(passage.heading, passage.kind, passage.text) for passage in document.passages] == [
        ("", "docstring", "Tools for reading files of many formats."),
        ("", "comment", "Set by the tests and read by nobody else."),
        ("CsvReader", "docstring", "Read tables of comma-separated values."),
        ("CsvReader > next_row", "docstring", "Return the next row as a list."),
        ("CsvReader > next_row", "comment", "The last row may lack its line end, as Excel writes it."),
        ("count_rows", "docstring", "Count the rows of a file without its header."),
    ]
    lines = [PYTHON[: passage.offset].count("\n") + 1 for passage in document.passages]
    assert lines == [2, 4, 9, 19, 21, 28]


def test_comments_for_tools_are_no_prose(tokenizer, tmp_path):
    comments = [
        "#!/usr/bin/python",
        "# pylint: disable=too-many-lines",
        "#type: ignore",
        "# noqa because of the import",
    ]
    (tmp_path / "a.py").write_text("\n".join([*comments, "# Type of the rows of a table."]))
    assert [text for _, _, text in read(tmp_path, tokenizer)] == ["Type of the rows of a table."]


def test_txt_has_paragraphs_or_else_lines(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("The cat runs.\nThe dog runs.\n")
    (tmp_path / "b.txt").write_text("The cat\nruns.\n\nThe dog runs.\n")
    assert [text for _, _, text in read(tmp_path, tokenizer)] == [
        *("The cat runs.", "The dog runs."),
        "The cat runs. The dog runs.",
    ]


def test_a_line_of_dashes_is_no_text(tokenizer, tmp_path):
    rule = "-" * 40
    (tmp_path / "a.txt").write_text(f"The cat.\n\n{rule}\n\nThe dog.\n\n* * *\n\n猫。")
    assert [text for _, _, text in read(tmp_path, tokenizer)] == ["The cat. The dog. 猫。"]


def test_questions_terms_and_folded_parts_are_headings(tokenizer, tmp_path):
    page = "<p><b>Why does it rain?</b></p><p>Because of clouds.</p><h2>Words</h2><dl><dt>cat</dt><dd>An animal.</dd></dl>"
    page += "<p>After the list.</p><details><summary>More</summary><p>Inside.</p></details><p>After it.</p>"
    (tmp_path / "a.html").write_text(page)
    assert [(heading, text) for heading, _, text in read(tmp_path / "a.html", tokenizer)] == [
        ("Why does it rain?", "Because of clouds."),
        ("Words > cat", "An animal."),
        ("Words", "After the list."),
        ("Words > More", "Inside."),
        ("Words", "After it."),
    ]


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level BPE"])
def test_passages_fit_and_never_split_a_word(kind, tokenizer, tmp_path):
    if kind != "wordpiece":
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
        from transformers import PreTrainedTokenizerFast

        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>", "<pad>"])
        inner.train_from_iterator(["the cat runs to the river and the dog sleeps"], trainer)
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")
    sentence = "The cat walks to the river and sees a fish. "
    text = f"# Head\n\n{sentence * 3}\n\nA dog.\n\n{' '.join(['river'] * 70)}\n\nThe end."
    (tmp_path / "a.md").write_text(text)
    (document,) = read_documents([str(tmp_path / "a.md")], tokenizer, 32)
    texts = [passage.text for passage in document.passages]
    assert " ".join(texts).split() == text.replace("# Head", "").split()  # nothing is lost or cut
    assert len(texts) > 4 and max(len(ids) for ids in tokenizer(texts)["input_ids"]) <= 32


def test_pieces_of_a_long_block_have_their_own_places(tokenizer, tmp_path):
    lines = ["def walk(tree):"] + [f"    if tree.kind == {n}:\n\n        return tree.child({n})" for n in range(12)]
    prose = "The cat walks to the river. It sees a fish there. " * 4
    content = "# Head\n\n" + prose + "\n\n```python\n" + "\n".join(lines) + "\n```\n"
    (tmp_path / "a.md").write_text(content)
    (document,) = read_documents([str(tmp_path / "a.md")], tokenizer, 24)
    text, code = ([each for each in document.passages if each.kind == kind] for kind in ("text", "code"))
    assert len(text) > 2 and len(code) > 3
    for passage in document.passages:
        first = passage.text.split("\n")[0]
        assert content[passage.offset :].startswith(first), passage
    assert len({passage.offset for passage in document.passages}) == len(document.passages)
    assert any(line.startswith("        return") for passage in code for line in passage.text.split("\n"))


def test_paragraphs_that_repeat_over_files_are_left_out(tokenizer, tmp_path, caplog):
    for number in range(6):
        (tmp_path / f"{number}.md").write_text(
            f"Copyright of the city.\n\n# Title {number}\n\nThe text number {number}."
        )
    with caplog.at_level(logging.INFO):
        found = read(tmp_path, tokenizer)
    assert [text for _, _, text in found] == [f"The text number {number}." for number in range(6)]
    assert "left out 6 paragraphs that repeat over many files" in caplog.text
    for number in range(6):
        (tmp_path / f"{number}.md").write_text("# Copyright\n\nCopyright of the city.")
    with pytest.raises(
        InputError, match="no text under them; left out 6 paragraphs that repeat over many files; is it"
    ):
        read(tmp_path, tokenizer)


def test_a_folder_is_read_in_order_without_hidden_files_and_circles(tokenizer, tmp_path):
    for name in ("b/two.md", "a.md", "b/.git/no.md", "node_modules/no.md", ".hidden.md", "b/data.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"The text of {name}")
    (tmp_path / "b" / "circle").symlink_to(tmp_path)
    (tmp_path / "b" / "broken.md").symlink_to("nowhere.md")
    (tmp_path / "own.md").symlink_to("own.md")
    os.mkfifo(tmp_path / "pipe.md")
    assert [path.relative_to(tmp_path).as_posix() for path in find_documents([str(tmp_path)])] == ["a.md", "b/two.md"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.md"], True),
        (["sub/a.md"], True),
        (["a.txt"], True),
        (["a.csv"], False),
        (["a.csv", "b.txt"], False),
        (["a.csv", "b.md"], True),
        (["a.jsonl.gz"], False),
        ([], False),
    ],
)
def test_what_is_a_folder_of_documents(names, expected, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    assert are_documents([str(tmp_path)]) is expected
    assert not are_documents([str(tmp_path / "a.txt"), "texts.csv"]) and are_documents(["manual.MD"])


@pytest.mark.parametrize("table", ["", "a.csv"])
def test_tables_beside_documents_are_named_once(table, tokenizer, tmp_path, caplog):
    (tmp_path / "b.md").write_text("# Head\n\nThe cat runs to the river.")
    if table:
        (tmp_path / table).write_text("text\na cat\n")
    assert are_documents([str(tmp_path)])
    read(tmp_path, tokenizer)
    assert caplog.text.count("reading its documents, not its tables") == bool(table)


BAD = {
    "binary.md": (b"a\0b", "not a text file"),
    "latin.md": ("Größe".encode("latin-1"), "not UTF-8"),
    "broken.ipynb": (b"{", "damaged"),
    "list.ipynb": (b"[]", "damaged"),
    "broken.epub": (b"PK", "damaged"),
    "python2.py": (b"print 1", "damaged"),
    "empty.html": (b"", "no text in it"),
    "deep.html": (b"<div>" * 5_000, "no text in it|damaged"),
    "script.html": (b"<script>text</script>", "no text in it"),
    "office.docx": (b"PK", "pip install 'mirror-encoders|damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_and_the_rest_goes_on(name, tokenizer, tmp_path, caplog):
    content, problem = BAD[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "good.md").write_text("The cat runs.")
    found = read(tmp_path, tokenizer)
    assert [text for _, _, text in found] == ["The cat runs."]
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert name in warning and re.search(problem, warning)
    (tmp_path / "good.md").unlink()
    with pytest.raises(InputError, match=f"{name}: .*({problem})"):
        read(tmp_path, tokenizer)


def test_names_that_match_no_document(tokenizer, tmp_path):
    (tmp_path / "a.md").write_text("The cat runs.")
    assert read(tmp_path / "*.md", tokenizer) == [("", "text", "The cat runs.")]
    for name, problem in (
        ("none.md", "no such file or folder"),
        ("*.html", "no such file"),
        ("x.csv", "not a document"),
    ):
        (tmp_path / "x.csv").touch()
        with pytest.raises(InputError, match=problem):
            read(tmp_path / name, tokenizer)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "image.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match="empty: no texts or documents in this folder"):
        load_corpus(tmp_path / "empty")


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.md", "# Only a title"), ("a.py", "def open_door():\n    return 1\n"), ("b.md", "```\ncode\n```")],
)
def test_documents_without_prose_are_one_line(name, content, tokenizer, tmp_path):
    (tmp_path / name).write_text(content)
    problem = "headings and names, but no text under them" if name[0] == "a" else "only code, no prose to train on"
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))}: {problem}"):
        load_corpus(tmp_path)
    if name == "b.md":  # a search may be for code
        assert read(tmp_path, tokenizer) == [("", "code", "code")]


def test_a_large_file_and_a_name_of_bytes(tokenizer, tmp_path, caplog):
    with (tmp_path / "large.html").open("wb") as file:
        file.truncate(100 << 20)
    (tmp_path / os.fsdecode(b"gr\xfc\xdfe.md")).write_text("The cat runs.")
    (document,) = read_documents([str(tmp_path)], tokenizer, 64)
    assert document.file.endswith("gr\\xfc\\xdfe.md")
    assert "large.html: left out, 100 MB, and a document may have 32; split it" in caplog.text


def test_many_files_are_read_by_several_processes_in_order(tokenizer, tmp_path):
    for number in range(70):
        (tmp_path / f"{number:02}.md").write_text(f"The text number {number}.")
    documents = read_documents([str(tmp_path)], tokenizer, 64, num_proc=2)
    assert [document.passages[0].text for document in documents] == [
        f"The text number {number}." for number in range(70)
    ]


def test_files_named_by_restructured_text_are_not_opened(tokenizer, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "a.rst").write_text(
        "The cat runs.\n\n.. include:: secret.txt\n\n.. raw:: html\n   :file: secret.txt\n"
    )
    assert [text for _, _, text in read(tmp_path / "a.rst", tokenizer)] == ["The cat runs."]


def test_a_page_of_docbook_has_its_title_once_and_no_navigation(tokenizer, tmp_path):
    name = "4.2. Joins"
    (tmp_path / "page.html").write_text(
        f"<html><head><title>{name}</title></head><body><div class='navheader'><table><tr><th>{name}</th></tr>"
        f"<tr><td>Prev</td><td>Next</td></tr></table></div><div class='sect1'><h2 class='title'>{name}</h2>"
        "<p>A join combines rows.</p><h3>Inner joins</h3><p>They keep matches.</p></div>"
        "<div class='navfooter'>Prev Home Next</div></body></html>"
    )
    (document,) = read_documents([str(tmp_path / "page.html")], tokenizer, 64)
    assert document.title == name
    assert [(passage.heading, passage.text) for passage in document.passages] == [
        (name, "A join combines rows."),
        (f"{name} > Inner joins", "They keep matches."),
    ]


SPHINX = """
Guide
=====

.. autoclass:: Program
   :members:
   :inherited-members:

.. code-block:: python
   :caption: run.py
   :emphasize-lines: 2

   run(program)

.. note:: A short note.

.. admonition:: Heading of it
   :class: tip

   Body of the admonition.

.. tab-set::
   :sync-group: system

   .. tab-item:: Windows
      :sync: windows

      Inside of a tab.

.. deprecated:: 3.0 Use :func:`~program.start` or :ref:`this section <start>` instead.

See :ref:`a-label-without-title`.
"""
DIALECTS = """# Guide {#first-part}

!!! note "Title of it"

    Body of the admonition of MkDocs.

=== "Linux"

    Inside of a tab of pymdownx, with [a link](other.md){.internal target=_blank}.

:::tip[Hint]

Body of the container of Docusaurus.

:::

:::{card} Title of a card
:link: other.md
Body of the card of MyST.
:::

/// warning | Title

Body of the block of pymdownx.

///

```{note}
:class: wide
Body of the fence of MyST, with {ref}`a section <start>`.
```

```{code-cell} python
run(program)
```

````markdown
=== "Code"
:::{card}
:link: stays.md
````

Term
:   Its definition.
"""


def texts_of_blocks(tmp_path, name, content, kind="text"):
    (tmp_path / name).write_text(content)
    return [block.text for block in parse(tmp_path / name).blocks if block.kind == kind and block.text]


@pytest.mark.parametrize("name", ["guide.rst", "guide.txt"])
def test_directives_of_sphinx_are_read_without_their_options(name, tmp_path):
    assert texts_of_blocks(tmp_path, name, SPHINX) == [
        *("Note", "A short note.", "Heading of it", "Body of the admonition.", "Inside of a tab."),
        *("Use start or this section instead.", "See a-label-without-title."),
    ]
    assert texts_of_blocks(tmp_path, name, SPHINX, "code") == ["run(program)"]
    links = [block.links for block in parse(tmp_path / name).blocks if block.links]
    assert links == [(("this section", "#start"),)]  # a label is no text to search by


def test_a_title_of_front_matter_is_a_text_and_no_list_of_aliases(tmp_path):
    (tmp_path / "a.md").write_text("---\na: &a [x, x]\nb: &b [*a, *a]\ntitle: [*b, *b]\n---\n\n# Heading\n\nA text.\n")
    (tmp_path / "b.md").write_text("---\ntitle: 2026\n---\n\n# Heading\n\nA text.\n")
    (tmp_path / "c.md").write_text("---\ntitle: 2026-11-29\n---\n\nA text.\n")  # YAML reads a date
    assert [parse(tmp_path / f"{name}.md").title for name in "abc"] == ["", "2026", "2026-11-29"]


def test_dialects_of_markdown_are_prose(tmp_path):
    assert texts_of_blocks(tmp_path, "guide.md", DIALECTS) == [
        *("Title of it", "Body of the admonition of MkDocs.", "Linux", "Inside of a tab of pymdownx, with a link."),
        "Body of the container of Docusaurus.",
        "Body of the card of MyST.",
        *("Body of the block of pymdownx.", "Body of the fence of MyST, with a section.", "Its definition."),
    ]
    shown = '=== "Code"\n:::{card}\n:link: stays.md'
    assert texts_of_blocks(tmp_path, "guide.md", DIALECTS, "code") == ["run(program)", shown]
    assert texts_of_blocks(tmp_path, "guide.md", DIALECTS, "heading") == ["Guide", "Term"]
    assert parse(tmp_path / "guide.md").blocks[0].ids == ("first-part", "guide")


@pytest.mark.parametrize(
    "content, headings",
    [
        ("====\nNews\n====\n\nSome text.\n", ["News"]),
        (".. _news:\n\nNews\n====\n\nSome text.\n", ["News"]),
        ("News\n====\n\nSome text.\n", []),
        ("Dear all,\n\n.. well.\n", []),
    ],
)
def test_a_text_file_may_be_restructured_text(content, headings, tmp_path):
    assert texts_of_blocks(tmp_path, "news.txt", content, "heading") == headings

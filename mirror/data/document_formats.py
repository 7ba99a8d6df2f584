"""Parsers of documents. Every format becomes blocks in reading order: headings, paragraphs, code.

Markdown, reStructuredText, notebooks and EPUB become HTML by their own parsers, so that one reader of HTML decides
what is a heading, a paragraph or navigation.
"""

from __future__ import annotations

import ast
import codecs
import io
import json
import re
import tokenize
import warnings
import zipfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple
from xml.etree import ElementTree

from mirror.common.errors import InputError, reason


HEADINGS = {f"h{level}": level for level in range(1, 7)}
TERM = 7  # level of what is no heading but acts as one: a term of a list, a summary, a bold question
INLINE = frozenset(
    "a abbr acronym b bdi bdo big br cite code data del dfn em font i ins kbd label mark q s samp small span strike "
    "strong sub sup td th time tt u var wbr".split()
)
LEFT_OUT = frozenset(
    "aside button canvas footer form head iframe nav noscript object script select style svg template thead".split()
)
# Pages of before HTML 5 name their navigation by classes: Sphinx's, DocBook's (PostgreSQL, Debian) and Bootstrap's.
LEFT_OUT_CLASSES = frozenset(
    "anchor-link breadcrumb breadcrumbs docinfo field-list footer headerlink nav navbar navfooter navheader navigation "
    "pagination related sidebar sphinxsidebar table-of-contents toc".split()
)
LEFT_OUT_ROLES = {"navigation", "search", "contentinfo", "banner"}
MAX_BYTES = 32 << 20  # of a document, unpacked: a larger file is data, and its tree would need gigabytes
# Directives of Sphinx: lists of names, and what has a name and a definition.
NO_PROSE = frozenset("autosummary currentmodule highlight index module plot testcode testsetup toctree".split())
DEFINED = frozenset("attribute class data decorator envvar exception function method option property".split())
_NOT_PROSE = re.compile(r">>>|----|====|::\s*$")


class Block(NamedTuple):
    """A piece of a document."""

    kind: str  # heading, definition (a function or class); text, docstring, comment, line (never joined), code
    text: str
    level: int = 0  # of a heading, from 1. One without text ends the sections of its level
    ids: tuple[str, ...] = ()  # fragments of links that lead here
    links: tuple[tuple[str, str], ...] = ()  # text and address of the links in it
    offset: int = 0  # characters before it


class Parsed(NamedTuple):
    """A parsed document. `title` is empty where only its first heading names it."""

    title: str
    blocks: list[Block]


def html_blocks(text: str) -> Parsed:
    """Return the title of a page and the blocks of its main content."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(text)
    articles = tree.css("article")
    main = tree.css_first("main") or tree.css_first("[role=main]") or (articles[0] if len(articles) == 1 else None)
    reader = _Reader()
    if root := main or tree.body:
        reader.read(root)
        reader.end("text")
    title = tree.css_first("head > title")
    return Parsed(squeezed(title.text()) if title else "", reader.blocks)


class _Reader:
    """Collects the blocks below a node."""

    def __init__(self):
        self.blocks: list[Block] = []
        self.words: list[str] = []  # of the block that is being read
        self.ids: list[str] = []
        self.links: list[tuple[str, str]] = []

    def read(self, node) -> None:
        for child in node.iter(include_text=True):
            tag = child.tag
            if tag == "-text":
                self.words.append(child.text())
                continue
            attributes = child.attributes
            classes = (attributes.get("class") or "").split()
            is_chrome = attributes.get("role") in LEFT_OUT_ROLES or not LEFT_OUT_CLASSES.isdisjoint(classes)
            if tag in LEFT_OUT or tag.startswith("-") or is_chrome or "hidden" in attributes:
                continue
            self.ids += [attributes[name] for name in ("id", "name") if attributes.get(name)]
            if tag in INLINE:
                start = len(self.words)
                self.words += [" "] if tag in ("br", "td", "th") else []
                self.read(child)
                text = squeezed("".join(self.words[start:])) if tag == "a" else ""
                if text in ("#", "¶"):  # the link of a heading to itself
                    del self.words[start:]
                elif text and attributes.get("href"):
                    self.links.append((text, attributes["href"]))
                continue
            self.end("text")
            if tag == "pre":
                self.words = [child.text().strip("\n")]
                self.end("code")
                continue
            self.read(child)
            acts_as_heading = tag in ("dt", "summary") or (tag == "p" and _is_bold_question(child))
            if tag in HEADINGS or acts_as_heading:
                self.end("heading", HEADINGS.get(tag, TERM))
            else:
                self.end("text")
            if tag in ("dl", "details"):
                self.blocks.append(Block("heading", "", TERM))

    def end(self, kind: str, level: int = 0) -> None:
        """End a block. One without text is left out, and its ids belong to the next one."""
        text = "".join(self.words)
        if text := text if kind == "code" else squeezed(text):
            if kind == "heading":  # the fragment as GitHub makes it
                self.ids.append(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
            self.blocks.append(Block(kind, text, level, tuple(self.ids), tuple(self.links)))
            self.ids = []
        self.words, self.links = [], []


def _is_bold_question(paragraph) -> bool:
    inner = [child for child in paragraph.iter(include_text=True) if child.text().strip()]
    return len(inner) == 1 and inner[0].tag in ("b", "strong") and inner[0].text().rstrip().endswith("?")


def squeezed(text: str) -> str:
    """Return a text in one line, with single spaces."""
    return " ".join(text.split())


def located(source: str, blocks: list[Block]) -> list[Block]:
    """Return the blocks with their places in the source: that of their first two words, after the block before.

    The parsers do not tell. Marks between two words (tags, emphasis) may count as up to six words.
    """
    starts, places = [], defaultdict(list)
    for number, word in enumerate(re.finditer(r"\w+", source)):
        starts.append(word.start())
        places[word.group()].append(number)
    at, found = 0, []
    for block in blocks:
        first, second, *_ = [*re.findall(r"\w+", block.text[:200]), "", ""]
        later = places[first][(start := bisect_left(places[first], at)) : start + 50]
        seconds = places[second]
        near = [
            here for here in later if any(word <= here + 7 for word in seconds[bisect_left(seconds, here + 1) :][:1])
        ]
        at = (near or later or [at])[0]
        found.append(block._replace(offset=starts[min(at, len(starts) - 1)] if starts else 0))
        at += bool(later)
    return found


def parse(path: Path) -> Parsed:
    """Return title and blocks of a file, by its ending.

    Raises an `InputError`, which does not name the file, if it is too large, damaged or not text.
    """
    size, ending = path.stat().st_size, path.suffix.lower()
    if size > MAX_BYTES:
        raise InputError(f"{size >> 20} MB, and a document may have {MAX_BYTES >> 20}; split it")
    try:
        if ending in BINARY_FORMATS:
            title, blocks = BINARY_FORMATS[ending](path)
            return Parsed(title, located("\n".join(block.text for block in blocks), blocks))
        text = read_text(path)
        title, blocks = TEXT_FORMATS[ending](text)
        if ending == ".ipynb":
            text = text.replace("\\n", "  ")  # JSON's line break, which looks like a letter
        return Parsed(title, blocks if ending == ".py" else located(text, blocks))
    except ImportError as error:
        raise InputError("needs pip install 'mirror-encoders[documents]'") from error
    except (InputError, OSError):
        raise
    except Exception as error:  # as many types as there are parsers
        raise InputError(f"damaged ({reason(error)[:120]})") from error


def read_text(path: Path) -> str:
    """Return the text of a file: UTF-8, UTF-16 with a byte order mark, or the encoding that the file declares."""
    content = path.read_bytes()
    declared = re.search(rb"(?:charset|coding)\s*[=:]\s*[\"']?([-\w.]+)", content[:1024])
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    for encoding in ("utf-16" if is_wide else "utf-8-sig", declared[1].decode() if declared else "utf-8"):
        try:
            text = content.decode(encoding)
        except (LookupError, UnicodeError):
            continue
        if "\0" in text:
            raise InputError("not a text file (a NUL byte)")
        return text
    raise InputError("not UTF-8; convert it, e.g. with iconv")


def _markdown(text: str) -> Parsed:
    import yaml
    from markdown_it import MarkdownIt

    fields = {}
    if front := re.match(r"---\r?\n(.{0,10000}?)\n---\r?\n", text, re.DOTALL):
        text = text[front.end() :]
        with suppress(yaml.YAMLError, ValueError):
            fields = yaml.safe_load(front[1])
    title = squeezed(str(fields.get("title") or "")) if isinstance(fields, dict) else ""
    own_title, blocks = html_blocks(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
    return Parsed(title or own_title, blocks)


def _rst(text: str) -> Parsed:
    from docutils.core import publish_parts
    from docutils.parsers.rst import roles

    if roles.role.__module__ == roles.__name__:  # once in a process
        _accept_sphinx()
    settings = {"doctitle_xform": False, "report_level": 5, "halt_level": 5, "syntax_highlight": "none"}
    settings |= {"file_insertion_enabled": False, "raw_enabled": False, "_disable_config": True}
    settings |= {"embed_stylesheet": False, "math_output": "LaTeX", "initial_header_level": 1}
    return html_blocks(publish_parts(text, writer="html5", settings_overrides=settings)["body"])


def _accept_sphinx() -> None:
    """Let docutils read what Sphinx adds: an unknown role becomes its text, an unknown directive its content.

    docutils has no hook for that. Sphinx replaces the same two functions.
    """
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives, roles

    class Content(Directive):
        optional_arguments, final_argument_whitespace, has_content = 1000, True, True
        option_spec: ClassVar = defaultdict(lambda: directives.unchanged)

        def run(self) -> list[nodes.Node]:
            name, inner, text = self.name.rpartition(":")[2], nodes.definition(), " ".join(self.arguments)
            if name in NO_PROSE:
                return []
            is_definition = name in DEFINED and bool(text)
            if not is_definition and len(self.arguments) > 2:  # ".. versionadded:: 3.2 The whole text"
                inner += nodes.paragraph("", text.lstrip("0123456789. "))
            self.state.nested_parse(self.content, self.content_offset, inner)
            item = nodes.definition_list_item("", nodes.term("", text), inner)
            return [nodes.definition_list("", item)] if is_definition else inner.children

    def as_text(name, rawtext, text, lineno, inliner, options=None, content=None):
        shown, _, target = (part.strip(" >") for part in text.partition("<"))
        shown = shown.rpartition(".")[2] if shown.startswith("~") else shown.lstrip("!")
        if name not in ("ref", "doc"):
            return [nodes.inline(rawtext, shown)], []
        address = f"{target or text}.rst" if name == "doc" else f"#{nodes.make_id(target or text)}"
        return [nodes.reference(rawtext, shown, refuri=address)], []

    def or_else(find: Callable, default: object) -> Callable:
        return lambda *arguments: (find(*arguments)[0] or default, [])

    roles.role, directives.directive = or_else(roles.role, as_text), or_else(directives.directive, Content)


def _txt(text: str) -> Parsed:
    """Return paragraphs at blank lines. Without a blank line, each line is a text of its own."""
    text = text.replace("\r\n", "\n").strip("\n")
    paragraphs = re.split(r"\n[^\S\n]*\n", text)
    kind, parts = ("text", paragraphs) if len(paragraphs) > 1 else ("line", text.split("\n"))
    return Parsed("", [Block(kind, squeezed(part)) for part in parts if part.strip()])


def _notebook(text: str) -> Parsed:
    """Return what the cells contain, without their outputs."""
    notebook, parts = json.loads(text), []
    for cell in (cell for sheet in notebook.get("worksheets", [notebook]) for cell in sheet["cells"]):
        source = "".join(cell.get("source", cell.get("input", "")))
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(f"~~~~~~~~~~~~\n{source}\n~~~~~~~~~~~~")
    return _markdown("\n\n".join(parts))


def _epub(path: Path) -> Parsed:
    with zipfile.ZipFile(path) as book:

        def read(name: str) -> bytes:
            if book.getinfo(name).file_size > MAX_BYTES:
                raise InputError(f"{name} unpacks to over {MAX_BYTES >> 20} MB")
            return book.read(name)

        place = ElementTree.fromstring(read("META-INF/container.xml")).find(".//{*}rootfile").attrib["full-path"]
        package = ElementTree.fromstring(read(place))
        files = {item.attrib["id"]: item.attrib["href"] for item in package.iterfind(".//{*}item")}
        chapters = [files[item.attrib["idref"]] for item in package.iterfind(".//{*}itemref")]
        folder = place.rpartition("/")[0]
        blocks = [
            block for name in chapters for block in html_blocks(read(f"{folder}/{name}".lstrip("/")).decode()).blocks
        ]
    return Parsed(squeezed(package.findtext(".//{http://purl.org/dc/elements/1.1/}title") or ""), blocks)


def _office(path: Path) -> Parsed:
    from markitdown import MarkItDown

    text = MarkItDown(enable_plugins=False).convert_local(str(path)).markdown
    if not text.strip():
        raise InputError("no text in it; a scan needs text recognition first")
    return _markdown(text)


def _python(text: str) -> Parsed:
    """Return the prose of docstrings and comments under the names of what they document."""
    with warnings.catch_warnings():  # about invalid escapes in files of others
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    found: list[tuple[float, Block]] = []  # by line
    for level, node in [(0, tree), *_definitions(tree, 1)]:
        if level:
            found += [(node.lineno, Block("definition", node.name, level))]
            found += [(node.end_lineno + 0.5, Block("heading", "", level))]  # what follows belongs to the level above
        for part in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
            found += [(node.body[0].lineno, Block("docstring", squeezed(part)))] if _is_prose(part) else []
    comments: dict[int, str] = {}  # by the last of its lines
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_whole_line = token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
        if is_whole_line and not token.string.startswith("#!"):
            line = token.start[0]
            comments[line] = f"{comments.pop(line - 1, '')} {token.string.lstrip('# ')}".strip()
    found += [(line, Block("comment", comment)) for line, comment in comments.items() if _is_prose(comment)]
    starts = [0, *(end.end() for end in re.finditer(r"\r\n?|\n", text))]  # `splitlines` also splits at a form feed
    found.sort(key=lambda each: each[0])
    return Parsed("", [block._replace(offset=starts[int(line) - 1]) for line, block in found])


def _definitions(node: ast.AST, level: int) -> Iterator[tuple[int, ast.FunctionDef | ast.ClassDef]]:
    """Yield the functions and classes below a node, each with the number of those that it is in, itself included."""
    for child in ast.iter_child_nodes(node):
        is_definition = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_definition:
            yield level, child
        if isinstance(child, ast.stmt | ast.excepthandler):  # also such as `if` or `try`
            yield from _definitions(child, level + is_definition)


def _is_prose(text: str) -> bool:
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return len(text) >= 15 and letters > 0.8 * len(text) and not _NOT_PROSE.search(text)


TEXT_FORMATS: dict[str, Callable[[str], Parsed]] = {
    **{".md": _markdown, ".markdown": _markdown, ".rst": _rst, ".txt": _txt, ".ipynb": _notebook, ".py": _python},
    **dict.fromkeys((".html", ".htm", ".xhtml"), html_blocks),
}
BINARY_FORMATS: dict[str, Callable[[Path], Parsed]] = {
    ".epub": _epub,
    **dict.fromkeys((".pdf", ".docx", ".pptx"), _office),
}

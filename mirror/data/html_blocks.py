"""Blocks of an HTML page, in reading order, without navigation, scripts and styles, and their places in a source."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple


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

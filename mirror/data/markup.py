"""HTML, Markdown and reStructuredText as blocks in reading order: headings, paragraphs, code.

Markdown and reStructuredText become HTML by their own parsers, so that one reader decides what is a heading or navigation.
Both are read with what documentation adds to them: MkDocs, Docusaurus, MyST and Sphinx.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from html import escape
from typing import TYPE_CHECKING, ClassVar, NamedTuple


if TYPE_CHECKING:
    from markdown_it import MarkdownIt

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
NOTES = {"admonition", "topic"}  # classes of an `aside` that docutils makes
LEFT_OUT_ROLES = {"navigation", "search", "contentinfo", "banner"}
# Directives of Sphinx: code, lists of names or files, and what has a name and a definition.
CODE = frozenset("code code-block doctest ipython sourcecode testcode".split())
NO_PROSE = frozenset("autosummary currentmodule highlight index literalinclude module plot testsetup toctree".split())
DEFINED = frozenset("attribute class data decorator envvar exception function method option property".split())
# Fences of MyST with prose in them. Others, such as `{code-block}` or `{r}`, are code.
PROSE_FENCES = frozenset(
    "admonition attention caution danger deprecated dropdown error hint important note seealso tab-item tip "
    "versionadded versionchanged warning".split()
)


# A fence, which stays as it is, or the beginning of a tab of pymdownx.
TAB = re.compile(r'^( *)(`{3,}|~{3,}).*\n(?:.*\n)*?\1\2|^( *)===[!+]? (?=")', re.MULTILINE)
OPTIONS = re.compile(r"\A(:[\w-]+:.*(\n|\Z))+")  # of a directive of MyST


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
            is_note = tag == "aside" and not NOTES.isdisjoint(classes)
            if (tag in LEFT_OUT and not is_note) or tag.startswith("-") or is_chrome or "hidden" in attributes:
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
            if tag in HEADINGS or tag in ("dt", "summary") or (tag == "p" and _is_bold_question(child)):
                self.end("heading", HEADINGS.get(tag, TERM))
            else:
                self.end("text")
            if tag in ("dl", "details"):
                self.blocks.append(Block("heading", "", TERM))

    def end(self, kind: str, level: int = 0) -> None:
        """End a block. One without text is left out, and its ids belong to the next one."""
        text = "".join(self.words)
        if text := text if kind == "code" else squeezed(text):
            if kind == "heading":
                if named := re.search(r"\s*\{#([^\s}]+)[^}]*\}$", text):  # "Install {#install}"
                    text = text[: named.start()]
                    self.ids.append(named[1])
                # The fragment as GitHub makes it.
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
        near = [one for one in later if any(word <= one + 7 for word in seconds[bisect_left(seconds, one + 1) :][:1])]
        at = (near or later or [at])[0]
        found.append(block._replace(offset=starts[min(at, len(starts) - 1)] if starts else 0))
        at += bool(later)
    return found


def markdown_blocks(text: str) -> Parsed:
    """Return title and blocks of CommonMark with front matter, tables, admonitions, tabs and definition lists."""
    import yaml

    fields = {}
    if front := re.match(r"---\r?\n(.{0,10000}?)\n---\r?\n", text, re.DOTALL):
        text = text[front.end() :]
        with suppress(yaml.YAMLError, ValueError):
            fields = yaml.safe_load(front[1])
    title = fields.get("title") if isinstance(fields, dict) else None
    title = "" if isinstance(title, list | dict | None) else squeezed(str(title))  # aliases can make a list huge
    text = TAB.sub(lambda found: found[0] if found[2] else f"{found[3]}!!! tab ", text)  # a tab is a note
    own_title, blocks = html_blocks(_markdown_parser().render(text))
    return Parsed(title or own_title, blocks)


@cache
def _markdown_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.admon import admon_plugin
    from mdit_py_plugins.attrs import attrs_plugin
    from mdit_py_plugins.container import container_plugin
    from mdit_py_plugins.deflist import deflist_plugin
    from mdit_py_plugins.myst_role import myst_role_plugin

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for plugin in (admon_plugin, attrs_plugin, deflist_plugin, myst_role_plugin):
        parser.use(plugin)
    for marker in ":/":  # Docusaurus, MyST and Pandoc; pymdownx
        parser.use(container_plugin, f"block{marker}", marker=marker, validate=lambda *given: True)
    as_code = parser.renderer.rules["fence"]

    def fence(self, tokens, place, options, env) -> str:
        token = tokens[place]
        directive = re.match(r"\{([\w-]+)\}", token.info)
        if not directive or directive[1] not in PROSE_FENCES:
            return as_code(tokens, place, options, env)
        return parser.render(OPTIONS.sub("", token.content))

    def without_options(state) -> None:
        for token, inner in zip(state.tokens, state.tokens[2:], strict=False):
            if token.type.startswith("container_block") and token.info.startswith("{") and inner.type == "inline":
                inner.content = OPTIONS.sub("", inner.content)

    parser.core.ruler.before("inline", "without_options", without_options)
    parser.add_render_rule("fence", fence)
    parser.add_render_rule("myst_role", lambda self, tokens, place, *_: escape(_shown(tokens[place].content)[0]))
    return parser


def is_rst(text: str) -> bool:
    """Return whether a text file has a directive, a target or a first title of reStructuredText, as those of Django."""
    marks = r"^\.\. (_[^\n]+:$|[\w:-]+::)|\A\s*([=*#~-])\2{3,}\n[^\n]+\n\2{4,}$"
    return bool(re.search(marks, text, re.MULTILINE))


def rst_blocks(text: str) -> Parsed:
    """Return title and blocks of reStructuredText, with the directives and roles of Sphinx."""
    from docutils.core import publish_parts

    _accept_sphinx()
    settings = {"doctitle_xform": False, "report_level": 5, "halt_level": 5, "syntax_highlight": "none"}
    settings |= {"file_insertion_enabled": False, "raw_enabled": False, "_disable_config": True}
    settings |= {"embed_stylesheet": False, "math_output": "LaTeX", "initial_header_level": 1}
    return html_blocks(publish_parts(text, writer="html5", settings_overrides=settings)["body"])


@cache
def _accept_sphinx() -> None:
    """Let docutils read what Sphinx adds: an unknown role becomes its text, an unknown directive its content.

    docutils has no hook for that. Sphinx replaces the same two functions.
    """
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives, roles

    class Content(Directive):
        optional_arguments, final_argument_whitespace, has_content = 1000, True, True
        # Any option. An empty specification would be none.
        option_spec: ClassVar = defaultdict(lambda: directives.unchanged, {"class": directives.unchanged})

        def run(self) -> list[nodes.Node]:
            name, inner, text = self.name.rpartition(":")[2], nodes.definition(), " ".join(self.arguments)
            is_imported = name.startswith("auto")  # what only an import of the package could show
            if name in NO_PROSE or (is_imported and not self.content):
                return []
            if name in CODE:
                return [nodes.literal_block("", "\n".join(self.content))]
            is_definition = (name in DEFINED or is_imported) and bool(text)
            if not is_definition and len(self.arguments) > 2:  # ".. versionadded:: 3.2 The whole text"
                words, _ = self.state.inline_text(text.lstrip("0123456789. "), self.lineno)
                inner += nodes.paragraph("", "", *words)
            self.state.nested_parse(self.content, self.content_offset, inner)
            item = nodes.definition_list_item("", nodes.term("", text), inner)
            return [nodes.definition_list("", item)] if is_definition else inner.children

    def as_text(name, rawtext, text, lineno, inliner, options=None, content=None):
        shown, target = _shown(text)
        if name not in ("ref", "doc") or not target:  # Sphinx would show the title of what it leads to
            return [nodes.inline(rawtext, shown)], []
        address = f"{target}.rst" if name == "doc" else f"#{nodes.make_id(target)}"
        return [nodes.reference(rawtext, shown, refuri=address)], []

    def or_else(find: Callable, default: object) -> Callable:
        return lambda *arguments: (find(*arguments)[0] or default, [])

    for name in CODE:  # docutils' own refuse options of Sphinx
        directives.register_directive(name, Content)
    roles.role, directives.directive = or_else(roles.role, as_text), or_else(directives.directive, Content)


def _shown(text: str) -> tuple[str, str]:
    """Return what a role shows, and its target where it names one: "title <target>", "~package.name" or "!name"."""
    shown, _, target = (part.strip(" >") for part in text.partition("<"))
    return shown.rpartition(".")[2] if shown.startswith("~") else shown.lstrip("!"), target

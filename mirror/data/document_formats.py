"""Parsers of documents, by the ending of a file. Every format becomes a title and blocks (`mirror.data.markup`)."""

from __future__ import annotations

import ast
import codecs
import io
import json
import posixpath
import re
import tokenize
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from mirror.common.errors import InputError, reason
from mirror.data.markup import Block, Parsed, html_blocks, is_rst, located, markdown_blocks, rst_blocks, squeezed


MAX_BYTES = 32 << 20  # of a document, unpacked: a larger file is data, and its tree would need gigabytes
_NOT_PROSE = re.compile(r">>>|----|====|::\s*$")
_FOR_TOOLS = re.compile(r"#!|#\s*(noqa|nosec|(type|pragma|pylint|mypy|pyright|ruff|flake8|isort|fmt|yapf):)")


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


def _txt(text: str) -> Parsed:
    """Return paragraphs at blank lines. Without a blank line, each line is a text of its own."""
    if is_rst(text):
        return rst_blocks(text)
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
    return markdown_blocks("\n\n".join(parts))


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
        paths = [posixpath.normpath(posixpath.join(place, "..", unquote(name))) for name in chapters]
        blocks = [block for path in paths for block in html_blocks(read(path).decode()).blocks]
    return Parsed(squeezed(package.findtext(".//{http://purl.org/dc/elements/1.1/}title") or ""), blocks)


def _office(path: Path) -> Parsed:
    from markitdown import MissingDependencyException, StreamInfo, converters

    converter = getattr(converters, f"{path.suffix[1:].title()}Converter")()  # such as DocxConverter
    try:
        with path.open("rb") as file:  # `MarkItDown` would read a damaged file as plain text
            parsed = markdown_blocks(converter.convert(file, StreamInfo(extension=path.suffix.lower())).markdown)
    except MissingDependencyException as error:  # markitdown without its own extras
        raise ImportError from error
    if not parsed.blocks:
        raise InputError("no text in it; a scan needs text recognition first")
    return parsed


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
        if is_whole_line and not _FOR_TOOLS.match(token.string):
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
    **dict.fromkeys((".md", ".markdown", ".mdx"), markdown_blocks),
    **dict.fromkeys((".html", ".htm", ".xhtml"), html_blocks),
    **{".rst": rst_blocks, ".txt": _txt, ".ipynb": _notebook, ".py": _python},
}
BINARY_FORMATS = {".epub": _epub, ".pdf": _office, ".docx": _office, ".pptx": _office}

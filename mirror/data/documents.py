"""Documents become passages along their structure: sections, split at paragraphs and sentences to fit N tokens."""

from __future__ import annotations

import glob
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sentencex import segment

from mirror.common.errors import InputError
from mirror.data.augmentation import words
from mirror.data.docstrings import split_name
from mirror.data.document_formats import BINARY_FORMATS, TEXT_FORMATS, parse
from mirror.data.files import ENDINGS as TABLES
from mirror.data.files import ending_of
from mirror.data.markup import Block, Parsed


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

ENDINGS = TEXT_FORMATS.keys() | BINARY_FORMATS.keys()
SKIPPED_FOLDERS = {"node_modules", "__pycache__", "venv"}  # and hidden ones
LONGEST = 512  # tokens of a passage, for an encoder of longer texts: an answer, not a chapter
FEW_FILES = 64  # parsed by one process
HEADS = ("heading", "definition")  # kinds of blocks that begin a section
SHOWN_FILES = 5  # of those that cannot be read
# Options of a tokenizer for which special tokens in a text are text. Masks would take a sixth of the time.
UNWANTED = ("add_special_tokens", "verbose", "return_attention_mask", "return_token_type_ids")
PLAIN_TEXT = dict.fromkeys(UNWANTED, False) | {"split_special_tokens": True}
REPEATS = (4, 0.05, 50)  # a paragraph in more files is boilerplate: at least 4, a share of the files, at most 50


class Passage(NamedTuple):
    """A piece of a document that fits the token limit."""

    text: str
    file: str
    heading: str  # "Guide > Install > Windows"
    offset: int  # characters of the source before it; of EPUB and office files, of the text in it
    kind: str  # text, docstring, comment or code


@dataclass
class Section:
    """What stands under one heading, without its subsections."""

    path: tuple[str, ...] = ()  # headings, its own last
    is_definition: bool = False  # of a function or class
    blocks: list[Block] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)

    @property
    def prose(self) -> list[Passage]:
        """Passages without code."""
        return [passage for passage in self.passages if passage.kind != "code"]


@dataclass
class Document:
    """A file with its sections, in reading order."""

    file: str
    title: str
    sections: list[Section]

    @property
    def passages(self) -> list[Passage]:
        return [passage for section in self.sections for passage in section.passages]


def are_documents(paths: Iterable[str]) -> bool:
    """Return whether one of the paths is a document or a folder of documents. A .txt file is texts, one per line.

    Tables at the top of a folder make it one of tables, unless more than .txt files lie beside them.
    """
    for path in map(Path, filter(None, paths)):
        if path.is_dir():
            found = {file.suffix.lower() for file in find_documents([str(path)])}
            if found - {".txt"} or (found and not _has_tables(path)):
                return True
        elif path.suffix.lower() in ENDINGS - {".txt"}:
            return True
    return False


def _has_tables(path: str | Path) -> bool:
    return os.path.isdir(path) and any(ending_of(name) in {*TABLES} - {"txt"} for name in os.listdir(path))


def find_documents(paths: Iterable[str]) -> Iterator[Path]:
    """Yield files, and those in folders, in a fixed order. Hidden files and folders, and circles of links, are skipped.

    Raises an `InputError` for a path or glob that matches nothing, and for a file that is no document.
    """
    found = {name: [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True)) for name in paths}
    if missing := [name for name, matches in found.items() if not matches]:
        raise InputError(f"{missing[0]}: no such file or folder")
    for path in (Path(match) for matches in found.values() for match in matches):
        if path.is_dir():
            yield from _in_folder(path)
        elif path.suffix.lower() in ENDINGS:
            yield path
        else:
            raise InputError(f"{path}: not a document; one of {', '.join(sorted(ENDINGS))}")


def _in_folder(path: Path) -> Iterator[Path]:
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(path, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in SKIPPED_FOLDERS)
        for file in (Path(folder, name) for name in sorted(files) if name[0] != "."):
            if file.suffix.lower() in ENDINGS and file.is_file():
                yield file


def read_documents(
    paths: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_tokens: int, num_proc: int | None = None
) -> list[Document]:
    """Read files and folders of documents into passages of at most `max_tokens`, special tokens included.

    A paragraph that repeats over many files (navigation, a license) is left out. A file that cannot be read is named
    in a warning. Both are counted in the log. Raises an `InputError` if a path does not exist, or there is no text.
    """
    name, files = " ".join(paths), list(find_documents(paths))
    for path in filter(_has_tables, paths):
        logger.warning("%s: reading its documents, not its tables; name the tables to read them", path)
    parsed: list[tuple[str, Parsed]] = []
    failed: dict[str, list[str]] = {}
    for file, result in zip(files, _parse_all(files, num_proc), strict=True):
        shown = os.fsencode(file).decode("utf-8", "backslashreplace")
        if isinstance(result, str):
            failed.setdefault(result, []).append(shown)
        else:
            parsed.append((shown, result))
    if not parsed:
        problems = "; ".join(f"{_shortened(names)}: {problem}" for problem, names in failed.items())
        raise InputError(problems or f"{name}: no documents ({', '.join(sorted(ENDINGS))})")
    for problem, names in failed.items():
        logger.warning("%s: left out, %s", _shortened(names), problem)
    # A paragraph that stands in so many files tells nothing of one.
    files_with = Counter(text for _, result in parsed for text in {block.text for block in result.blocks})
    least, share, most = REPEATS
    limit, left_out, documents = min(max(least, share * len(parsed)), most), 0, []
    for file, (title, blocks) in parsed:
        kept = [block for block in blocks if files_with[block.text] <= limit or not block.text or block.kind in HEADS]
        left_out += len(blocks) - len(kept)
        documents.append(_sections(file, title, kept))
    fit_passages(documents, tokenizer, max_tokens)
    total = sum(len(document.passages) for document in documents)
    repeats = f"; left out {left_out:,} paragraphs that repeat over many files" if left_out else ""
    if not total:
        raise InputError(f"{name}: headings and names, but no text under them{repeats}; is it the right folder?")
    logger.info("Read %s passages from %s documents in %s%s", f"{total:,}", f"{len(documents):,}", name, repeats)
    return documents


def passage_columns(paths: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> dict[str, list[str]]:
    """Return the passages of documents, code included, in their order: `text`, and `file`, `offset` and `section` of each."""
    documents = read_documents(paths, tokenizer, min(max_tokens, LONGEST))
    passages = [passage for document in documents for passage in document.passages]
    rows = [(each.text, each.file, str(each.offset), each.heading) for each in passages]
    return dict(zip(("text", "file", "offset", "section"), map(list, zip(*rows, strict=True)), strict=True))


def _parse_all(files: list[Path], num_proc: int | None) -> list[Parsed | str]:
    """Return the content of each file, or why it cannot be read."""
    if len(files) < FEW_FILES:
        return list(map(_try_to_parse, files))
    try:
        with ProcessPoolExecutor(num_proc) as pool:
            return list(pool.map(_try_to_parse, files, chunksize=16))
    except BrokenProcessPool as error:
        what = "a process that reads documents was killed: out of memory, or a file breaks its parser"
        raise InputError(what) from error


def _try_to_parse(file: Path) -> Parsed | str:
    try:
        result = parse(file)
    except InputError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return result if any(block.text for block in result.blocks) else "no text in it"


def _shortened(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_FILES:,} more" if len(names) > SHOWN_FILES else ""
    return ", ".join(names[:SHOWN_FILES]) + more


def _sections(file: str, title: str, blocks: list[Block]) -> Document:
    """Put each block under its heading. A title that is no heading of the document becomes the first."""
    headings = [block for block in blocks if block.kind == "heading"]
    first = next((block.text for block in headings if block.level == 1), "")
    is_heading = first or title in (block.text for block in headings[:1])  # DocBook's pages begin with an h2
    stack = [(0, title)] if title and not is_heading else []
    sections = [Section(tuple(text for _, text in stack))]
    for block in blocks:
        if block.kind not in HEADS:
            sections[-1].blocks.append(block)
            continue
        stack = [each for each in stack if each[0] < block.level]
        stack += [(block.level, block.text)] if block.text else []
        sections.append(Section(tuple(text for _, text in stack), block.kind == "definition", [block]))
    module = Path(file).stem if not file.endswith("__init__.py") else Path(file).parent.name
    return Document(file, first or title or (split_name(module) if file.endswith(".py") else ""), sections)


def fit_passages(documents: list[Document], tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> None:
    """Fill in the passages of all sections: neighboring paragraphs joined up to the limit, longer ones split."""
    room = max_tokens - tokenizer.num_special_tokens_to_add()
    count = TokenCounter(tokenizer)
    sections = [(document.file, section) for document in documents for section in document.sections]
    blocks = [block for _, section in sections for block in section.blocks if block.kind not in HEADS]
    count.prepare(block.text for block in blocks)
    count.prepare(part for block in blocks if count(block.text) > room for part in split_once(block.text, block.kind))
    for file, section in sections:
        pieces = []
        for block in (block for block in section.blocks if block.kind not in HEADS):
            start = 0
            for text in split_text(block.text, room, count, block.kind):
                heads = text, text.partition("\n")[0]  # blank lines between others are left out
                places = (block.text.find(head, start) for head in heads)
                start = next((place for place in places if place >= 0), start)
                if block.kind == "code" or any(map(str.isalnum, text)):  # no line of dashes
                    pieces.append((block.kind, text, block.offset + start))
                start += len(text)
        for kind, text, offset in join_pieces(pieces, room, count):
            kind = "text" if kind == "line" else kind
            section.passages.append(Passage(text, file, " > ".join(section.path), offset, kind))


class TokenCounter:
    """Counts the tokens of texts, without special ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.counts = tokenizer, {}
        # Behind another text, a byte-level BPE writes the first word with its space, in other tokens.
        self.starts = ["", " "] if tokenizer.tokenize("word") != tokenizer.tokenize(" word") else [""]

    def prepare(self, texts: Iterable[str]) -> None:
        """Count many texts at once, which is faster."""
        new = [text for text in dict.fromkeys(texts) if text not in self.counts]
        for at in range(0, len(new), 1000):
            batch = new[at : at + 1000]
            rows = self.tokenizer([start + text for text in batch for start in self.starts], **PLAIN_TEXT)["input_ids"]
            lengths = zip(*[map(len, rows)] * len(self.starts), strict=True)  # of a text, behind nothing and a space
            self.counts |= zip(batch, map(max, lengths), strict=True)

    def __call__(self, text: str) -> int:
        if text not in self.counts:
            self.prepare([text])
        return self.counts[text]


def split_text(text: str, room: int, count: TokenCounter, kind: str = "text") -> list[str]:
    """Split a text at sentences (code at lines) and, where one is too long, at words, into pieces of at most `room` tokens.

    A single word of more tokens stays whole.
    """
    if count(text) <= room or len(parts := split_once(text, kind)) < 2:
        return [text]
    count.prepare(parts)
    fitting = [(kind, piece, 0) for part in parts for piece in split_text(part, room, count)]
    return [piece for _, piece, _ in join_pieces(fitting, room, count)]


def split_once(text: str, kind: str = "text") -> list[str]:
    """Return the sentences (of code the lines) of a text, or of a single one the words."""
    parts = [line.rstrip() for line in text.split("\n")] if kind == "code" else map(str.strip, segment("en", text))
    parts = [part for part in parts if part.strip()]
    if len(parts) > 1:
        return parts
    starts = [start for start, _ in words(text)]
    return [text[start:end].strip() for start, end in pairwise([*starts, len(text)])]


def join_pieces(pieces: list[tuple[str, str, int]], room: int, count: TokenCounter) -> list[tuple[str, str, int]]:
    """Join neighbors of the same kind up to `room` tokens. A piece is kind, text and offset; lines are never joined."""
    joined: list[tuple[str, str, int]] = []
    used = 0
    for kind, text, offset in pieces:
        length = count(text)
        if joined and joined[-1][0] == kind != "line" and used + length + (kind == "code") <= room:
            before = joined.pop()
            text, offset = before[1] + ("\n" if kind == "code" else " ") + text, before[2]
            length += used + (kind == "code")  # a line break may be a token
        joined.append((kind, text, offset))
        used = length
    return joined

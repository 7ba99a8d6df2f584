"""Pairs of texts from the structure of documents: a heading and its section, a question and its answer, and others."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from mirror.data.docstrings import split_name
from mirror.data.documents import Document, Passage, Section
from mirror.data.source import AUTO_PAIRS, PAIR_KINDS


MIN_LENGTH = 8  # of a passage in characters: less tells nothing of a heading
FREQUENT = (3, 0.005, 10)  # an anchor on more sections says little: at least 3, a share of all, at most 10
EXAMPLES = 3
_NUMBERING = re.compile(r"^(\W*\d+)+[.):]?\s+(?=\w)")


class Pair(NamedTuple):
    """A text to search with, and the passage that it should find."""

    anchor: str
    positive: str
    kind: str  # one of PAIR_KINDS
    file: str
    heading: str  # of the passage
    offset: int  # of the passage
    document: int  # number of the passage's document, for a split


class StructurePairs(NamedTuple):
    """The pairs of documents, and how many were left out for which reason."""

    pairs: list[Pair]
    dropped: Counter[str]


def structure_pairs(documents: Sequence[Document], kinds: Sequence[str] = AUTO_PAIRS) -> StructurePairs:
    """Return the pairs of these kinds, each once, in the order of the documents.

    Left out, and counted: anchors that stand on many sections, such as "Introduction", equal sides, short passages.
    """
    found = [(pair, name) for pair, name in _candidates(documents) if pair.kind in kinds]
    places: dict[str, set[tuple]] = defaultdict(set)
    for pair, name in found:
        places[name.lower()].add((pair.file, pair.offset))
    least, share, most = FREQUENT
    limit = min(max(least, share * sum(len(document.sections) for document in documents)), most)
    pairs: dict[tuple[str, str], Pair] = {}
    dropped = Counter()
    for pair, name in found:
        key = (pair.anchor.lower(), pair.positive.lower())
        if len(places[name.lower()]) > limit and pair.kind != "neighbor":
            dropped[f"anchors on more than {limit:.0f} sections"] += 1
        elif len(pair.positive) < MIN_LENGTH or not re.search(r"[^\W\d]", pair.anchor):
            dropped["too short"] += 1
        elif key[0] == key[1]:
            dropped["equal sides"] += 1
        elif key in pairs:
            dropped["equal to another pair"] += 1
        else:
            pairs[key] = pair
    return StructurePairs(list(pairs.values()), dropped)


def _candidates(documents: Sequence[Document]) -> Iterator[tuple[Pair, str]]:
    """Yield every pair with the name whose frequency counts: of "Guide > Introduction" it is "Introduction"."""
    target_of = _link_targets(documents)
    number_of = {document.file: number for number, document in enumerate(documents)}
    for number, document in enumerate(documents):
        prose = [passage for section in document.sections for passage in section.prose]
        if document.title and prose:
            yield _pair(document.title, prose[0], "title", number), document.title
        for section in document.sections:
            name = section.path[-1] if section.path else ""
            if section.is_definition and section.prose:
                if section.prose[0].kind == "docstring" and not name.startswith("_"):
                    yield _pair(split_name(name), section.prose[0], "signature", number), name
            elif name and section.prose:
                path = [_NUMBERING.sub("", part) for part in section.path]
                anchor, kind = (path[-1], "question") if name.endswith("?") else (" > ".join(path), "heading")
                yield _pair(anchor, section.prose[0], kind, number), name
            for text, address in (link for block in section.blocks for link in block.links):
                if passage := target_of(document.file, address):
                    yield _pair(text, passage, "link", number_of[passage.file]), text
        for before, after in pairwise(prose):
            yield _pair(before.text, after, "neighbor", number), before.text


def _pair(anchor: str, passage: Passage, kind: str, document: int) -> Pair:
    return Pair(anchor, passage.text, kind, passage.file, passage.heading, passage.offset, document)


def _link_targets(documents: Sequence[Document]) -> Callable[[str, str], Passage | None]:
    """Return a function of a file and an address in it: the first passage of the section that the link leads to."""
    sections: dict[tuple[str, str], Section] = {}
    anywhere: dict[str, list[Section]] = defaultdict(list)  # Sphinx's labels name no file
    for document in documents:
        file = os.path.normpath(document.file)
        for section in document.sections:
            sections.setdefault((file, ""), section)
            # A fragment in the middle of a section is a footnote or a figure.
            for name in section.blocks[0].ids if section.path and section.blocks else ():
                if sections.setdefault((file, name), section) is section:
                    anywhere[name].append(section)

    def target(file: str, address: str) -> Passage | None:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            return None
        path = posixpath.join(posixpath.dirname(file), unquote(parts.path)) if parts.path else file
        name, file = unquote(parts.fragment), os.path.normpath(path)
        found = sections.get((file, name))
        if found is None and not parts.path and len(anywhere[name]) == 1:
            (found,) = anywhere[name]
        return found.prose[0] if found and found.prose else None

    return target


def shares_most_words(pair: Pair) -> bool:
    """Return whether at least half of the words of the anchor are in the positive: lexical overlap."""
    anchor, positive = (set(re.findall(r"\w+", text.lower())) for text in (pair.anchor, pair.positive))
    return 2 * len(anchor & positive) >= len(anchor)


def describe_pairs(found: StructurePairs) -> str:
    """Return a report of the pairs: the number of each kind, examples, lexical overlap, and what was left out."""
    by_kind = {kind: [pair for pair in found.pairs if pair.kind == kind] for kind in PAIR_KINDS}
    lines = [f"{len(found.pairs):,} pairs"]
    for kind, pairs in by_kind.items():
        if pairs:
            overlap = sum(map(shares_most_words, pairs)) / len(pairs)
            lines.append(
                f"  {kind:10} {len(pairs):,}; in {overlap:.0%} the second shares most words of the first, such as"
            )
            places = range(0, len(pairs), max(1, len(pairs) // EXAMPLES))
            lines += [f"    {_short(pairs[at].anchor)}  ~  {_short(pairs[at].positive)}" for at in places[:EXAMPLES]]
    lines += [f"  left out   {count:,}: {reason}" for reason, count in found.dropped.most_common()]
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Documents as a corpus to train on: pairs from their structure, and passages without a pair, which get noisy views."""

from __future__ import annotations

import logging
import os
import posixpath
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from datasets import Dataset

from mirror.assets import EMBEDDED_MODEL
from mirror.common.errors import InputError
from mirror.data.cleaning import Corpus
from mirror.data.docstrings import Docstring, search_pairs, split_name, training_texts
from mirror.data.documents import Document, Passage, Section, read_documents
from mirror.data.source import PAIR_KINDS, PASSAGE_TOKENS, CorpusSource, source_name


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

MIN_LENGTH = 8  # of a passage in characters: less tells nothing of a heading
FREQUENT = (3, 0.005, 10)  # an anchor on more sections says little: at least 3, a share of all, at most 10
EXAMPLES = 3
# A document with a larger share of all passages is split by chapter: a tenth is held out, and an interval needs five parts.
LARGE_SHARE = 0.02
TITLES = 0.2  # share of texts before one twice as long, where there are titles (of names and summaries: 0.4)
TRIED = 10_000  # texts that show whether there are titles
# "1.2. " before a heading.
NUMBERING = re.compile(r"^(\W*\d+)+[.):]?\s+(?=\w)")


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


def structure_pairs(documents: Sequence[Document], kinds: Sequence[str] = PAIR_KINDS) -> StructurePairs:
    """Return the pairs of these kinds, each once, in the order of the documents.

    Left out, and counted: anchors that stand on many sections, such as "Introduction", equal sides, short passages.
    """
    number_of = {document.file: number for number, document in enumerate(documents)}
    found = [candidate for candidate in _candidates(documents) if candidate[0] in kinds]
    places: dict[str, set[tuple]] = defaultdict(set)
    for _, _, passage, name in found:
        places[name.lower()].add((passage.file, passage.offset))
    least, share, most = FREQUENT
    limit = min(max(least, share * sum(len(document.sections) for document in documents)), most)
    pairs: dict[tuple[str, str], Pair] = {}
    dropped = Counter()
    for kind, anchor, passage, name in found:
        key = (anchor.lower(), passage.text.lower())
        if len(places[name.lower()]) > limit:
            dropped[f"anchors on more than {limit:.0f} sections"] += 1
        elif len(passage.text) < MIN_LENGTH or not re.search(r"[^\W\d]", anchor):
            dropped["too short"] += 1
        elif key[0] == key[1]:
            dropped["equal sides"] += 1
        elif key in pairs:
            dropped["equal to another pair"] += 1
        else:
            text, file, heading, offset, _ = passage
            pairs[key] = Pair(anchor, text, kind, file, heading, offset, number_of[file])
    return StructurePairs(list(pairs.values()), dropped)


def _candidates(documents: Sequence[Document]) -> Iterator[tuple[str, str, Passage, str]]:
    """Yield kind, anchor and passage, and the name whose frequency counts: of "Guide > Introduction" "Introduction"."""
    target_of = _link_targets(documents)
    for document in documents:
        prose = [passage for section in document.sections for passage in section.prose]
        if document.title and prose:
            yield "title", document.title, prose[0], document.title
        for section in document.sections:
            name = section.path[-1] if section.path else ""
            if section.is_definition and section.prose:
                if section.prose[0].kind == "docstring" and not name.startswith("_"):
                    yield "signature", split_name(name), section.prose[0], name
            elif name and section.prose:
                path = [NUMBERING.sub("", part) for part in section.path]
                kind, anchor = ("question", path[-1]) if name.endswith("?") else ("heading", " > ".join(path))
                yield kind, anchor, section.prose[0], name
            for text, address in (link for block in section.blocks for link in block.links):
                if passage := target_of(document.file, address):
                    yield "link", text, passage, text


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


def describe_pairs(found: StructurePairs) -> str:
    """Return a report of the pairs: the number of each kind, examples, lexical overlap, and what was left out."""
    lines = [f"{len(found.pairs):,} pairs"]
    for kind in PAIR_KINDS:
        if pairs := [pair for pair in found.pairs if pair.kind == kind]:
            words = [[set(re.findall(r"\w+", text.lower())) for text in pair[:2]] for pair in pairs]
            overlap = sum(2 * len(anchor & positive) >= len(anchor) for anchor, positive in words) / len(pairs)
            most = f"in {overlap:.0%} the second shares most words of the first"
            lines.append(f"  {kind:10} {len(pairs):,}; {most}, such as")
            for pair in pairs[:: max(1, len(pairs) // EXAMPLES)][:EXAMPLES]:
                lines.append("    " + "  ~  ".join(shorten(text, 60, placeholder="...") for text in pair[:2]))
    lines += [f"  left out   {count:,}: {reason}" for reason, count in found.dropped.most_common()]
    return "\n".join(lines)


def document_corpus(
    source: CorpusSource, tokenizer: PreTrainedTokenizerBase | None = None, max_tokens: int = PASSAGE_TOKENS
) -> Corpus:
    """Return pairs and passages of the documents of `source`, as rows of `text`, `text_pair` and `document`.

    `text_pair` is empty for a passage without a pair. `document` numbers the documents, or the chapters of large
    ones, which are held out as a whole.

    A passage has at most `max_tokens` tokens of the tokenizer, by default that of the embedded model, special ones
    included. Raises an `InputError` if there is no text in the documents, or for a flag that is one for tables.
    """
    for name in ("pair_columns", "pair_separator", "text_column", "streaming", "keep_duplicates"):
        if getattr(source, name):
            raise InputError(f"--{name} does not apply to documents; leave it out, or name files of texts")
    if tokenizer is None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    documents = read_documents(source.train_file, tokenizer, max_tokens)
    passages = [passage for document in documents for section in document.sections for passage in section.prose]
    if not passages:
        raise InputError(f"{source_name(source)}: only code, no prose to train on; is it the right folder?")
    sizes = Counter(passage.file for passage in passages)
    numbers: dict[tuple, int] = {}

    def number(file: str, heading: str) -> int:
        chapter = heading.split(" > ")[:2] if sizes[file] > LARGE_SHARE * len(passages) else ()
        return numbers.setdefault((file, *chapter), len(numbers))

    texts: dict[str, int] = {}
    for passage in passages:
        texts.setdefault(passage.text, number(passage.file, passage.heading))
    pairs = []
    if kinds := pair_kinds(source, ["auto"]):
        found = structure_pairs(documents, kinds)
        logger.info(describe_pairs(found))
        pairs = [(pair.anchor, pair.positive, number(pair.file, pair.heading)) for pair in found.pairs]
    return mixture(pairs, texts, source, len(passages) - len(texts))


def docstring_pairs(entries: Iterable[Docstring], source: CorpusSource) -> Corpus:
    """Return the training part of docstrings as a corpus: pairs of name and summary, and texts without a pair."""
    entries = list(entries)
    pairs = [(*pair, number) for number, pair in enumerate(search_pairs(entries, "train"))]
    return mixture(pairs, {text: len(pairs) + at for at, text in enumerate(training_texts(entries))}, source)


def title_pairs(corpus: Corpus) -> Corpus:
    """Return each title of a corpus with the text after it as a pair, and the other texts without one."""
    source, rows = corpus.source, corpus.rows
    if source.pairs or source.keep_duplicates or not isinstance(rows, Dataset) or rows.column_names != ["text"]:
        return corpus
    for count in sorted({min(TRIED, len(rows)), len(rows)}):  # a large corpus without titles is not read as a whole
        texts = rows["text"][:count]
        if not (titles := _titles(texts)):
            return corpus
    message = "%d of %d texts are titles of those after them. Training on pairs; --pairs none trains each text alone"
    logger.info(message, len(titles), len(texts))
    size = min(100, 1 + len(texts) // 50)  # so many consecutive texts are a document, which is held out as a whole
    pairs = [(texts[at], texts[at + 1], at // size) for at in titles]
    return replace(corpus, rows=mixture(pairs, {text: at // size for at, text in enumerate(texts)}, source).rows)


def _titles(texts: Sequence[str]) -> list[int]:
    """Return the places of the titles: texts at most half as long as the next one, in words, that share one with it.

    There are none unless a fifth of the texts, and 20, are followed by one twice as long, half of these share a word with it,
    and clearly fewer share one with a shorter text *after* them: neighbors in prose do both alike. Nor has a sorted list titles.
    """
    sizes = [len(text.split()) for text in texts]
    before = [at for at, (first, second) in enumerate(pairwise(sizes)) if 2 * first <= second]
    after = [at for at, (first, second) in enumerate(pairwise(sizes)) if first >= 2 * second]

    def share_a_word(at: int) -> bool:  # by its first five letters
        first, second = ({word[:5] for word in re.findall(r"\w{4,}", text.lower())} for text in texts[at : at + 2])
        return not first.isdisjoint(second)

    own, other = ([*filter(share_a_word, places)] for places in (before, after))
    shares = [len(own) / max(1, len(before)), len(other) / max(1, len(after))]
    is_sorted = sum(first <= second for first, second in pairwise(texts)) > 0.8 * len(texts)
    if is_sorted or len(before) < max(20, TITLES * len(texts)) or shares[0] < max(0.5, 1.5 * shares[1]):
        return []
    return sorted({*own} - {at + 1 for at in own})  # the text of a title is none itself


def pair_kinds(source: CorpusSource, default: list[str]) -> list[str]:
    """Return the kinds of pairs that `--pairs` names, none for none."""
    kinds = source.pairs or default
    return list(PAIR_KINDS) if "auto" in kinds else [kind for kind in kinds if kind != "none"]


def mixture(
    pairs: list[tuple[str, str, int]], texts: Mapping[str, int], source: CorpusSource, duplicates: int = 0
) -> Corpus:
    """Return pairs, and texts that are in none, as one corpus in a fixed random order.

    A pair is anchor, positive and number of its document. `texts` has these numbers by text.
    """
    paired = {text for pair in pairs for text in pair[:2]}
    rows = pairs + [(text, "", of) for text, of in texts.items() if text not in paired]
    random.Random(0).shuffle(rows)  # so that --max_train_samples takes some of every document
    rows = rows[: source.max_train_samples]
    first, second, document = map(list, zip(*rows, strict=True))
    columns = {"text": first, "text_pair": second, "document": document}
    if not pairs:
        del columns["text_pair"]
    counts = {"duplicate_rows": duplicates, "equal_pairs": duplicates, "read_rows": len(rows) + duplicates}
    return Corpus(Dataset.from_dict(columns), source, **counts)

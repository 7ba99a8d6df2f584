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
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from datasets import Dataset

from mirror.assets import EMBEDDED_MODEL
from mirror.common.errors import InputError
from mirror.data.cleaning import Corpus
from mirror.data.docstrings import Docstring, search_pairs, split_name, training_texts
from mirror.data.documents import Document, Passage, Section, read_documents
from mirror.data.source import AUTO_PAIRS, PAIR_KINDS, PASSAGE_TOKENS, CorpusSource, source_name


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

MIN_LENGTH = 8  # of a passage in characters: less tells nothing of a heading
FREQUENT = (3, 0.005, 10)  # an anchor on more sections says little: at least 3, a share of all, at most 10
EXAMPLES = 3
# A document with a larger share of all passages is split by chapter: a tenth is held out, and an interval needs five parts.
LARGE_SHARE = 0.02
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


def structure_pairs(documents: Sequence[Document], kinds: Sequence[str] = AUTO_PAIRS) -> StructurePairs:
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
        if len(places[name.lower()]) > limit and kind != "neighbor":
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
        for before, after in pairwise(prose):
            yield "neighbor", before.text, after, before.text


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
            examples = pairs[:: max(1, len(pairs) // EXAMPLES)][:EXAMPLES]
            lines += [f"    {_short(pair.anchor)}  ~  {_short(pair.positive)}" for pair in examples]
    lines += [f"  left out   {count:,}: {reason}" for reason, count in found.dropped.most_common()]
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def document_corpus(
    source: CorpusSource, tokenizer: PreTrainedTokenizerBase | None = None, max_tokens: int = PASSAGE_TOKENS
) -> Corpus:
    """Return pairs and passages of the documents of `source`, as rows of `text`, `text_pair` and `document`.

    `text_pair` is empty for a passage without a pair. `document` numbers the documents, or the chapters of large
    ones, which are held out as a whole.

    A passage has at most `max_tokens` tokens of the tokenizer, by default that of the embedded model, special ones
    included. Raises an `InputError` if there is no text in the documents, or for a flag that is one for tables.
    """
    for name in ("pair_columns", "pair_separator", "text_column", "streaming"):
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


def neighbor_pairs(corpus: Corpus) -> Corpus:
    """Return each text of a corpus with the next one as a pair, for texts whose order says which belong together.

    A number of consecutive texts counts as a document, which is held out as a whole.
    """
    texts = corpus.rows["text"][:]
    size = min(100, 1 + len(texts) // 50)
    pairs = [(*pair, at // size) for at, pair in enumerate(pairwise(texts))]
    if not pairs:
        raise InputError("--pairs neighbor: the corpus has one text only; give more")
    found = mixture(pairs, {text: at // size for at, text in enumerate(texts)}, corpus.source)
    return replace(corpus, rows=found.rows)


def pair_kinds(source: CorpusSource, default: list[str]) -> list[str]:
    """Return the kinds of pairs that `--pairs` names, none for none."""
    kinds = source.pairs or default
    return list(AUTO_PAIRS) if "auto" in kinds else [kind for kind in kinds if kind != "none"]


def mixture(
    pairs: list[tuple[str, str, int]], texts: Mapping[str, int], source: CorpusSource, duplicates: int = 0
) -> Corpus:
    """Return pairs, and texts that are in none, as one corpus in a fixed random order.

    A pair is anchor, positive and number of its document. `texts` has these numbers by text.
    """
    paired = {text for pair in pairs for text in pair[:2]}
    single = [text for text in texts if text not in paired]
    if source.pair_share is not None and pairs:
        single += [text for text in texts if text in paired]
        single = single[: round(len(pairs) * (1 - source.pair_share) / source.pair_share)]
    rows = pairs + [(text, "", texts[text]) for text in single]
    random.Random(0).shuffle(rows)  # so that --max_train_samples takes some of every document
    rows = rows[: source.max_train_samples]
    first, second, document = map(list, zip(*rows, strict=True))
    columns = {"text": first, "text_pair": second, "document": document}
    if not pairs:
        del columns["text_pair"]
    return Corpus(Dataset.from_dict(columns), source, duplicate_rows=duplicates, read_rows=len(rows) + duplicates)

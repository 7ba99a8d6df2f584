"""Tests without labels on a user's own text, from texts that were held out of training.

A text has to be found among all texts, by some of its words or by its first half. Training with noise on words makes the
first easier, but too much makes the encoder match words instead of meanings. The second shows that, because the halves of
a text share few words. Names are found by a misspelling, pairs by their other side (see docs/studies/own_text.md).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap, gmean

from mirror.common.errors import InputError
from mirror.common.vectors import gold_ranks, unit_length
from mirror.data.augmentation import words
from mirror.evaluation.lexical import BM25
from mirror.modeling.encoder import Encode, encode_sides


logger = logging.getLogger(__name__)

QUERY_WORDS = 3
MIN_WORDS = 2 * QUERY_WORDS  # of a text that is found by some of its words
LONG_SHARE = 0.25  # with fewer texts of that length, the corpus is one of names or words
MIN_TEXTS = 50  # with fewer, the interval is wider than any gain
KINDS = {
    "words": f"found by {QUERY_WORDS} of their words",
    "halves": "found by their first half, which shares few words with the second",
    "headings": "sections found by their heading, title or question",
    "pairs": "of the second column found by the first",
    "spellings": "found by a misspelling, which says nothing of synonyms",
}
ADVICE = "other noise (--augmentation span or delete), fewer steps or more texts, or another --learning_rate"


@dataclass(frozen=True)
class OwnTextTest:
    """N queries, and the answer to each among the answers to all."""

    kind: str  # one of KINDS
    queries: tuple[str, ...]
    answers: tuple[str, ...]
    documents: tuple[int, ...] = ()  # of the answers: texts of one document are not independent

    @classmethod
    def of(
        cls, kind: str, pairs: Iterable[tuple[str, str]], documents: Mapping[str, int] | None = None
    ) -> OwnTextTest:
        """Build the test of (query, answer) pairs. Of equal answers one is kept, because they cannot be told apart.

        Args:
            documents: number of the document of each answer.

        Raises:
            InputError: fewer than `MIN_TEXTS` texts can be used.
        """
        query_of = {answer: query for query, answer in pairs if query != answer}
        usable = min(len(query_of), len({*query_of.values()}))  # where all have one query, none can be found
        if usable < MIN_TEXTS:
            needed = f"for the test '{kind}', and a number needs {MIN_TEXTS}"
            raise InputError(f"only {usable} held-out texts can be used {needed}")
        places = tuple(documents[answer] for answer in query_of) if documents else ()
        return cls(kind, tuple(query_of.values()), tuple(query_of), places)

    def ranks(self, encode: Encode) -> np.ndarray:
        """Compute the rank of each answer for its query, from 1, by cosine among all N answers, as (N,)."""
        queries, answers = map(unit_length, encode_sides(encode, self.queries, self.answers))  # (N, D) each
        return gold_ranks(queries, answers, np.arange(len(answers)))

    def lexical_scores(self) -> np.ndarray:
        """Compute BM25's score of each answer for each query, (N, N)."""
        index = BM25(self.answers)
        return np.stack([index.scores(query) for query in self.queries])

    def bm25(self) -> dict[str, float]:
        """Return accuracy@1 and mean reciprocal rank of BM25, which matches words, for the same queries."""
        scores = self.lexical_scores()
        own = np.diag(scores)[:, None]
        ranks = (
            1 + (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2
        )  # ties: the middle of their places
        return {"bm25": float((ranks == 1).mean()), "mrr_bm25": float((1 / ranks).mean())}

    def compare(self, before: np.ndarray, after: np.ndarray) -> dict[str, float | int | str]:
        """Compare accuracy@1 and mean reciprocal rank of two encoders by their ranks, (N,), of the same queries.

        `change` is that of accuracy@1, `margin` half the width of its 95% interval, from a bootstrap over the queries,
        or over the documents where they are known.
        """
        gained = (after == 1).astype(float) - (before == 1)  # -1, 0 or 1 for each query
        margin = 0.0
        if gained.any():
            margin = _margin(_sums(gained, self.documents), _ratio, paired=True)
        scores = {"test": self.kind, "texts": len(self.queries)}
        scores |= {"before": float((before == 1).mean()), "after": float((after == 1).mean())}
        scores |= {"change": float(gained.mean()), "margin": margin}
        return scores | {"mrr_before": float((1 / before).mean()), "mrr_after": float((1 / after).mean())}


def make_tests(
    texts: Sequence[str], second_texts: Sequence[str] | None = None, documents: Sequence[int] | None = None
) -> list[OwnTextTest]:
    """Return the tests that fit N distinct held-out texts: pairs if there are any, words and halves, or spellings.

    Words and halves need enough texts that are long enough. Too few texts that can be used are an `InputError`.

    With `documents`, the numbers of those that the texts are from, second texts are passages that their headings find,
    or empty. They are tested as single texts too.
    """
    document_of = None
    if documents is not None:
        seconds = [pair or text for text, pair in zip(texts, second_texts or texts, strict=True)]
        document_of = dict(zip(seconds, documents, strict=True))
        headings = [pair for pair in zip(texts, second_texts or (), strict=False) if pair[1]]
        texts = list(document_of)
        try:
            by_headings = [OwnTextTest.of("headings", headings, document_of)]
        except InputError as error:
            logger.info("on your text: %s", error)
            by_headings = []
        if by_headings:
            try:
                return by_headings + _single_text_tests(texts, document_of)
            except InputError as error:
                logger.info("on your text: %s", error)
                return by_headings
    elif second_texts is not None:
        return [OwnTextTest.of("pairs", zip(texts, second_texts, strict=True))]
    return _single_text_tests(texts, document_of)


def _single_text_tests(texts: Sequence[str], documents: Mapping[str, int] | None) -> list[OwnTextTest]:
    long = [text for text in texts if len(words(text)) >= MIN_WORDS]
    if len(long) < max(MIN_TEXTS, LONG_SHARE * len(texts)):
        return [OwnTextTest.of("spellings", ((misspelled(text), text) for text in texts), documents)]
    by_words = OwnTextTest.of("words", ((some_words(text), text) for text in long), documents)
    try:
        second_halves = {halves(text)[1]: documents[text] for text in long} if documents else None
        return [by_words, OwnTextTest.of("halves", map(halves, long), second_halves)]
    except InputError as error:  # many texts are the same words twice
        logger.warning("on your text: %s", error)
        return [by_words]


def some_words(text: str) -> str:
    """Return `QUERY_WORDS` of the words, in their order, chosen by the hash of the text."""
    spans = words(text)
    chosen = np.random.default_rng(list(_digest(text))).choice(len(spans), QUERY_WORDS, replace=False)
    return " ".join(text[start:stop] for start, stop in (spans[at] for at in sorted(chosen)))


def halves(text: str) -> tuple[str, str]:
    """Return the words before the middle of a text, and the others."""
    middle = words(text)[len(words(text)) // 2][0]
    return text[:middle].rstrip(), text[middle:]


def misspelled(text: str) -> str:
    """Swap a pair of inner letters in each word of four letters or more, at a position that depends on the word alone."""
    pieces, end = [], 0
    for start, stop in words(text):
        word = text[start:stop]
        if len(word) >= 4:
            at = 1 + int.from_bytes(_digest(word), "little") % (len(word) - 3)
            word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        pieces += [text[end:start], word]
        end = stop
    return "".join(pieces) + text[end:]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()


def combined_score(ranks: Sequence[np.ndarray]) -> float:
    """Compute the geometric mean of the mean reciprocal ranks of all tests, one number to choose a checkpoint by.

    It falls where an encoder gains by matching words and loses in meaning.
    """
    return float(gmean([(1 / each).mean() for each in ranks]))


def compare_together(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], tests: Sequence[OwnTextTest] = ()
) -> dict[str, float]:
    """Compare `combined_score` of two encoders by their ranks, (N,) for each test.

    The result's `margin` is half the width of the 95% interval of the change, from a bootstrap over the queries (or the
    documents) of each test.
    """
    documents = [test.documents for test in tests] or [()] * len(before)
    sums = [[_sums(1 / ranks, of) for ranks, of in zip(side, documents, strict=True)] for side in (before, after)]

    def change(*chosen: np.ndarray, axis: int = -1) -> np.ndarray:
        scores = [
            gmean([_ratio(of[rows], size[rows], axis) for (of, size), rows in zip(side, chosen, strict=True)], axis=0)
            for side in sums
        ]
        return scores[1] - scores[0]

    rows = tuple(np.arange(len(size)) for _, size in sums[0])
    differs = any((old != new).any() for old, new in zip(before, after, strict=True))
    was, now = combined_score(before), combined_score(after)
    return {"before": was, "after": now, "change": now - was, "margin": _margin(rows, change) if differs else 0.0}


def _sums(values: np.ndarray, documents: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of (N,) values in each document, or each value where no document is known, and their numbers."""
    _, document = np.unique(documents or np.arange(len(values)), return_inverse=True)
    return np.bincount(document, weights=values), np.bincount(document).astype(float)


def _ratio(sums: np.ndarray, numbers: np.ndarray, axis: int = -1) -> np.ndarray:
    return sums.sum(axis) / numbers.sum(axis)


def _margin(samples: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], paired: bool = False) -> float:
    """Compute half the width of the 95% interval of a statistic of samples, (N,) each, from 1,000 resamples with seed 0."""
    settings = {
        "paired": paired,
        "n_resamples": 1000,
        "batch": 100,
        "method": "percentile",
        "rng": np.random.default_rng(0),
    }
    interval = bootstrap(samples, statistic, **settings).confidence_interval
    return float(interval.high - interval.low) / 2


def describe_scores(scores: Sequence[dict], together: dict[str, float] | None = None) -> str:
    """Format the last lines of a run: `on your text: .412 -> .538 (+.126 ± .021)` for each test and for all, and advice.

    `scores` are results of `OwnTextTest.compare`, in the order of `make_tests`. The result of `compare_together` decides.
    """

    def line(scores: dict, of: str) -> str:
        before, after, margin, change = (
            f"{scores[key]:{'+' if key == 'change' else ''}.3f}".replace("0.", ".", 1)
            for key in ("before", "after", "margin", "change")
        )
        return f"on your text: {before} -> {after} ({change} ± {margin}) {of}"

    lines = [line(each, f"of {each['texts']:,} held-out texts are {KINDS[each['test']]}") for each in scores]
    if "bm25" in scores[0]:
        lines[0] += f" (BM25 {scores[0]['bm25']:.3f})".replace("0.", ".", 1)
    if together:
        lines.append(
            line(
                together,
                f"{'both' if len(scores) == 2 else 'all'} together: the geometric mean of their mean reciprocal ranks",
            )
        )
    decisive = together or scores[0]
    if any(each["test"] == "halves" and each["change"] < -each["margin"] for each in scores):
        lines.append("  Texts are matched more by their words and less by their meaning: try a lower --learning_rate.")
    elif decisive["change"] <= decisive["margin"]:
        verdict = "worse" if decisive["change"] < -decisive["margin"] else "not better by more than chance"
        lines.append(f"  This is {verdict}: try {ADVICE}.")
    return "\n".join(lines)

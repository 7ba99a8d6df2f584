"""Tests without labels on a user's own text, from texts that were held out of training.

A text has to be found among all texts, by some of its words or by its first half. Training with noise on words makes the
first easier, but too much makes the encoder match words instead of meanings. The second shows that, because the halves of
a text share few words. Names are found by a misspelling, pairs by their other side (see docs/studies/own_text.md).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap, gmean

from mirror.common.errors import InputError
from mirror.common.vectors import gold_ranks, unit_length
from mirror.data.augmentation import words
from mirror.modeling.encoder import Encode, encode_sides


logger = logging.getLogger(__name__)

QUERY_WORDS = 3
MIN_WORDS = 2 * QUERY_WORDS  # of a text that is found by some of its words
LONG_SHARE = 0.25  # with fewer texts of that length, the corpus is one of names or words
MIN_TEXTS = 50  # with fewer, the interval is wider than any gain
KINDS = {
    "words": f"found by {QUERY_WORDS} of their words",
    "halves": "found by their first half, which shares few words with the second",
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

    @classmethod
    def of(cls, kind: str, pairs: Iterable[tuple[str, str]]) -> OwnTextTest:
        """Build the test of (query, answer) pairs. Of equal answers one is kept, because they cannot be told apart.

        Fewer than `MIN_TEXTS` of them are an `InputError`.
        """
        query_of = {answer: query for query, answer in pairs if query != answer}
        usable = min(len(query_of), len({*query_of.values()}))  # where all have one query, none can be found
        if usable < MIN_TEXTS:
            needed = f"for the test '{kind}', and a number needs {MIN_TEXTS}"
            raise InputError(f"only {usable} held-out texts can be used {needed}")
        return cls(kind, tuple(query_of.values()), tuple(query_of))

    def ranks(self, encode: Encode) -> np.ndarray:
        """Compute the rank of each answer for its query, from 1, by cosine among all N answers, as (N,)."""
        queries, answers = map(unit_length, encode_sides(encode, self.queries, self.answers))  # (N, D) each
        return gold_ranks(queries, answers, np.arange(len(answers)))

    def compare(self, before: np.ndarray, after: np.ndarray) -> dict[str, float | int | str]:
        """Compare accuracy@1 and mean reciprocal rank of two encoders by their ranks, (N,), of the same queries.

        `change` is that of accuracy@1, `margin` half the width of its 95% interval, from a bootstrap over the queries.
        """
        gained = (after == 1).astype(float) - (before == 1)  # -1, 0 or 1 for each query
        margin = _margin((gained,), np.mean) if gained.any() else 0.0
        scores = {"test": self.kind, "texts": len(self.queries)}
        scores |= {"before": float((before == 1).mean()), "after": float((after == 1).mean())}
        scores |= {"change": float(gained.mean()), "margin": margin}
        return scores | {"mrr_before": float((1 / before).mean()), "mrr_after": float((1 / after).mean())}


def make_tests(texts: Sequence[str], second_texts: Sequence[str] | None = None) -> list[OwnTextTest]:
    """Return the tests that fit N distinct held-out texts: pairs if there are any, words and halves, or spellings.

    Words and halves need enough texts that are long enough. Too few texts that can be used are an `InputError`.
    """
    if second_texts is not None:
        return [OwnTextTest.of("pairs", zip(texts, second_texts, strict=True))]
    long = [text for text in texts if len(words(text)) >= MIN_WORDS]
    if len(long) < max(MIN_TEXTS, LONG_SHARE * len(texts)):
        return [OwnTextTest.of("spellings", ((misspelled(text), text) for text in texts))]
    by_words = OwnTextTest.of("words", ((some_words(text), text) for text in long))
    try:
        return [by_words, OwnTextTest.of("halves", map(halves, long))]
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


def compare_together(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> dict[str, float]:
    """Compare `combined_score` of two encoders by their ranks, (N,) for each test.

    The result's `margin` is half the width of the 95% interval of the change, from a bootstrap over the queries of each test.
    """

    def change(*chosen: np.ndarray, axis: int = -1) -> np.ndarray:
        scores = [
            gmean([(1 / ranks)[rows].mean(axis) for ranks, rows in zip(side, chosen, strict=True)], axis=0)
            for side in (before, after)
        ]
        return scores[1] - scores[0]

    rows = tuple(np.arange(len(ranks)) for ranks in before)
    differs = any((old != new).any() for old, new in zip(before, after, strict=True))
    was, now = combined_score(before), combined_score(after)
    return {"before": was, "after": now, "change": now - was, "margin": _margin(rows, change) if differs else 0.0}


def _margin(samples: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray]) -> float:
    """Compute half the width of the 95% interval of a statistic of samples, (N,) each, from 1,000 resamples with seed 0."""
    settings = {"n_resamples": 1000, "batch": 100, "method": "percentile", "rng": np.random.default_rng(0)}
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
    if together:
        lines.append(line(together, "both together: the geometric mean of their mean reciprocal ranks"))
    decisive = together or scores[0]
    if any(each["change"] < -each["margin"] for each in scores[1:]):
        lines.append("  Texts are matched more by their words and less by their meaning: try a lower --learning_rate.")
    elif decisive["change"] <= decisive["margin"]:
        verdict = "worse" if decisive["change"] < -decisive["margin"] else "not better by more than chance"
        lines.append(f"  This is {verdict}: try {ADVICE}.")
    return "\n".join(lines)

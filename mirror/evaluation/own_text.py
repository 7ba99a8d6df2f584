"""Tests without labels on a user's own text, from texts that were held out of training.

A text is to be found among all, by some of its words or by its first half. Training with any noise on words makes the
first easier; a rate that is too high also makes the encoder match words instead of meanings, which the second shows: the
halves of a text share hardly a word. Names are found by a misspelling, which does not agree with entity linking
(docs/studies/own_text.md), pairs by their other side.

Knows texts and the function `encode`; knows nothing of training.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap, gmean

from mirror.common.errors import InputError
from mirror.common.nearest_neighbors import gold_ranks, unit_length
from mirror.data.augmentation import words
from mirror.modeling.encoder import Encode


logger = logging.getLogger(__name__)

QUERY_WORDS = 3
MIN_WORDS = 2 * QUERY_WORDS  # of a text that is found by some of its words
LONG_SHARE = 0.25  # of texts that long makes a corpus of texts; with fewer, it is one of names or words
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
    """N queries, the answer to each among the answers to all.

    Args:
        kind: one of `KINDS`.
    """

    kind: str
    queries: tuple[str, ...]
    answers: tuple[str, ...]

    @classmethod
    def of(cls, kind: str, pairs: Iterable[tuple[str, str]]) -> OwnTextTest:
        """The test of (query, answer) pairs; of equal answers one is kept, for they cannot be told apart.

        Raises:
            InputError: fewer than `MIN_TEXTS` of them are left.
        """
        query_of = {answer: query for query, answer in pairs if query != answer}
        usable = min(len(query_of), len({*query_of.values()}))  # where all have one query, none can be found
        if usable < MIN_TEXTS:
            raise InputError(
                f"only {usable} held-out texts can be used for the test '{kind}', and a number needs {MIN_TEXTS}"
            )
        return cls(kind, tuple(query_of.values()), tuple(query_of))

    def ranks(self, encode: Encode) -> np.ndarray:
        """(N,) the rank of each answer for its query, from 1, by cosine among all N answers."""
        vectors = unit_length(encode([*self.queries, *self.answers]))  # (2N, D)
        queries, answers = np.split(vectors, 2)
        return gold_ranks(queries, answers, np.arange(len(answers)))

    def compare(self, before: np.ndarray, after: np.ndarray) -> dict[str, float | int | str]:
        """Accuracy@1 and mean reciprocal rank of two encoders, and how sure the change of the accuracy is.

        Args:
            before, after: (N,) ranks of the same queries by the two encoders.

        Returns:
            `test` and `texts`: the kind and N. `before`, `after`: accuracy@1. `change`: the difference. `margin`: half the
            width of its 95% interval, from a bootstrap over the queries (1,000 resamples, seed 0). `mrr_before`,
            `mrr_after`.
        """
        gained = (after == 1).astype(float) - (before == 1)  # -1, 0 or 1 for each query
        margin = _margin((gained,), np.mean) if gained.any() else 0.0
        return {
            "test": self.kind,
            "texts": len(self.queries),
            "before": float((before == 1).mean()),
            "after": float((after == 1).mean()),
            "change": float(gained.mean()),
            "margin": margin,
            "mrr_before": float((1 / before).mean()),
            "mrr_after": float((1 / after).mean()),
        }


def make_tests(texts: Sequence[str], second_texts: Sequence[str] | None = None) -> list[OwnTextTest]:
    """The tests that fit: pairs where there are any, words and halves where enough texts are long enough, or spellings.

    Args:
        texts: N distinct held-out texts.
        second_texts: the other text of each, in pair mode.

    Raises:
        InputError: too few of the texts can be used.
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
    """`QUERY_WORDS` of the words, in their order, chosen by the hash of the text."""
    spans = words(text)
    chosen = np.random.default_rng(list(_digest(text))).choice(len(spans), QUERY_WORDS, replace=False)
    return " ".join(text[start:stop] for start, stop in (spans[at] for at in sorted(chosen)))


def halves(text: str) -> tuple[str, str]:
    """The words before the middle of a text, and the others."""
    middle = words(text)[len(words(text)) // 2][0]
    return text[:middle].rstrip(), text[middle:]


def misspelled(text: str) -> str:
    """The text with one pair of neighbouring letters swapped in each word of four letters or more; always the same."""
    pieces, end = [], 0
    for start, stop in words(text):
        word = text[start:stop]
        pieces += [text[end:start], _swap_letters(word) if len(word) >= 4 else word]
        end = stop
    return "".join(pieces) + text[end:]


def _swap_letters(word: str) -> str:
    """At a position that depends on the word alone; the first and the last letter stay."""
    at = 1 + int.from_bytes(_digest(word), "little") % (len(word) - 3)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()


def combined_score(ranks: Sequence[np.ndarray]) -> float:
    """One number to choose a checkpoint by: the geometric mean of the mean reciprocal ranks of all tests.

    It falls where an encoder gains by matching words and loses in meaning.
    """
    return float(gmean([(1 / each).mean() for each in ranks]))


def compare_together(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> dict[str, float]:
    """What `combined_score` is before and after, and how sure its change is.

    Args:
        before, after: for each test the ranks of its queries by the two encoders, (N,) of each.

    Returns:
        `before`, `after`, `change`, and `margin`: half the width of the 95% interval of the change, from a bootstrap over the
        queries of each test (1,000 resamples, seed 0).
    """

    def change(*chosen: np.ndarray, axis: int = -1) -> np.ndarray:
        scores = [
            gmean([(1 / ranks)[rows].mean(axis) for ranks, rows in zip(side, chosen, strict=True)], axis=0)
            for side in (before, after)
        ]
        return scores[1] - scores[0]

    rows = tuple(np.arange(len(ranks)) for ranks in before)
    differs = any((old != new).any() for old, new in zip(before, after, strict=True))
    margin = _margin(rows, change) if differs else 0.0
    was, now = combined_score(before), combined_score(after)
    return {"before": was, "after": now, "change": now - was, "margin": margin}


def describe_scores(scores: Sequence[dict], together: dict[str, float] | None = None) -> str:
    """`on your text: .412 -> .538 (+.126 ± .021)` for each test and for all, and what to try if it did not become better.

    Args:
        scores: of `OwnTextTest.compare`, in the order of `make_tests`.
        together: of `compare_together`, where there is more than one test; then it decides.
    """
    lines = [f"{_change(each)} of {each['texts']:,} held-out texts are {KINDS[each['test']]}" for each in scores]
    lines += (
        [f"{_change(together)} both together: the geometric mean of their mean reciprocal ranks"] if together else []
    )
    decisive = together or scores[0]
    if any(each["change"] < -each["margin"] for each in scores[1:]):
        lines.append("  Texts are matched more by their words and less by their meaning: try a lower --learning_rate.")
    elif decisive["change"] <= decisive["margin"]:
        verdict = "worse" if decisive["change"] < -decisive["margin"] else "not better by more than chance"
        lines.append(f"  This is {verdict}: try {ADVICE}.")
    return "\n".join(lines)


def _margin(samples: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray]) -> float:
    """Half the width of the 95% interval of a statistic of samples, (N,) each, by bootstrap."""
    interval = bootstrap(
        samples, statistic, n_resamples=1000, batch=100, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return float(interval.high - interval.low) / 2


def _change(scores: dict) -> str:
    before, after, margin = (_short(scores[key]) for key in ("before", "after", "margin"))
    return f"on your text: {before} -> {after} ({_short(scores['change'], '+')} ± {margin})"


def _short(share: float, sign: str = "") -> str:
    return f"{share:{sign}.3f}".replace("0.", ".", 1)

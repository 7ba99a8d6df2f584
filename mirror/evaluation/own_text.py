"""Tests without labels on a user's own text, from texts that were held out of training.

A text has to be found among all texts, by some of its words or by its first half. Training with noise on words makes the
first easier, but too much makes the encoder match words instead of meanings. The second shows that, because the halves of
a text share few words. Pairs are found by their other side (see docs/studies/own_text.md). Names and words have no test.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mirror.common.errors import InputError
from mirror.common.files import text_digest
from mirror.common.vectors import gold_ranks, unit_length
from mirror.data.augmentation import words
from mirror.evaluation.metrics import BM25, Sample, margin
from mirror.modeling.encoder import Encode, encode_sides


if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

QUERY_WORDS = 3
MIN_WORDS = 2 * QUERY_WORDS  # of a text that is found by some of its words
LONG_SHARE = 0.25  # with fewer texts of that length, the corpus is one of names or words
MIN_TEXTS = 50  # with fewer, the interval is wider than any gain
MIN_DOCUMENTS = 5  # with fewer, resamples of documents say nothing: of one they are all the same
KINDS = {
    "words": f"found by {QUERY_WORDS} of their words",
    "halves": "found by their first half, which shares few words with the second",
    "headings": "found by the other text of their pair, such as a heading",
    "pairs": "of the second column found by the first",
}
TOGETHER = {2: "both together", 3: "all together"}  # by the number of tests
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

        A text is a query or an answer, not both, because it would find itself: of "a, b" and "b, c" one is kept.
        `documents` has the number of each answer's document. Fewer than `MIN_TEXTS` usable texts are an `InputError`.
        """
        query_of: dict[str, str] = {}
        queries: set[str] = set()
        for query, answer in pairs:
            if query != answer and query not in query_of and answer not in queries:
                query_of[answer] = query
                queries.add(query)
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
        ties = (scores == own).sum(axis=1) - 1  # ranked by the middle of their places
        ranks = 1 + (scores > own).sum(axis=1) + ties / 2
        return {"bm25": float((ranks == 1).mean()), "mrr_bm25": float((1 / ranks).mean())}

    def sample(self, values: np.ndarray) -> Sample:
        """Return the sample of the mean of (N,) values of the queries. Documents are resampled where there are enough."""
        if len({*self.documents}) < MIN_DOCUMENTS:
            return Sample.mean_of(values)
        _, document = np.unique(self.documents, return_inverse=True)
        sums, sizes = np.bincount(document, weights=values), np.bincount(document)
        return Sample(len(sums), lambda rows: sums[rows].sum() / sizes[rows].sum())

    def compare(self, before: np.ndarray, after: np.ndarray) -> dict[str, float | int | str]:
        """Compare accuracy@1 and mean reciprocal rank of two encoders by their ranks, (N,), of the same queries.

        `change` is that of accuracy@1, `margin` half the width of its 95% interval, from resamples of the queries (documents).
        """
        gained = (after == 1).astype(float) - (before == 1)  # -1, 0 or 1 for each query
        within = margin(self.sample(gained).draws()) if gained.any() else 0.0
        scores = {"test": self.kind, "texts": len(self.queries)}
        scores |= {"documents": len({*self.documents})} if self.documents else {}
        scores |= {"before": float((before == 1).mean()), "after": float((after == 1).mean())}
        scores |= {"change": float(gained.mean()), "margin": within}
        return scores | {"mrr_before": float((1 / before).mean()), "mrr_after": float((1 / after).mean())}


def make_tests(
    texts: Sequence[str], second_texts: Sequence[str] | None = None, documents: Sequence[int] | None = None
) -> list[OwnTextTest]:
    """Return the tests that fit N distinct held-out texts: pairs if there are any, or words and halves.

    `documents` has the number of each text's document. Second texts are then passages that their headings find, or empty, and
    are tested as single texts too. Too few usable texts are an `InputError`, and so are names without second texts.
    """
    if documents is None:
        if second_texts is None:
            return _single_text_tests(texts)
        return [OwnTextTest.of("pairs", zip(texts, second_texts, strict=True))]
    seconds = second_texts or [""] * len(texts)
    document_of = {pair or text: of for text, pair, of in zip(texts, seconds, documents, strict=True)}
    headings = [pair for pair in zip(texts, seconds, strict=True) if pair[1]]
    tests: list[OwnTextTest] = []
    try:
        tests = [OwnTextTest.of("headings", headings, document_of)] if headings else []
        tests += _single_text_tests(list(document_of), document_of)
    except InputError as error:
        logger.info("on your text: %s", error)
    return tests or _single_text_tests(list(document_of), document_of)


def make_row_tests(rows: Dataset) -> list[OwnTextTest]:
    """Call `make_tests` with the columns of a corpus: text, and text_pair and document if it has them."""
    columns = {"text": "texts", "text_pair": "second_texts", "document": "documents"}
    given = {argument: rows[column][:] for column, argument in columns.items() if column in rows.column_names}
    return make_tests(**given)


def are_names(texts: Sequence[str]) -> bool:
    """Return whether the texts are names or words: fewer than a fourth of them have six words."""
    return len(_long_texts(texts)) < LONG_SHARE * len(texts)


def _long_texts(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if len(words(text)) >= MIN_WORDS]


def _single_text_tests(texts: Sequence[str], documents: Mapping[str, int] | None = None) -> list[OwnTextTest]:
    long = _long_texts(texts)
    if are_names(texts):  # found by a misspelling, they rose while linking fell (docs/studies/own_text.md)
        raise InputError("names and words are not tested: no test without labels follows synonyms or similarity")
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
    chosen = np.random.default_rng(list(text_digest(text, 4))).choice(len(spans), QUERY_WORDS, replace=False)
    return " ".join(text[start:stop] for start, stop in (spans[at] for at in sorted(chosen)))


def halves(text: str) -> tuple[str, str]:
    """Return the words before the middle of a text, and the others."""
    middle = words(text)[len(words(text)) // 2][0]
    return text[:middle].rstrip(), text[middle:]


def _geometric_mean(values: Sequence) -> np.ndarray:
    """Compute the geometric mean along the first axis. scipy.stats has it too, but takes half a second to import."""
    return np.exp(np.log(values).mean(axis=0))


def combined_score(ranks: Sequence[np.ndarray]) -> float:
    """Compute the geometric mean of the tests' mean reciprocal ranks: it falls where words are matched at the cost of meaning."""
    return float(_geometric_mean([(1 / each).mean() for each in ranks]))


def compare_all(
    tests: Sequence[OwnTextTest], before: Sequence[np.ndarray], after: Sequence[np.ndarray]
) -> dict[str, list | dict | None]:
    """Return the fields of a run's record: `own_text`, each test compared, and `own_text_together`. None where there is none.

    `before` and `after` are the ranks of the base model and of the trained encoder, (N,) for each test. Held-out headings have
    BM25 beside.
    """
    scores = [test.compare(*ranks) for test, *ranks in zip(tests, before, after, strict=True)]
    if tests and tests[0].kind == "headings":
        scores[0] |= tests[0].bm25()
    together = compare_together(before, after, tests) if len(scores) > 1 else None
    return {"own_text": scores or None, "own_text_together": together}


def compare_together(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], tests: Sequence[OwnTextTest] = ()
) -> dict[str, float]:
    """Compare `combined_score` of two encoders by their ranks, (N,) for each test.

    `margin` is half the width of the 95% interval of the change, from resamples of the queries (documents) of each test.
    """
    samples = [test.sample for test in tests] or [Sample.mean_of] * len(before)

    def draws(side: Sequence[np.ndarray]) -> np.ndarray:
        of_tests = enumerate(zip(samples, side, strict=True))
        return _geometric_mean([sample(1 / ranks).draws(seed) for seed, (sample, ranks) in of_tests])

    differs = any((old != new).any() for old, new in zip(before, after, strict=True))
    was, now = combined_score(before), combined_score(after)
    change = {"before": was, "after": now, "change": now - was}
    return change | {"margin": margin(draws(after) - draws(before)) if differs else 0.0}


def short(number: float, sign: str = "") -> str:
    """Format a number with three decimals, without the zero before the point."""
    return f"{number:{sign}.3f}".replace("0.", ".", 1)


def describe_scores(scores: Sequence[dict], together: dict[str, float] | None = None) -> str:
    """Format the last lines of a run, `on your text: .412 -> .538 (+.126 ± .021)` for each test and for all, and advice.

    `scores` are results of `OwnTextTest.compare`, in the order of `make_tests`, `together` that of `compare_together`.
    """

    def line(scores: dict, of: str) -> str:
        change = f"{short(scores['change'], '+')} ± {short(scores['margin'])}"
        return f"on your text: {short(scores['before'])} -> {short(scores['after'])} ({change}) {of}"

    lines = [line(each, f"of {each['texts']:,} held-out texts are {KINDS[each['test']]}") for each in scores]
    if "bm25" in scores[0]:
        lines[0] += f" (BM25 {short(scores[0]['bm25'])})"
    if together:
        lines.append(line(together, f"{TOGETHER[len(scores)]}: the geometric mean of their mean reciprocal ranks"))
    if (documents := scores[0].get("documents", MIN_DOCUMENTS)) < MIN_DOCUMENTS:
        lines.append(f"  The texts are of {documents} documents or chapters only, so numbers after ± are too small.")
    decisive = together or scores[0]
    if any(each["test"] == "halves" and each["change"] < -each["margin"] for each in scores):
        lines.append("  Texts are matched more by their words and less by their meaning: try a lower --learning_rate.")
    elif decisive["change"] <= decisive["margin"]:
        verdict = "worse" if decisive["change"] < -decisive["margin"] else "not better by more than chance"
        lines.append(f"  This is {verdict}: try {ADVICE}.")
    return "\n".join(lines)

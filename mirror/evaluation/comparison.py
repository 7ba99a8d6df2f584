"""Several systems in order: scores with intervals, and which of them are told apart by the same examples.

A system has one or several scores, of tests on texts without labels or of tasks. They are combined by a mean, and the
differences of two systems come from resamples of the examples, which are the same for both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.stats import gmean

from mirror.common.vectors import ranks_in_scores
from mirror.evaluation.metrics import Sample, interval, margin
from mirror.evaluation.own_text import OwnTextTest, short
from mirror.evaluation.run import PreparedTask
from mirror.modeling.encoder import Encode, Encoder


logger = logging.getLogger(__name__)

LEXICAL = "BM25"


@dataclass
class System:
    """A system's scores by test or task, the samples that they are from, and facts for the table."""

    name: str
    scores: dict[str, float]
    samples: dict[str, Sample | None]  # None where a task cannot be resampled
    facts: dict[str, float | int] = field(default_factory=dict)
    mean: Callable = np.mean  # of several scores: `np.mean`, or `gmean` of tests on texts

    @property
    def score(self) -> float:
        """Return the mean of all scores."""
        return float(self.mean(list(self.scores.values())))

    def draws(self) -> np.ndarray | None:
        """Compute the mean score of 1,000 resamples, (1000,). None if a task cannot be resampled."""
        if None in self.samples.values():
            return None
        return self.mean([sample.draws(seed=seed) for seed, sample in enumerate(self.samples.values())], axis=0)


@dataclass(frozen=True)
class Difference:
    """How much one system scores over another. `low` and `high` are its 95% interval, None if there is none."""

    first: str
    second: str
    change: float
    low: float | None
    high: float | None

    @property
    def told_apart(self) -> bool:
        """Return whether the interval lies above 0."""
        return self.low is not None and self.low > 0

    def __str__(self) -> str:
        change = short(self.change)
        if self.low is None:
            return f"{self.first} over {self.second} by {change} (no interval for these tasks)"
        change += f" ± {short((self.high - self.low) / 2)}"
        if self.told_apart:
            return f"{self.first} over {self.second} by {change}"
        return f"{self.first} and {self.second} are not told apart ({change})"


def by_own_text(name: str, encode: Encode, tests: Sequence[OwnTextTest]) -> System:
    """Score an encoder by tests without labels. The score of a test is its mean reciprocal rank."""
    return _by_ranks(name, tests, [test.ranks(encode) for test in tests])


def lexical_by_own_text(tests: Sequence[OwnTextTest]) -> System:
    """Score BM25 by the same tests. An answer without a word of the query ranks below all that have one."""
    return _by_ranks(LEXICAL, tests, [ranks_in_scores(t.lexical_scores(), np.arange(len(t.answers))) for t in tests])


def _by_ranks(name: str, tests: Sequence[OwnTextTest], ranks: Sequence[np.ndarray]) -> System:
    scores = {test.kind: float((1 / each).mean()) for test, each in zip(tests, ranks, strict=True)}
    samples = {test.kind: test.sample(1 / each) for test, each in zip(tests, ranks, strict=True)}
    return System(name, scores, samples, mean=gmean)


def by_tasks(
    name: str, encode: Encode, encoder: Encoder, tasks: Sequence[PreparedTask]
) -> tuple[System, System | None]:
    """Score an encoder by tasks. Also return BM25's scores, None if one of the tasks has none."""
    ours, lexical = System(name, {}, {}), System(LEXICAL, {}, {})
    for task in tasks:
        fields = task.task.score(encoder if task.task.trains else encode, task.data_dir)
        logger.info("%s: %s %s %.4f", name, task.name, task.task.metric, fields["main_score"])
        samples = fields.get("samples", {})
        ours.scores[task.name], ours.samples[task.name] = fields["main_score"], samples.get("encoder")
        if "bm25" in fields:
            lexical.scores[task.name], lexical.samples[task.name] = fields["bm25"][task.task.metric], samples["bm25"]
    return ours, lexical if lexical.scores.keys() == ours.scores.keys() else None


def rank(systems: Sequence[System]) -> tuple[list[System], dict[str, float | None], list[Difference]]:
    """Sort systems by score, best first. Also return the margin of each score's 95% interval, and each difference to the next."""
    order = sorted(systems, key=lambda system: -system.score)
    draws = {system.name: system.draws() for system in order}
    margins = {name: None if each is None else margin(each) for name, each in draws.items()}
    differences = []
    for better, worse in pairwise(order):
        both = draws[better.name], draws[worse.name]
        low, high = (None, None) if any(each is None for each in both) else map(float, interval(both[0] - both[1]))
        differences.append(Difference(better.name, worse.name, better.score - worse.score, low, high))
    return order, margins, differences

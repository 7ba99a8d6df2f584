"""`docs_search`, `docs_search_dev`: find the documentation of a function from the words of its name, on this machine's own packages.

Query: the words of a name ("read csv"). Candidates: the summary line of every docstring of that part of the split. Real
text that nothing in this project trained on, and no data folder. The pairs depend on the installed packages, so a number is comparable
only under the same `data_sha256`; a lexical search over the same pairs stands beside it as the honest yardstick.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from mirror import docstrings
from mirror.errors import InputError
from mirror.evaluation.metrics.retrieval.retrieval import Retrieval
from mirror.evaluation.qqp import compare
from mirror.evaluation.search import gold_ranks, ranks_in_scores, unit_length
from mirror.evaluation.task import Encode, Task


MIN_PAIRS = {"test": 3000, "dev": 1000}


def tasks(data_dir: Path) -> list[Task]:
    """The test, and the dev part for choosing settings; they read no data folder."""
    return [
        Task(
            name=name,
            metric="accuracy@1",
            protocol=f"words of a name -> its docstring's summary among all summaries of the {part} part, by cosine",
            files=(),
            score=lambda encode, data_dir, part=part: score_search(encode, pairs_of(part), MIN_PAIRS[part]),
        )
        for name, part in (("docs_search", "test"), ("docs_search_dev", "dev"))
    ]


@cache
def pairs_of(part: str) -> tuple[tuple[str, str], ...]:
    """(name, summary) of the docstrings of a part on this machine."""
    return tuple(docstrings.search_pairs(docstrings_here(), part))


@cache
def docstrings_here() -> list[docstrings.Docstring]:
    """All docstrings of this machine; read once a process."""
    return docstrings.collect()


def score_search(encode: Encode, pairs: tuple[tuple[str, str], ...], min_pairs: int = MIN_PAIRS["test"]) -> dict:
    """Rank of each name's own summary among all summaries, by the encoder and by TF-IDF.

    Raises:
        InputError: fewer than `min_pairs` pairs, among which a hit would mean little.
    """
    if len(pairs) < min_pairs:
        raise InputError(
            f"docs_search found {len(pairs):,} documented names on this machine and needs {min_pairs:,}; "
            "install more packages with docstrings (numpy, scipy, pandas, scikit-learn)"
        )
    names, summaries = (list(column) for column in zip(*pairs, strict=True))
    vectors = unit_length(encode(names + summaries))  # (2N, D)
    queries, candidates = np.split(vectors, 2)
    gold = np.arange(len(pairs))
    ranks = gold_ranks(queries, candidates, gold)
    metric = Retrieval(keep_in_memory=True)
    ours = metric.compute(predictions=ranks)
    lexical = metric.compute(predictions=lexical_ranks(names, summaries, gold))
    return {
        "main_score": ours["accuracy@1"],
        "num_examples": len(pairs),
        **ours,
        "tfidf": lexical,
        "histogram": compare(*true_and_random(queries, candidates))["histogram"],
        "data_sha256": hashlib.sha256("\n".join("\t".join(pair) for pair in pairs).encode()).hexdigest(),
    }


def true_and_random(queries: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of each name with its own summary and with its neighbour's, (2N,), and which are which, (2N,) bool.

    Args:
        queries, candidates: (N, D) of unit length; row n of one belongs to row n of the other.
    """
    true = (queries * candidates).sum(axis=1)
    random = (queries * np.roll(candidates, 1, axis=0)).sum(axis=1)
    return np.concatenate([true, random]), np.arange(2 * len(queries)) < len(queries)


def lexical_ranks(queries: list[str], candidates: list[str], gold: np.ndarray) -> np.ndarray:
    """(Q,) rank of candidate `gold[q]` by the cosine of TF-IDF vectors, fitted on the candidates."""
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit(candidates)
    left, right = vectorizer.transform(queries), vectorizer.transform(candidates).T.tocsc()
    blocks = [slice(at, at + 512) for at in range(0, len(queries), 512)]
    return np.concatenate([ranks_in_scores((left[block] @ right).toarray(), gold[block]) for block in blocks])

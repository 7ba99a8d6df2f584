"""`docs_search`, `docs_search_dev`: retrieve a function's docstring from the words of its name.

Queries are the words of names ("read csv"); candidates are the summary lines of all docstrings in one part of a fixed
split. The docstrings are those of the Python packages installed on this machine, held out from training, so no data
folder is needed. Scores are comparable only with equal `data_sha256`, because installed packages differ. TF-IDF search
over the same pairs is reported as the baseline.
"""

from __future__ import annotations

import hashlib
from functools import cache, partial
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from mirror.common.errors import InputError
from mirror.common.nearest_neighbors import gold_ranks, ranks_in_scores, unit_length
from mirror.data import docstring_corpus
from mirror.evaluation.metrics import Retrieval
from mirror.evaluation.qqp import compare
from mirror.evaluation.task import Task
from mirror.modeling.encoder import Encode


MIN_PAIRS = {"test": 3000, "dev": 1000}


def tasks(data_dir: Path) -> list[Task]:
    """Return the test task and the dev task for choosing settings; neither uses the data folder."""
    return [
        Task(
            name=name,
            metric="accuracy@1",
            protocol=f"words of a name -> summary of its docstring, among all summaries of the {part} part, by cosine",
            files=(),
            score=lambda encode, data_dir, part=part: score_search(encode, pairs_of(part)),
            check_other_data=partial(check_pairs, part),
        )
        for name, part in (("docs_search", "test"), ("docs_search_dev", "dev"))
    ]


@cache
def pairs_of(part: str) -> tuple[tuple[str, str], ...]:
    """Return the (name, summary) pairs of one part of this machine's docstrings."""
    return tuple(docstring_corpus.search_pairs(docstrings_here(), part))


@cache
def docstrings_here() -> list[docstring_corpus.Docstring]:
    """Collect all docstrings of the packages on this machine, once per process."""
    return docstring_corpus.collect()


def check_pairs(part: str) -> None:
    """
    Raises:
        InputError: this machine has too few docstrings, which would make the task too easy.
    """
    if (found := len(pairs_of(part))) < MIN_PAIRS[part]:
        raise InputError(
            f"docs_search found {found:,} documented names on this machine and needs {MIN_PAIRS[part]:,}; "
            "install more packages with docstrings (numpy, scipy, pandas, scikit-learn)"
        )


def score_search(encode: Encode, pairs: tuple[tuple[str, str], ...]) -> dict:
    """Rank the summary of each name among all summaries, by the encoder and by TF-IDF."""
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
    """Compute the cosines of each name with its own summary and with the summary of another name.

    Args:
        queries, candidates: (N, D) of unit length; row n of `candidates` is the summary of row n of `queries`.

    Returns:
        Cosines (2N,) and labels (2N,) bool, True for a name with its own summary.
    """
    true = (queries * candidates).sum(axis=1)
    random = (queries * np.roll(candidates, 1, axis=0)).sum(axis=1)
    return np.concatenate([true, random]), np.arange(2 * len(queries)) < len(queries)


def lexical_ranks(queries: list[str], candidates: list[str], gold: np.ndarray) -> np.ndarray:
    """Rank candidate `gold[q]` of each query q by the cosine of TF-IDF vectors, fitted on the candidates.

    Returns:
        (Q,) ranks, starting at 1.
    """
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit(candidates)
    left, right = vectorizer.transform(queries), vectorizer.transform(candidates).T.tocsc()
    blocks = [slice(at, at + 512) for at in range(0, len(queries), 512)]
    return np.concatenate([ranks_in_scores((left[block] @ right).toarray(), gold[block]) for block in blocks])

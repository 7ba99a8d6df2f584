"""Search by cosine: translations (`tatoeba_fra` ...), and docstrings by the words of a name (`docs_search`).

Tatoeba (XTREME, LASER, CMLM Table 5) retrieves the translation of a sentence from all sentences of the file. As in LASER, only
the sentence in the same row counts, not a duplicate in another row.

`docs_search` retrieves the summary line of a docstring from the words of the function's name ("read csv"), among those of
one part of a fixed split. The docstrings are those of this machine's Python packages, so scores are comparable only with
equal `data_sha256`. TF-IDF search over the same pairs is the baseline.
"""

from __future__ import annotations

import hashlib
from functools import cache, partial
from pathlib import Path

import datasets
import evaluate
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from mirror.common.errors import InputError
from mirror.common.vectors import gold_ranks, ranks_in_scores, top_k, unit_length
from mirror.data import docstrings as docstring_corpus
from mirror.evaluation.labeled_pairs import compare, plot_histograms
from mirror.evaluation.sts import InMemoryMetric
from mirror.evaluation.task import DataFile, Options, Task
from mirror.modeling.encoder import Encode, encode_sides


# The 36 languages of XTREME, over which the papers average.
XTREME = (
    "afr ara ben bul cmn deu ell est eus fin fra heb hin hun ind ita jav jpn kat kaz kor mal mar nld pes por rus spa "
    "swh tam tel tgl tha tur urd vie"
).split()
XTREME_ROWS = {"jav": 205, "kat": 746, "kaz": 575, "mal": 687, "swh": 390, "tam": 307, "tel": 234, "tha": 548}
MIN_DOCSTRINGS = {"test": 3000, "dev": 1000}


def tasks(data_dir: Path, options: Options) -> list[Task]:
    """Return Tatoeba in XTREME's languages and every other one of the folder, and docs_search on two parts of its split."""
    found = {path.name.removesuffix("-eng.tsv") for path in (data_dir / "tatoeba").glob("*-eng.tsv")}
    all_found = []
    for language in sorted(found.union(XTREME)):
        rows, fields = (), {"groups": ("tatoeba",)}
        if language in XTREME:
            rows, published = (XTREME_ROWS.get(language, 1000),), "MTEB Tatoeba (its field `accuracy`); CMLM Table 5"
            fields = {"groups": ("tatoeba", "tatoeba_xtreme"), "published": published}
        file = DataFile(f"tatoeba/{language}-eng.tsv", ("source", "english"), rows)
        protocol = f"{language} -> eng, nearest by cosine among all English sentences of the file"
        fields |= {"dataset": f"Tatoeba ({language}-eng)"}
        scored = partial(score_tatoeba, file)
        all_found.append(Task(f"tatoeba_{language}", "accuracy", protocol, (file,), scored, **fields))
    for name, part in (("docs_search", "test"), ("docs_search_dev", "dev")):
        protocol = f"words of a name -> summary of its docstring, among all summaries of the {part} part, by cosine"
        scored = partial(lambda part, encode, data_dir: score_search(encode, pairs_of(part)), part)
        fields = {
            "dataset": f"docstrings of installed packages ({part})",
            "check_other_data": partial(check_pairs, part),
        }
        fields["plot"] = partial(plot_histograms, name) if part == "test" else None
        all_found.append(Task(name, "accuracy@1", protocol, (), scored, **fields))
    return all_found


class Retrieval(InMemoryMetric):
    """Accuracy@1, accuracy@5 and mean reciprocal rank (MRR) of the correct answers, by their ranks from 1."""

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Value("int64")})
        return evaluate.MetricInfo("Share of queries with the answer among the top k, and mean 1/rank.", "", features)

    def _compute(self, predictions: list[int]) -> dict[str, float]:
        ranks = np.asarray(predictions)
        hits = {f"accuracy@{k}": float((ranks <= k).mean()) for k in (1, 5)}
        return hits | {"mrr": float((1 / ranks).mean())}


def score_tatoeba(file: DataFile, encode: Encode, data_dir: Path) -> dict:
    """Compute the accuracy into English, as reported in the papers, and out of it. Each language is encoded in its own call."""
    columns = file.read(data_dir)
    source, english = (unit_length(encode(columns[name])) for name in ("source", "english"))  # (N, D) each
    to_english, from_english = retrieval_accuracy(source, english), retrieval_accuracy(english, source)
    fields = {"main_score": to_english, "num_examples": len(source), "accuracy_to_english": to_english}
    return fields | {"accuracy_from_english": from_english, "accuracy_mean": (to_english + from_english) / 2}


def retrieval_accuracy(queries: np.ndarray, entries: np.ndarray) -> float:
    """Compute the fraction of queries (N, D) whose nearest entry (N, D) has the same row index. All are of unit length."""
    _, nearest = top_k(queries, entries, 1)
    return float((nearest[:, 0] == np.arange(len(queries))).mean())


@cache
def pairs_of(part: str) -> tuple[tuple[str, str], ...]:
    """Return the (name, summary) pairs of one part of this machine's docstrings."""
    return tuple(docstring_corpus.search_pairs(docstrings_here(), part))


@cache
def docstrings_here() -> list[docstring_corpus.Docstring]:
    """Collect all docstrings of the packages on this machine, once per process."""
    return docstring_corpus.collect()


def check_pairs(part: str) -> None:
    """Raise an `InputError` on a machine with too few docstrings, which would make the task too easy."""
    if (found := len(pairs_of(part))) < MIN_DOCSTRINGS[part]:
        fix = "install more packages with docstrings (numpy, scipy, pandas, scikit-learn)"
        needed = f"documented names on this machine and needs {MIN_DOCSTRINGS[part]:,}"
        raise InputError(f"docs_search found {found:,} {needed}; {fix}")


def score_search(encode: Encode, pairs: tuple[tuple[str, str], ...]) -> dict:
    """Rank the summary of each name among all summaries, by the encoder and by TF-IDF.

    `histogram` has the cosines of each name with its own summary (positive) and with that of another name (negative).
    """
    names, summaries = (list(column) for column in zip(*pairs, strict=True))
    queries, candidates = map(unit_length, encode_sides(encode, names, summaries))  # (N, D) each
    gold = np.arange(len(pairs))
    metric = Retrieval(keep_in_memory=True)
    ours = metric.compute(predictions=gold_ranks(queries, candidates, gold))
    lexical = metric.compute(predictions=lexical_ranks(names, summaries, gold))
    own, other = ((queries * each).sum(axis=1) for each in (candidates, np.roll(candidates, 1, axis=0)))  # (N,) each
    return {
        "main_score": ours["accuracy@1"],
        "num_examples": len(pairs),
        **ours,
        "tfidf": lexical,
        "histogram": compare(np.concatenate([own, other]), np.arange(2 * len(own)) < len(own))["histogram"],
        "data_sha256": hashlib.sha256("\n".join("\t".join(pair) for pair in pairs).encode()).hexdigest(),
    }


def lexical_ranks(queries: list[str], candidates: list[str], gold: np.ndarray) -> np.ndarray:
    """Compute the ranks, (Q,) from 1, of candidates `gold[q]` by the cosine of TF-IDF vectors, fitted on the candidates."""
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit(candidates)
    left, right = vectorizer.transform(queries), vectorizer.transform(candidates).T.tocsc()
    # In blocks, because the dense matrix of all scores would not fit in memory.
    blocks = [slice(at, at + 512) for at in range(0, len(queries), 512)]
    return np.concatenate([ranks_in_scores((left[block] @ right).toarray(), gold[block]) for block in blocks])

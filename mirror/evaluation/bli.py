"""Bilingual lexicon induction: translate a word by the nearest word of the other language (Glavaš et al. 2019).

Each language's words are encoded by themselves, made unit length, mean centred and unit length again; an orthogonal
map is fitted to a training dictionary (Procrustes) and, if asked for, refined by self-learning (Artetxe et al. 2018).
Test words are then looked up by CSLS (Conneau et al. 2018) and by cosine among the whole target vocabulary. Knows the
dictionaries of the folder `bli/`; knows nothing of where the vectors come from.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path

import numpy as np
from scipy.linalg import orthogonal_procrustes

from mirror.evaluation.lines import LineFile
from mirror.evaluation.metrics.retrieval.retrieval import Retrieval
from mirror.evaluation.search import gold_ranks, mean_top_k, top_k, unit_length
from mirror.evaluation.task import DataFile, Encode, Task


PAPER_PAIRS = ("en-fr", "en-it", "en-ru", "en-tr", "it-fr", "ru-fr")  # Mirror-BERT Table 6
ROWS = {"train5k": (5000,), "train1k": (1000,), "test2k": (2000,)}
NEIGHBOURS = 10  # k of CSLS
SELF_LEARNING_WORDS = 20_000  # the first of each language, as in Artetxe et al. 2018
SELF_LEARNING_ROUNDS = 50

_FILE_NAME = re.compile(r"([a-z]+)-([a-z]+)\.(train5k|train1k|test2k)\.tsv")


def tasks(data_dir: Path, vocabulary_file: str | None = None, self_learning: bool = False) -> list[Task]:
    """The paper's six language pairs, and any other for which the folder has a test dictionary.

    Args:
        vocabulary_file: a word list, one a line, to add to the target vocabulary; "{language}" in its path stands for
            the target language. Without it the candidates are the words of the dictionaries alone, an easier search
            than among the 200,000 words of the literature.
        self_learning: refine each map by self-learning.
    """
    found = {path.name.removesuffix(".test2k.tsv") for path in (data_dir / "bli").glob("*-*.test2k.tsv")}
    pairs = sorted(found.union(PAPER_PAIRS))
    return [_task(data_dir, pair, vocabulary_file, self_learning) for pair in pairs]


def score(
    pair: str, seeds: tuple[str, ...], word_list: DataFile | None, self_learning: bool, encode: Encode, data_dir: Path
) -> dict:
    """Accuracy@1 and MRR by CSLS and by cosine for each training dictionary; the first one's CSLS accuracy is main."""
    source_language, target_language = pair.split("-")
    source_words = vocabulary(data_dir, source_language)
    target_words = vocabulary(data_dir, target_language, word_list)
    source, target = (normalise(encode(words)) for words in (source_words, target_words))  # (S, D), (T, D)
    numbers = ({word: row for row, word in enumerate(words)} for words in (source_words, target_words))
    look_up = partial(_pair_rows, data_dir, pair, *numbers)
    sources, gold = look_up("test2k")
    results = {}
    for seed in seeds:
        left, right = look_up(seed)
        mapping = procrustes(source[left], target[right])
        if self_learning:
            mapping = refine(source[:SELF_LEARNING_WORDS], target[:SELF_LEARNING_WORDS], mapping)
        results[seed] = _retrieve(source @ mapping, target, sources, gold)
    main = results[seeds[0]]["csls"]
    return {
        "main_score": main["accuracy@1"],
        "num_examples": len(gold),
        "mrr": main["mrr"],
        **results,
        "source_vocabulary": len(source_words),
        "target_vocabulary": len(target_words),
        "target_vocabulary_sha256": hashlib.sha256("\n".join(target_words).encode()).hexdigest(),
    }


def normalise(vectors: np.ndarray) -> np.ndarray:
    """(N, D) at unit length, mean centred, and at unit length again."""
    vectors = unit_length(vectors)
    return unit_length(vectors - vectors.mean(axis=0))


def procrustes(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The orthogonal (D, D) matrix W for which source @ W is nearest to target, row n (N, D) to row n (N, D)."""
    return orthogonal_procrustes(source, target)[0]


def csls_entries(queries: np.ndarray, entries: np.ndarray, k: int = NEIGHBOURS) -> np.ndarray:
    """(N, D + 1) entries whose inner product with `csls_queries` orders them as CSLS does.

    CSLS(x, y) = 2 cos(x, y) - r(x) - r(y) with r the mean cosine to the k nearest of the other language. r(x) is the
    same for every candidate of a query, and r(y) fits into one more dimension; so CSLS needs no search of its own.

    Args:
        queries: (Q, D) of unit length, the language that is translated from.
        entries: (N, D) of unit length, the language that is translated into.
    """
    return np.hstack([entries, mean_top_k(entries, queries, k)[:, None]])


def csls_queries(queries: np.ndarray) -> np.ndarray:
    """(Q, D + 1) queries to go with `csls_entries`."""
    return np.hstack([2 * queries, np.full((len(queries), 1), -1, queries.dtype)])


def refine(source: np.ndarray, target: np.ndarray, mapping: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
    """Self-learning: induce a dictionary by CSLS in both directions, fit the map to it, and again until it settles.

    Artetxe et al. (2018), §3.3, from a given map and without their random dropout of pairs, whitening, re-weighting:
    the map stays orthogonal and two runs give the same. It settles when the mean cosine of the induced pairs grows by
    less than `tolerance`, and in any case after 50 rounds.

    Args:
        source, target: (S, D) and (T, D), normalised; row order does not matter.
        mapping: (D, D) to start from.

    Returns:
        (D, D).
    """
    best = -np.inf
    for _ in range(SELF_LEARNING_ROUNDS):
        left, right = induced_dictionary(source @ mapping, target)
        mean_cosine = float((source[left] @ mapping * target[right]).sum(axis=1).mean())
        if mean_cosine < best + tolerance:
            break
        best = mean_cosine
        mapping = procrustes(source[left], target[right])
    return mapping


def induced_dictionary(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each source word with its nearest target word by CSLS, then each target word with its nearest source word.

    Returns:
        Row numbers (S + T,) into `source` (S, D) and (S + T,) into `target` (T, D).
    """
    _, forward = top_k(csls_queries(source), csls_entries(source, target), 1)
    _, backward = top_k(csls_queries(target), csls_entries(target, source), 1)
    return (
        np.concatenate([np.arange(len(source)), backward[:, 0]]),
        np.concatenate([forward[:, 0], np.arange(len(target))]),
    )


def vocabulary(data_dir: Path, language: str, word_list: DataFile | None = None) -> list[str]:
    """The distinct words of a language in every dictionary of the folder, on either side, then a word list's."""
    words: dict[str, None] = {}
    for file in _dictionaries(data_dir, {language}):
        columns = file.read(data_dir)
        source_language = Path(file.path).name.split("-")[0]
        words.update(dict.fromkeys(columns["source" if language == source_language else "target"]))
    if word_list:
        words.update(dict.fromkeys(word_list.read(data_dir)["word"]))
    return list(words)


def _task(data_dir: Path, pair: str, vocabulary_file: str | None, self_learning: bool) -> Task:
    own = {name: DataFile(f"bli/{pair}.{name}.tsv", ("source", "target"), rows) for name, rows in ROWS.items()}
    seeds = tuple(name for name in ("train5k", "train1k") if (data_dir / own[name].path).is_file()) or ("train5k",)
    needed = [own[name] for name in (*seeds, "test2k")]
    others = [file for file in _dictionaries(data_dir, set(pair.split("-"))) if file not in needed]
    word_list = _word_list(vocabulary_file, pair.split("-")[1])
    words = "all dictionaries" + (f" and {Path(word_list.path).name}" if word_list else "")
    fit = "Procrustes, self-learning" if self_learning else "Procrustes"
    return Task(
        name=f"bli_{pair.replace('-', '_')}",
        metric="accuracy@1",
        protocol=f"unit length, centred; {fit} on {seeds[0]}; CSLS k={NEIGHBOURS} among the target words of {words}",
        files=(*needed, *others, *([word_list] if word_list else [])),
        score=partial(score, pair, seeds, word_list, self_learning),
        groups=("bli",),
        published="Mirror-BERT Table 6, among more candidates" if pair in PAPER_PAIRS else "",
    )


def _dictionaries(data_dir: Path, languages: set[str]) -> list[DataFile]:
    """The folder's dictionaries from or into one of `languages`: training before test, by name."""
    names = [match for path in (data_dir / "bli").glob("*.tsv") if (match := _FILE_NAME.fullmatch(path.name))]
    names = [match for match in names if languages.intersection(match.group(1, 2))]
    names.sort(key=lambda match: (list(ROWS).index(match[3]), match[0]))
    return [DataFile(f"bli/{match[0]}", ("source", "target"), ROWS[match[3]]) for match in names]


def _word_list(vocabulary_file: str | None, language: str) -> DataFile | None:
    if vocabulary_file is None:
        return None
    return LineFile(str(Path(vocabulary_file.replace("{language}", language)).resolve()), ("word",))


def _pair_rows(
    data_dir: Path, pair: str, source_rows: dict[str, int], target_rows: dict[str, int], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """A dictionary as row numbers (N,) of the source and (N,) of the target vocabulary."""
    columns = DataFile(f"bli/{pair}.{name}.tsv", ("source", "target"), ROWS[name]).read(data_dir)
    return (
        np.array([source_rows[word] for word in columns["source"]]),
        np.array([target_rows[word] for word in columns["target"]]),
    )


def _retrieve(source: np.ndarray, target: np.ndarray, sources: np.ndarray, gold: np.ndarray) -> dict[str, dict]:
    """Both ways of looking up the test words; `source` (S, D) is mapped already."""
    queries, metric = source[sources], Retrieval(keep_in_memory=True)
    csls = gold_ranks(csls_queries(queries), csls_entries(source, target), gold)
    cosine = gold_ranks(queries, target, gold)
    return {name: metric.compute(predictions=ranks) for name, ranks in (("csls", csls), ("cosine", cosine))}

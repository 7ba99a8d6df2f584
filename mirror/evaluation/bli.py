"""Bilingual lexicon induction: translate a word by its nearest neighbour in the other language (Glavaš et al. 2019).

`bli_en_fr` takes an encoder for each language, as Mirror-BERT has, or one for both if only one is given.
`bli_joint_en_fr` always takes one.

The words of each language are encoded separately, normalised to unit length, mean centred and normalised again. An
orthogonal map is fitted to a training dictionary (Procrustes) and optionally refined by self-learning (Artetxe et al.
2018). Test words are retrieved by CSLS (Conneau et al. 2018) and by cosine from the full target vocabulary. Knows the
dictionaries of the folder `bli/`; knows nothing of how words are encoded.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path

import numpy as np
from scipy.linalg import orthogonal_procrustes

from mirror.common.errors import InputError
from mirror.common.nearest_neighbors import gold_ranks, mean_top_k, top_k, unit_length
from mirror.evaluation.lines import WordList
from mirror.evaluation.metrics import Retrieval
from mirror.evaluation.task import DataFile, Task
from mirror.modeling.encoder import Encode


PAPER_PAIRS = ("en-fr", "en-it", "en-ru", "en-tr", "it-fr", "ru-fr")  # Mirror-BERT Table 6
ROWS = {"train5k": (5000,), "train1k": (1000,), "test2k": (2000,)}
NEIGHBOURS = 10  # k of CSLS
SELF_LEARNING_WORDS = 20_000  # the first words of each language, as in Artetxe et al. 2018
SELF_LEARNING_ROUNDS = 50

_FILE_NAME = re.compile(r"([a-z]+)-([a-z]+)\.(train5k|train1k|test2k)\.tsv")


def tasks(
    data_dir: Path, vocabulary_file: str | None = None, self_learning: bool = False, second_encoder: bool = False
) -> list[Task]:
    """Return tasks for the paper's six language pairs and for every other pair with a test dictionary in the folder.

    Args:
        vocabulary_file: a word list, one word per line, that is added to the target vocabulary; "{language}" in its
            path is replaced by the target language. Without it the candidates are the words of the dictionaries, which
            makes the search easier than among the 200,000 words used in the literature.
        self_learning: refine each map by self-learning.
        second_encoder: whether the target language has an encoder of its own.
    """
    found = {path.name.removesuffix(".test2k.tsv") for path in (data_dir / "bli").glob("*-*.test2k.tsv")}
    pairs = sorted(found.union(PAPER_PAIRS))
    make = partial(_task, data_dir, vocabulary_file, self_learning)
    return [make(pair, "bli", second_encoder) for pair in pairs] + [make(pair, "bli_joint", None) for pair in pairs]


def score(
    pair: str,
    seeds: tuple[str, ...],
    word_list: DataFile | None,
    self_learning: bool,
    encode: Encode,
    data_dir: Path,
    second_encode: Encode | None = None,
) -> dict:
    """Compute accuracy@1 and MRR by CSLS and by cosine for each training dictionary.

    The main score is accuracy@1 by CSLS with the first dictionary of `seeds`.

    Args:
        pair: source and target language, such as "en-fr".
        seeds: names of the training dictionaries.
        word_list: additional target words, or None.
        self_learning: refine each map by self-learning.
        second_encode: of the target language; default: `encode`.

    Raises:
        InputError: the two encoders have vectors of different sizes, between which there is no orthogonal map.
    """
    source_language, target_language = pair.split("-")
    source_words = vocabulary(data_dir, source_language)
    target_words = vocabulary(data_dir, target_language, word_list)
    source = normalise(encode(source_words))  # (S, D)
    target = normalise((second_encode or encode)(target_words))  # (T, D)
    _check_sizes(source, target)
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
    """Normalise (N, D) vectors to unit length, subtract their mean, and normalise them again."""
    vectors = unit_length(vectors)
    return unit_length(vectors - vectors.mean(axis=0))


def procrustes(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the orthogonal matrix W (D, D) that minimises |source @ W - target| for source and target (N, D)."""
    return orthogonal_procrustes(source, target)[0]


def csls_entries(queries: np.ndarray, entries: np.ndarray, k: int = NEIGHBOURS) -> np.ndarray:
    """Augment entries so that their inner products with `csls_queries` rank them by CSLS.

    CSLS(x, y) = 2 cos(x, y) - r(x) - r(y), where r is the mean cosine to the k nearest neighbours in the other
    language. r(x) is the same for all candidates of a query, and r(y) is stored in one extra dimension, so any
    inner-product search computes CSLS.

    Args:
        queries: (Q, D) of unit length, in the source language.
        entries: (N, D) of unit length, in the target language.

    Returns:
        (N, D + 1).
    """
    return np.hstack([entries, mean_top_k(entries, queries, k)[:, None]])


def csls_queries(queries: np.ndarray) -> np.ndarray:
    """Augment queries (Q, D) to (Q, D + 1) for a search among `csls_entries`."""
    return np.hstack([2 * queries, np.full((len(queries), 1), -1, queries.dtype)])


def refine(source: np.ndarray, target: np.ndarray, mapping: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
    """Self-learning: induce a dictionary by CSLS in both directions, fit the map to it, and repeat until convergence.

    Follows Artetxe et al. (2018), §3.3, but starts from a given map and omits random dropout of pairs, whitening and
    re-weighting, so the map stays orthogonal and the result is deterministic. It stops when the mean cosine of the
    induced pairs increases by less than `tolerance`, or after 50 rounds.

    Args:
        source, target: (S, D) and (T, D), normalised; the order of rows does not matter.
        mapping: (D, D) initial map.

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
    """Pair each source word with its nearest target word by CSLS, and each target word with its nearest source word.

    Args:
        source, target: (S, D) and (T, D) of unit length.

    Returns:
        Row indices (S + T,) into `source` and (S + T,) into `target`.
    """
    _, forward = top_k(csls_queries(source), csls_entries(source, target), 1)
    _, backward = top_k(csls_queries(target), csls_entries(target, source), 1)
    return (
        np.concatenate([np.arange(len(source)), backward[:, 0]]),
        np.concatenate([forward[:, 0], np.arange(len(target))]),
    )


def vocabulary(data_dir: Path, language: str, word_list: DataFile | None = None) -> list[str]:
    """Return the distinct words of a language in all dictionaries of the folder, followed by those of a word list."""
    words: dict[str, None] = {}
    for file in _dictionaries(data_dir, {language}):
        columns = file.read(data_dir)
        source_language = Path(file.path).name.split("-")[0]
        words.update(dict.fromkeys(columns["source" if language == source_language else "target"]))
    if word_list:
        words.update(dict.fromkeys(word_list.read(data_dir)["word"]))
    return list(words)


def _check_sizes(source: np.ndarray, target: np.ndarray) -> None:
    (_, one), (_, other) = source.shape, target.shape
    if one != other:
        raise InputError(
            f"the encoders of the two languages have vectors of {one} and {other} dimensions, and BLI maps one space to "
            f"the other; use models of one size, or --truncate_dim {min(one, other)}"
        )


def _task(
    data_dir: Path, vocabulary_file: str | None, self_learning: bool, pair: str, group: str, second: bool | None
) -> Task:
    """Build a task; `second`: whether the target language has its own encoder, or None if it never has."""
    own = {name: DataFile(f"bli/{pair}.{name}.tsv", ("source", "target"), rows) for name, rows in ROWS.items()}
    seeds = tuple(name for name in ("train5k", "train1k") if (data_dir / own[name].path).is_file()) or ("train5k",)
    needed = [own[name] for name in (*seeds, "test2k")]
    others = [file for file in _dictionaries(data_dir, set(pair.split("-"))) if file not in needed]
    word_list = _word_list(vocabulary_file, pair.split("-")[1])
    words = "all dictionaries" + (f" and {Path(word_list.path).name}" if word_list else "")
    encoders = "an encoder for each language" if second else "one encoder for both languages"
    fit = "Procrustes, self-learning" if self_learning else "Procrustes"
    return Task(
        name=f"{group}_{pair.replace('-', '_')}",
        metric="accuracy@1",
        protocol=f"{encoders}; unit length, centred; {fit} on {seeds[0]}; "
        f"CSLS k={NEIGHBOURS} among the target words of {words}",
        files=(*needed, *others, *([word_list] if word_list else [])),
        score=partial(score, pair, seeds, word_list, self_learning),
        groups=(group,),
        takes_second_encode=second is not None,
        published="Mirror-BERT Table 6" if pair in PAPER_PAIRS and second else "",
    )


def _dictionaries(data_dir: Path, languages: set[str]) -> list[DataFile]:
    """Return the folder's dictionaries from or into one of `languages`: training before test, sorted by name."""
    names = [match for path in (data_dir / "bli").glob("*.tsv") if (match := _FILE_NAME.fullmatch(path.name))]
    names = [match for match in names if languages.intersection(match.group(1, 2))]
    names.sort(key=lambda match: (list(ROWS).index(match[3]), match[0]))
    return [DataFile(f"bli/{match[0]}", ("source", "target"), ROWS[match[3]]) for match in names]


def _word_list(vocabulary_file: str | None, language: str) -> DataFile | None:
    if vocabulary_file is None:
        return None
    return WordList(str(Path(vocabulary_file.replace("{language}", language)).resolve()), ("word",))


def _pair_rows(
    data_dir: Path, pair: str, source_rows: dict[str, int], target_rows: dict[str, int], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return a dictionary of N pairs as row indices (N,) into the source and (N,) into the target vocabulary."""
    columns = DataFile(f"bli/{pair}.{name}.tsv", ("source", "target"), ROWS[name]).read(data_dir)
    return (
        np.array([source_rows[word] for word in columns["source"]]),
        np.array([target_rows[word] for word in columns["target"]]),
    )


def _retrieve(source: np.ndarray, target: np.ndarray, sources: np.ndarray, gold: np.ndarray) -> dict[str, dict]:
    """Retrieve the translations of the test words by CSLS and by cosine.

    Args:
        source: (S, D), already mapped to the target space.
        target: (T, D).
        sources, gold: (N,) row indices of the test words and of their translations.
    """
    queries, metric = source[sources], Retrieval(keep_in_memory=True)
    csls = gold_ranks(csls_queries(queries), csls_entries(source, target), gold)
    cosine = gold_ranks(queries, target, gold)
    return {name: metric.compute(predictions=ranks) for name, ranks in (("csls", csls), ("cosine", cosine))}

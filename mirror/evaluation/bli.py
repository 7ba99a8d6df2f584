"""Bilingual lexicon induction: translate a word by its nearest neighbor in the other language (Glavaš et al. 2019).

`bli_en_fr` takes an encoder for each language, as Mirror-BERT has, or one for both. `bli_joint_en_fr` always takes one.

The words of each language are encoded separately, then `normalize`d. An orthogonal map is fitted to a training dictionary
(Procrustes) and optionally refined by self-learning (Artetxe et al. 2018). Test words are retrieved by CSLS (Conneau et al.
2018) and by cosine from the full target vocabulary.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path

import numpy as np
from scipy.linalg import orthogonal_procrustes

from mirror.common.errors import InputError
from mirror.common.vectors import gold_ranks, mean_top_k, top_k, unit_length
from mirror.evaluation.retrieval import Retrieval
from mirror.evaluation.task import DataFile, LineFile, Options, Task
from mirror.modeling.encoder import Encode


PAPER_PAIRS = ("en-fr", "en-it", "en-ru", "en-tr", "it-fr", "ru-fr")  # Mirror-BERT Table 6
ROWS = {"train5k": (5000,), "train1k": (1000,), "test2k": (2000,)}
NEIGHBORS = 10  # k of CSLS
SELF_LEARNING_WORDS = 20_000  # the first words of each language, as in Artetxe et al. 2018
SELF_LEARNING_ROUNDS = 50


def tasks(data_dir: Path, options: Options) -> list[Task]:
    """Return tasks for the paper's six language pairs and for every other pair with a test dictionary in the folder.

    The candidates are the words of the dictionaries, far fewer than the 200,000 of the literature, and those of
    `bli_vocabulary`, a file whose path may contain "{language}".
    """
    found = {path.name.removesuffix(".test2k.tsv") for path in (data_dir / "bli").glob("*-*.test2k.tsv")}
    pairs = sorted(found.union(PAPER_PAIRS))
    return [_task(data_dir, options, pair, group) for group in ("bli", "bli_joint") for pair in pairs]


def _task(data_dir: Path, options: Options, pair: str, group: str) -> Task:
    own = {name: _dictionary(pair, name) for name in ROWS}
    seeds = tuple(name for name in ("train5k", "train1k") if (data_dir / own[name].path).is_file()) or ("train5k",)
    needed = [own[name] for name in (*seeds, "test2k")]
    others = [file for file in _dictionaries(data_dir, set(pair.split("-"))) if file not in needed]
    word_list, words = None, "all dictionaries"
    if options.bli_vocabulary:
        path = Path(options.bli_vocabulary.replace("{language}", pair.split("-")[1])).resolve()
        word_list, words = LineFile(str(path), ("word",), distinct=True), f"{words} and {path.name}"
    two_encoders = group == "bli" and bool(options.second_model_name_or_path)
    encoders = "an encoder for each language" if two_encoders else "one encoder for both languages"
    fit = "Procrustes, self-learning" if options.bli_self_learning else "Procrustes"
    among = f"CSLS k={NEIGHBORS} among the target words of {words}"
    protocol = f"{encoders}; unit length, centred; {fit} on {seeds[0]}; {among}"
    files = (*needed, *others, *([word_list] if word_list else []))
    scored = partial(score, pair, seeds, word_list, options.bli_self_learning)
    dataset = f"bilingual lexicon induction{', one encoder' if group == 'bli_joint' else ''} ({pair})"
    published = "Mirror-BERT Table 6" if pair in PAPER_PAIRS and two_encoders else ""
    fields = {"dataset": dataset, "published": published, "takes_second_encode": group == "bli"}
    return Task(f"{group}_{pair.replace('-', '_')}", "accuracy@1", protocol, files, scored, (group,), **fields)


def score(
    pair: str,
    seeds: tuple[str, ...],
    word_list: DataFile | None,
    self_learning: bool,
    encode: Encode,
    data_dir: Path,
    second_encode: Encode | None = None,
) -> dict:
    """Compute accuracy@1 and MRR by CSLS and by cosine for each training dictionary of `seeds`. The first one's CSLS counts.

    Encoders with vectors of different sizes are an `InputError`: there is no orthogonal map between them.
    """
    first, second = pair.split("-")
    source_words, target_words = vocabulary(data_dir, first), vocabulary(data_dir, second, word_list)
    source = normalize(encode(source_words))  # (S, D)
    target = normalize((second_encode or encode)(target_words))  # (T, D)
    if (one := source.shape[1]) != (other := target.shape[1]):
        sizes = f"{one} and {other} dimensions, and BLI maps one space to the other"
        fix = f"use models of one size, or --truncate_dim {min(one, other)}"
        raise InputError(f"the encoders of the two languages have vectors of {sizes}; {fix}")
    row_of_source, row_of_target = ({word: row for row, word in enumerate(w)} for w in (source_words, target_words))

    def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a dictionary of N pairs as rows (N,) of `source` and rows (N,) of `target`."""
        sides = _dictionary(pair, name).read(data_dir)
        rows = ((row_of_source, sides["source"]), (row_of_target, sides["target"]))
        return tuple(np.array([row_of[word] for word in words]) for row_of, words in rows)

    tested, gold = rows_of("test2k")
    metric, results = Retrieval(keep_in_memory=True), {}
    for seed in seeds:
        left, right = rows_of(seed)
        mapping = orthogonal_procrustes(source[left], target[right])[0]
        if self_learning:
            mapping = refine(source[:SELF_LEARNING_WORDS], target[:SELF_LEARNING_WORDS], mapping)
        mapped = source @ mapping  # (S, D) in the target space
        queries = mapped[tested]
        csls = gold_ranks(csls_queries(queries), csls_entries(mapped, target), gold)
        ranks = {"csls": csls, "cosine": gold_ranks(queries, target, gold)}
        results[seed] = {name: metric.compute(predictions=each) for name, each in ranks.items()}
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


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Scale (N, D) vectors to unit length, subtract their mean, and scale them again."""
    vectors = unit_length(vectors)
    return unit_length(vectors - vectors.mean(axis=0))


def csls_entries(queries: np.ndarray, entries: np.ndarray, k: int = NEIGHBORS) -> np.ndarray:
    """Augment entries (N, D) to (N, D + 1), so that their inner products with `csls_queries` rank them by CSLS.

    CSLS(x, y) = 2 cos(x, y) - r(x) - r(y), where r is the mean cosine to the k nearest neighbors in the other language. r(x) is
    the same for all candidates, and r(y) is the extra dimension. All vectors have unit length.
    """
    return np.hstack([entries, mean_top_k(entries, queries, k)[:, None]])


def csls_queries(queries: np.ndarray) -> np.ndarray:
    """Augment queries (Q, D) to (Q, D + 1) for a search among `csls_entries`."""
    return np.hstack([2 * queries, np.full((len(queries), 1), -1, queries.dtype)])


def refine(source: np.ndarray, target: np.ndarray, mapping: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
    """Refine a map by self-learning: induce a dictionary by CSLS in both directions, fit the map to it, and repeat.

    Follows Artetxe et al. (2018), §3.3, from a given map and without random dropout of pairs, whitening and re-weighting. Stops
    when the mean cosine of the induced pairs increases by less than `tolerance`, or after 50 rounds. All are normalized.
    """
    best = -np.inf
    for _ in range(SELF_LEARNING_ROUNDS):
        mapped = source @ mapping
        _, forward = top_k(csls_queries(mapped), csls_entries(mapped, target), 1)
        _, backward = top_k(csls_queries(target), csls_entries(target, mapped), 1)
        left = np.concatenate([np.arange(len(source)), backward[:, 0]])  # (S + T,) rows of `source`
        right = np.concatenate([forward[:, 0], np.arange(len(target))])  # (S + T,) rows of `target`
        mean_cosine = float((source[left] @ mapping * target[right]).sum(axis=1).mean())
        if mean_cosine < best + tolerance:
            break
        best = mean_cosine
        mapping = orthogonal_procrustes(source[left], target[right])[0]
    return mapping


def vocabulary(data_dir: Path, language: str, word_list: DataFile | None = None) -> list[str]:
    """Return the distinct words of a language in all dictionaries of the folder, followed by those of a word list."""
    words: dict[str, None] = {}
    for file in _dictionaries(data_dir, {language}):
        source_language = Path(file.path).name.split("-")[0]
        words.update(dict.fromkeys(file.read(data_dir)["source" if language == source_language else "target"]))
    if word_list:
        words.update(dict.fromkeys(word_list.read(data_dir)["word"]))
    return list(words)


def _dictionary(pair: str, name: str) -> DataFile:
    return DataFile(f"bli/{pair}.{name}.tsv", ("source", "target"), ROWS[name])


def _dictionaries(data_dir: Path, languages: set[str]) -> list[DataFile]:
    """Return the folder's dictionaries from or into one of `languages`: training before test, sorted by name."""
    pattern = re.compile(r"([a-z]+)-([a-z]+)\.(train5k|train1k|test2k)\.tsv")
    names = [match for path in (data_dir / "bli").glob("*.tsv") if (match := pattern.fullmatch(path.name))]
    names = [match for match in names if languages.intersection(match.group(1, 2))]
    names.sort(key=lambda match: (list(ROWS).index(match[3]), match[0]))
    return [_dictionary(f"{match[1]}-{match[2]}", match[3]) for match in names]

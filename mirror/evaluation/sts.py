"""Graded similarity of pairs: sentences (STS, SICK-R), words (SimLex and others) and cross-lingual words.

All tasks use one protocol: one Spearman rho over all pairs of the set, between cosines and human scores. A yearly STS
set is the concatenation of its subsets ("all" of Reimers and Gurevych 2019). The mean of the per-subset rhos, which
SentEval used to report and which differs by many points, is a secondary score. A word is encoded as one string, like a
sentence; "null", "NA" and "nan" are words.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from mirror.evaluation.metrics import PairSimilarity
from mirror.evaluation.task import Columns, DataFile, Task
from mirror.modeling.encoder import Encode


SENTENCES, WORDS = ("sentence1", "sentence2"), ("word1", "word2")

# name, files, numbers of rows (empty: any), lowest and highest score, group, source of published scores
SENTENCE_SETS = (
    ("sts12", ("sts12",), (3108,), (0, 5), "sts", "MTEB STS12; Mirror-BERT Table 3"),
    ("sts13", ("sts13",), (1500,), (0, 5), "sts", "MTEB STS13; Mirror-BERT Table 3 (without SMT)"),
    ("sts14", ("sts14",), (3750,), (0, 5), "sts", "MTEB STS14; Mirror-BERT Table 3"),
    ("sts15", ("sts15",), (3000,), (0, 5), "sts", "MTEB STS15; Mirror-BERT Table 3"),
    ("sts16", ("sts16",), (1186,), (0, 5), "sts", "MTEB STS16; Mirror-BERT Table 3"),
    ("stsb", ("stsb_test",), (1379,), (0, 5), "sts", "MTEB STSBenchmark; Mirror-BERT Table 3"),
    ("stsb_dev", ("stsb_dev",), (1500,), (0, 5), None, "model selection only"),
    ("sickr", ("sickr_test",), (4927,), (1, 5), "sts", "Mirror-BERT Table 3, SimCSE Table 5 (the test part)"),
    ("sickr_full", ("sickr_train", "sickr_trial", "sickr_test"), (4500, 500, 4927), (1, 5), None, "MTEB SICK-R"),
    ("sts17_es", ("sts17_es",), (250,), (0, 5), "multilingual_sts", "MTEB STS17 es-es; Mirror-BERT Table 4"),
    ("sts17_ar", ("sts17_ar",), (250,), (0, 5), "multilingual_sts", "MTEB STS17 ar-ar; Mirror-BERT Table 4"),
    ("sts_ru", ("sts_ru",), (), (0, 5), "multilingual_sts", "Mirror-BERT Table 4"),
)
WORD_SETS = (
    ("simlex999", "simlex999", 999, (0, 10), "word"),
    ("simverb3500", "simverb3500", 3500, (0, 10), "word"),
    ("men", "men3000", 3000, (0, 50), "word"),
    ("ws353", "ws353", 353, (0, 10), "word"),
    ("ws353_sim", "ws353_sim", 203, (0, 10), None),
    ("ws353_rel", "ws353_rel", 252, (0, 10), None),
    ("rw", "rw2034", 2034, (0, 10), "word"),
    ("rg65", "rg65", 65, (0, 4), "word"),
    ("mturk287", "mturk287", 287, (0, 5), "word"),
    ("mturk771", "mturk771", 771, (0, 5), "word"),
)

# The copy of SICK on the Hub has no split. If the data folder contains this file, `sickr_full` reads it.
SICK_FULL = DataFile("sts/sickr_full.tsv", (*SENTENCES, "score"), (9927,), (1, 5))

# The twelve languages of Vulić et al. (2020) and Arabic (Mirror-BERT Table 1); language pairs of Mirror-BERT Table 5.
MULTISIMLEX = "ARA CMN CYM ENG EST FIN FRA HEB POL RUS SPA SWA YUE".split()
MULTISIMLEX_PAIRS = ["-".join(pair) for pair in combinations(("ENG", "FRA", "CMN", "HEB"), 2)]
MULTISIMLEX_ROWS = 1888


def tasks(data_dir: Path) -> list[Task]:
    """Return all tasks of this family, including Multi-SimLex in every language of the data folder."""
    fixed = [
        _task(name, [f"sts/{file}.tsv" for file in files], rows, score_range, SENTENCES, group, published)
        for name, files, rows, score_range, group, published in _sentence_sets(data_dir)
    ]
    fixed += [
        _task(name, [f"wordsim/{file}.tsv"], (rows,), score_range, WORDS, group)
        for name, file, rows, score_range, group in WORD_SETS
    ]
    return fixed + _multisimlex(data_dir)


def score_pairs(files: tuple[DataFile, ...], columns: tuple[str, str], encode: Encode, data_dir: Path) -> dict:
    """Compute Spearman and Pearson over all pairs of all files, and the mean Spearman of several subsets."""
    data = _concatenate([file.read(data_dir) for file in files])
    left, right = data[columns[0]], data[columns[1]]
    gold = np.array([float(score) for score in data["score"]])  # (N,)
    vectors = encode(left + right)  # (2N, D); one call, so a text that is on both sides is encoded once
    cosines = paired_cosines(vectors[: len(left)], vectors[len(left) :])  # (N,)
    metric = PairSimilarity(keep_in_memory=True)
    overall = metric.compute(predictions=cosines, references=gold)
    subsets = {name: _rho(metric, cosines, gold, rows) for name, rows in _subsets(data).items()}
    fields = {"main_score": overall["spearman"], "num_examples": len(gold), "pearson_cosine": overall["pearson"]}
    if len(subsets) > 1:
        fields |= {"mean_of_subsets": float(np.mean(list(subsets.values()))), "subsets": subsets}
    return fields


def paired_cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosine of row n of `left` (N, D) with row n of `right` (N, D); 0 for a zero vector.

    Rounded to seven decimals, the precision of float32, so that pairs of identical texts are tied in a ranking.

    Returns:
        (N,) float64.
    """
    left, right = left.astype(np.float64), right.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return ((left * right).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)).round(7)


def _sentence_sets(data_dir: Path) -> list[tuple]:
    if not (data_dir / SICK_FULL.path).is_file():
        return list(SENTENCE_SETS)
    single_file = (("sickr_full",), SICK_FULL.rows)
    return [(row[0], *single_file, *row[3:]) if row[0] == "sickr_full" else row for row in SENTENCE_SETS]


def _task(name, paths, rows, score_range, columns, group, published="") -> Task:
    sizes = [(size,) for size in rows] or [()] * len(paths)
    files = tuple(
        DataFile(path, (*columns, "score"), size, score_range) for path, size in zip(paths, sizes, strict=True)
    )
    return Task(
        name=name,
        metric="spearman_cosine",
        protocol="all pairs concatenated, one Spearman rho between cosine and gold score",
        files=files,
        score=partial(score_pairs, files, columns),
        groups=(group,) if group else (),
        published=published,
    )


def _multisimlex(data_dir: Path) -> list[Task]:
    """Return tasks for the declared languages and pairs and for those in the folder, which may reverse a pair."""
    found = {path.stem for path in (data_dir / "multisimlex").glob("*.tsv")}
    swapped = {"-".join(reversed(stem.split("-"))) for stem in found}
    stems = sorted(found | set(MULTISIMLEX) | (set(MULTISIMLEX_PAIRS) - swapped))
    return [_multisimlex_task(stem) for stem in stems]


def _multisimlex_task(stem: str) -> Task:
    cross = "-" in stem
    return _task(
        name=f"multisimlex_{stem.lower().replace('-', '_')}",
        paths=[f"multisimlex/{stem}.tsv"],
        rows=() if cross else (MULTISIMLEX_ROWS,),
        score_range=(0, 6),
        columns=WORDS,
        group="multisimlex_cross" if cross else "multisimlex",
        published="Mirror-BERT Table 5" if cross else "Mirror-BERT Table 1",
    )


def _concatenate(parts: list[Columns]) -> Columns:
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: [value for part in parts for value in part[name]] for name in shared}


def _subsets(data: Columns) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(data.get("subset", ())):
        rows.setdefault(name, []).append(row)
    return rows


def _rho(metric: PairSimilarity, cosines: np.ndarray, gold: np.ndarray, rows: list[int]) -> float:
    return metric.compute(predictions=cosines[rows], references=gold[rows])["spearman"]

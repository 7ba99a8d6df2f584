"""Graded similarity of pairs: sentences (STS, SICK-R), words (SimLex and others), and words across languages.

All tasks use one protocol: one Spearman rho over all pairs of the set, between cosines and human scores. A yearly STS
set is the concatenation of its subsets ("all" of Reimers and Gurevych 2019). The mean of the per-subset rhos, which
SentEval used to report and which differs by many points, is a secondary score. A word is encoded as one string, like a
sentence; "null", "NA" and "nan" are words.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import combinations
from pathlib import Path

import datasets
import evaluate
import numpy as np
from scipy.stats import pearsonr, spearmanr

from mirror.evaluation.metrics import cosines_of_pairs
from mirror.evaluation.task import DataFile, Options, Task
from mirror.modeling.encoder import Encode


logger = logging.getLogger(__name__)

SENTENCES, WORDS = ("sentence1", "sentence2"), ("word1", "word2")
TEST = ("default", "test")  # configuration and split of most sets on the Hub

# Task, files in sts/ and their numbers of rows (empty: any), lowest score, group, published scores, name of the data set,
# its id, configuration and split on the Hub. The highest score is 5.
SENTENCE_SETS = (
    ("sts12", {"sts12": 3108}, 0, "sts", "MTEB STS12; Mirror-BERT Table 3", "STS 2012", "mteb/sts12-sts", *TEST),
    ("sts13", {"sts13": 1500}, 0, "sts", "MTEB STS13; Mirror-BERT Table 3 (without SMT)", "STS 2013", "mteb/sts13-sts", *TEST),
    ("sts14", {"sts14": 3750}, 0, "sts", "MTEB STS14; Mirror-BERT Table 3", "STS 2014", "mteb/sts14-sts", *TEST),
    ("sts15", {"sts15": 3000}, 0, "sts", "MTEB STS15; Mirror-BERT Table 3", "STS 2015", "mteb/sts15-sts", *TEST),
    ("sts16", {"sts16": 1186}, 0, "sts", "MTEB STS16; Mirror-BERT Table 3", "STS 2016", "mteb/sts16-sts", *TEST),
    ("stsb", {"stsb_test": 1379}, 0, "sts", "MTEB STSBenchmark; Mirror-BERT Table 3", "STS Benchmark (test)",
     "mteb/stsbenchmark-sts", *TEST),
    ("stsb_dev", {"stsb_dev": 1500}, 0, "", "model selection only", "STS Benchmark (dev)",
     "mteb/stsbenchmark-sts", "default", "validation"),
    ("sickr", {"sickr_test": 4927}, 1, "sts", "Mirror-BERT Table 3, SimCSE Table 5 (the test part)", "SICK-R (test)"),
    ("sickr_full", {"sickr_train": 4500, "sickr_trial": 500, "sickr_test": 4927}, 1, "", "MTEB SICK-R",
     "SICK-R (all pairs)", "mteb/sickr-sts", *TEST),
    ("sts17_es", {"sts17_es": 250}, 0, "multilingual_sts", "MTEB STS17 es-es; Mirror-BERT Table 4", "STS 2017 (Spanish)",
     "mteb/sts17-crosslingual-sts", "es-es", "test"),
    ("sts17_ar", {"sts17_ar": 250}, 0, "multilingual_sts", "MTEB STS17 ar-ar; Mirror-BERT Table 4", "STS 2017 (Arabic)",
     "mteb/sts17-crosslingual-sts", "ar-ar", "test"),
    ("sts_ru", {"sts_ru": None}, 0, "multilingual_sts", "", "Russian STS Benchmark",
     "ai-forever/ru-stsbenchmark-sts", *TEST),
)  # fmt: skip
# Task, file in wordsim/, number of rows, highest score (the lowest is 0), group, name of the data set.
WORD_SETS = (
    ("simlex999", "simlex999", 999, 10, "word", "SimLex-999"),
    ("simverb3500", "simverb3500", 3500, 10, "word", "SimVerb-3500"),
    ("men", "men3000", 3000, 50, "word", "MEN"),
    ("ws353", "ws353", 353, 10, "word", "WordSim-353"),
    ("ws353_sim", "ws353_sim", 203, 10, "", "WordSim-353 (similarity)"),
    ("ws353_rel", "ws353_rel", 252, 10, "", "WordSim-353 (relatedness)"),
    ("rw", "rw2034", 2034, 10, "word", "Stanford Rare Words"),
    ("rg65", "rg65", 65, 4, "word", "RG-65"),
    ("mturk287", "mturk287", 287, 5, "word", "MTurk-287"),
    ("mturk771", "mturk771", 771, 5, "word", "MTurk-771"),
)

# The copy of SICK on the Hub has no split. If the data folder contains this file, `sickr_full` reads it.
SICK_FULL = DataFile("sts/sickr_full.tsv", (*SENTENCES, "score"), (9927,), (1, 5))

# The twelve languages of Vulić et al. (2020) and Arabic (Mirror-BERT Table 1); language pairs of Mirror-BERT Table 5.
MULTISIMLEX = "ARA CMN CYM ENG EST FIN FRA HEB POL RUS SPA SWA YUE".split()
MULTISIMLEX_PAIRS = ["-".join(pair) for pair in combinations(("ENG", "FRA", "CMN", "HEB"), 2)]


def tasks(data_dir: Path, options: Options) -> list[Task]:
    """Return all tasks of this family, including Multi-SimLex in every language of the data folder."""
    found = []
    for name, files, lowest, group, published, dataset, *hub in SENTENCE_SETS:
        if name == "sickr_full" and (data_dir / SICK_FULL.path).is_file():
            files = {"sickr_full": SICK_FULL.rows[0]}
        paths = {f"sts/{file}.tsv": rows for file, rows in files.items()}
        found.append(_task(name, paths, (lowest, 5), SENTENCES, group, dataset, published, tuple(hub)))
    found += [
        _task(name, {f"wordsim/{file}.tsv": rows}, (0, highest), WORDS, group, dataset)
        for name, file, rows, highest, group, dataset in WORD_SETS
    ]
    stored = {path.stem for path in (data_dir / "multisimlex").glob("*.tsv")}
    swapped = {"-".join(reversed(stem.split("-"))) for stem in stored}  # the folder may have a pair in the other order
    for stem in sorted(stored | set(MULTISIMLEX) | (set(MULTISIMLEX_PAIRS) - swapped)):
        languages, cross = stem.lower(), "-" in stem
        rows, group, table = (None, "multisimlex_cross", 5) if cross else (1888, "multisimlex", 1)
        name, dataset = f"multisimlex_{languages.replace('-', '_')}", f"Multi-SimLex ({languages})"
        paths = {f"multisimlex/{stem}.tsv": rows}
        found.append(_task(name, paths, (0, 6), WORDS, group, dataset, f"Mirror-BERT Table {table}"))
    return found


class InMemoryMetric(evaluate.Metric):
    """Metric that needs no folder. Create it with `keep_in_memory=True`. `evaluate.load("spearmanr")` needs the Hub."""

    def _build_data_dir(self) -> str:
        return ""  # `evaluate` creates a folder in the home, which a container may not have, even if it stays empty


class PairSimilarity(InMemoryMetric):
    """Spearman's and Pearson's correlation of similarities with human scores (Reimers, Beyer and Gurevych 2016).

    Ties get their mean rank. If one input is constant, both correlations are 0 and a warning is logged.
    """

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("float64")))
        return evaluate.MetricInfo("Spearman's rho and Pearson's r of similarities and gold scores.", "", features)

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        if np.ptp(predictions) == 0 or np.ptp(references) == 0:
            equal = "All %d similarities or gold scores are equal: a correlation is undefined and reported as 0"
            logger.warning(equal, len(predictions))
            return {"spearman": 0.0, "pearson": 0.0}
        measures = {"spearman": spearmanr, "pearson": pearsonr}
        return {name: float(measure(predictions, references).statistic) for name, measure in measures.items()}


def score_pairs(files: tuple[DataFile, ...], columns: tuple[str, str], encode: Encode, data_dir: Path) -> dict:
    """Compute Spearman and Pearson over all pairs of all files, and the mean Spearman of several subsets."""
    parts = [file.read(data_dir) for file in files]
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    data = {name: [value for part in parts for value in part[name]] for name in shared}
    gold = np.array([float(score) for score in data["score"]])  # (N,)
    cosines = cosines_of_pairs(encode, data[columns[0]], data[columns[1]])  # (N,)
    metric = PairSimilarity(keep_in_memory=True)
    overall = metric.compute(predictions=cosines, references=gold)
    fields = {"main_score": overall["spearman"], "num_examples": len(gold), "pearson_cosine": overall["pearson"]}
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(data.get("subset", ())):
        rows_of.setdefault(name, []).append(row)
    if len(rows_of) > 1:
        rhos = (metric.compute(predictions=cosines[rows], references=gold[rows]) for rows in rows_of.values())
        subsets = {name: rho["spearman"] for name, rho in zip(rows_of, rhos, strict=True)}
        fields |= {"mean_of_subsets": float(np.mean(list(subsets.values()))), "subsets": subsets}
    return fields


def _task(name: str, paths: dict, score_range: tuple, columns: tuple, group: str, dataset: str, published="", hub=()):
    """Build a task on files, by path with their numbers of rows (None: any)."""
    protocol = "all pairs concatenated, one Spearman rho between cosine and gold score"
    columns_of_file = (*columns, "score")
    files = tuple(DataFile(path, columns_of_file, (n,) if n else (), score_range) for path, n in paths.items())
    fields = {"groups": (group,) if group else (), "dataset": dataset, "hub": hub, "published": published}
    return Task(name, "spearman_cosine", protocol, files, partial(score_pairs, files, columns), **fields)

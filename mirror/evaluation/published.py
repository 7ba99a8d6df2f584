"""Published scores of papers and leaderboards, for comparison. Knows nothing of models and files.

All scores are fractions. A row contains only scores under the same protocol as the task of that name. Where two
protocols exist there are two tasks: `sickr` is the test part as in the papers, `sickr_full` all 9,927 pairs as in
MTEB.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from mirror.common.errors import InputError, did_you_mean


STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb")
STS_PAPER, STS_MTEB = (*STS, "sickr"), (*STS, "sickr_full")
MULTISIMLEX = tuple(f"multisimlex_{code}" for code in "eng fra est ara cmn rus spa pol".split())
MULTILINGUAL_STS = ("sts17_es", "sts17_ar", "sts_ru")
BIOMEDICAL = tuple(f"bel_{name}" for name in ("ncbi", "bc5cdr_disease", "bc5cdr_chemical", "askapatient", "cometa"))
TRANSFER = tuple(f"transfer_{name}" for name in "mr cr subj mpqa sst2 trec mrpc sicke sickr".split())
TATOEBA = tuple(f"tatoeba_{code}" for code in "fra deu rus spa jpn swh tur cmn".split())


@dataclass(frozen=True)
class Row:
    """Published scores of one system."""

    system: str  # usual name of the checkpoint, then pooling or variant
    source: str
    scores: dict[str, float]


def _row(system: str, source: str, *parts: tuple[tuple[str, ...], str]) -> Row:
    """Build a row from `parts`: task names, and their scores in the same order, as percentages or as fractions."""
    scores = {}
    for names, numbers in parts:
        values = [float(number) for number in numbers.split()]
        scores |= {name: value / 100 if max(values) > 1 else value for name, value in zip(names, values, strict=True)}
    return Row(system, source, scores)


ROWS = (
    _row("all-MiniLM-L6-v2 mean", "MTEB results repository",
         (STS_MTEB, "72.37 80.60 75.59 85.39 78.99 82.03 77.58"),
         (("sts17_es", "sts17_ar"), "76.12 50.89")),
    _row("LaBSE cls", "MTEB results repository",
         (STS_MTEB, "65.08 67.98 64.03 76.59 72.98 72.25 69.99"),
         (("sts17_es", "sts17_ar"), "80.83 69.07")),
    _row("paraphrase-multilingual-MiniLM-L12-v2 mean", "MTEB results repository",
         (STS_MTEB, "76.02 80.70 78.85 85.84 81.05 84.42 79.61"),
         (("sts17_es", "sts17_ar"), "85.56 79.16")),
    _row("all-mpnet-base-v2 mean", "MTEB paper",
         (STS_MTEB, "72.63 83.48 78.00 85.66 80.03 83.42 80.59")),
    _row("bert-base-uncased mean", "MTEB paper; CMLM Table 1 (transfer)",
         (STS_MTEB, "30.87 59.89 47.73 60.29 63.73 47.29 58.65"),
         (TRANSFER, "81.6 87.4 95.2 87.8 85.8 90.6 71.1 79.3 80.5")),
    _row("bert-base-uncased cls", "Mirror-BERT Tables 1-3 and 9",
         (STS_PAPER, ".215 .321 .213 .379 .442 .203 .427"),
         (MULTISIMLEX, ".105 .050 .160 .210 .277 .177 .152 .257"),
         (MULTILINGUAL_STS, ".526 .308 .470"),
         (BIOMEDICAL, ".676 .815 .798 .382 .404")),
    _row("bert-base-uncased mean_padded", "Mirror-BERT Tables 1, 3 and 4",
         (STS_PAPER, ".314 .536 .433 .582 .596 .464 .528"),
         (MULTISIMLEX, ".267 .020 .106 .220 .398 .202 .177 .217"),
         (MULTILINGUAL_STS, ".599 .455 .552")),
    _row("roberta-base cls", "Mirror-BERT Table 3", (STS_PAPER, ".090 .327 .210 .338 .388 .317 .355")),
    _row("roberta-base mean_padded", "Mirror-BERT Table 3", (STS_PAPER, ".134 .126 .124 .203 .224 .129 .320")),
    _row("mirror-bert-base-uncased", "Mirror-BERT Tables 1-4 (BERT+Mirror)",
         (STS_PAPER, ".670 .801 .713 .812 .743 .764 .699"),
         (MULTISIMLEX, ".556 .621 .308 .538 .639 .365 .296 .444"),
         (MULTILINGUAL_STS, ".709 .669 .673"),
         (BIOMEDICAL, ".872 .921 .957 .555 .547"),
         (("qnli",), ".674")),
    _row("mirror-bert-base-uncased drophead", "Mirror-BERT Table 3",
         (STS_PAPER, ".691 .811 .730 .819 .757 .780 .691")),
    _row("mirror-roberta-base", "Mirror-BERT Table 3",
         (STS_PAPER, ".646 .818 .734 .802 .782 .787 .703"), (("qnli",), ".709")),
    _row("mirror-roberta-base drophead", "Mirror-BERT Table 3",
         (STS_PAPER, ".666 .827 .740 .824 .797 .796 .697")),
    _row("PubMedBERT cls", "Mirror-BERT Table 2", (BIOMEDICAL, ".778 .890 .930 .425 .468")),
    _row("mirror-PubMedBERT", "Mirror-BERT Table 2", (BIOMEDICAL, ".909 .930 .958 .590 .603")),
    _row("SapBERT", "Mirror-BERT Table 2", (BIOMEDICAL, ".920 .935 .965 .705 .659")),
    _row("unsup-simcse-bert-base-uncased cls", "SimCSE Table 5",
         (STS_PAPER, "68.40 82.41 74.38 80.91 78.56 76.85 72.23")),
    _row("sup-simcse-bert-base-uncased pooler", "SimCSE Table 5; MTEB paper (SICK-R, all)",
         (STS_PAPER, "75.30 84.67 80.19 85.40 80.82 84.25 80.39"), (("sickr_full",), "80.77")),
    _row("bert-base-multilingual-cased", "CMLM Table 5, from XTREME (Tatoeba)",
         (TATOEBA, "66.3 77.2 61.2 68.7 42.0 11.5 34.8 71.6")),
    _row("xlm-roberta-base", "CMLM Table 5, from XTREME (Tatoeba; the large model)",
         (TATOEBA, "73.7 88.8 74.1 75.7 60.6 20.3 65.7 68.3")),
    _row("cmlm-base", "CMLM Table 1", (TRANSFER, "83.6 89.9 96.2 89.3 88.5 91.0 69.7 82.3 83.4")),
)  # fmt: skip


def nearest_row(model_name_or_path: str, pooling: str, tasks: set[str]) -> Row | None:
    """Return the row whose system has the name most similar to the model's, among the rows that share a task.

    Only names are compared, so the system is always printed with its scores. None if no name is similar.

    Args:
        tasks: names of the scored tasks.
    """
    name = PurePath(model_name_or_path).name.lower()

    def similarity(row: Row) -> tuple[float, bool, float]:
        checkpoint, *qualifiers = row.system.split()
        return _name_similarity(name, checkpoint), qualifiers == [pooling], _name_similarity(name, row.system)

    rows = [row for row in ROWS if tasks & row.scores.keys() and similarity(row)[0] >= 0.6]
    return max(rows, key=similarity, default=None)


def find_rows(records: Sequence[dict], system: str | None = None) -> list[Row | None]:
    """Select the published row for each record of results.json.

    Args:
        system: name of a published system, "none" for no row, or None for the system with the most similar name.

    Raises:
        InputError: there is no row of that system.
    """
    if system == "none":
        return [None] * len(records)
    if system is None:
        return [nearest_row(r["model_name_or_path"], r["pooling"], set(r["tasks"])) for r in records]
    rows = {row.system: row for row in ROWS}
    if system not in rows:
        raise InputError(f"--published: no row of '{system}'{did_you_mean(system, rows)}; known: {', '.join(rows)}")
    return [rows[system]] * len(records)


def _name_similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other.lower()).ratio()

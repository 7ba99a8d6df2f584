"""Published scores of papers and leaderboards, for comparison. Knows nothing of models.

All numbers of Mirror-BERT are in published_mirror_bert.tsv, one per line: where they are printed (table or section,
row, column), the checkpoint that made them (Table 15), and what was scored. All scores are fractions. A row contains only scores under the same protocol as the task of that name. Where two
protocols exist there are two tasks: `sickr` is the test part as in the papers, `sickr_full` all 9,927 pairs as in
MTEB.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from mirror.common.errors import InputError, did_you_mean
from mirror.evaluation.published_cmlm import scores_by_task


STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb")
STS_PAPER, STS_MTEB = (*STS, "sickr"), (*STS, "sickr_full")
MULTISIMLEX = tuple(f"multisimlex_{code}" for code in "eng fra est ara cmn rus spa pol".split())
MULTILINGUAL_STS = ("sts17_es", "sts17_ar", "sts_ru")
BIOMEDICAL = tuple(f"bel_{name}" for name in ("ncbi", "bc5cdr_disease", "bc5cdr_chemical", "askapatient", "cometa"))
TRANSFER = tuple(f"transfer_{name}" for name in "mr cr subj mpqa sst2 trec mrpc sicke sickr".split())


@dataclass(frozen=True)
class Row:
    """Published scores of one system."""

    system: str  # usual name of the checkpoint, then pooling or variant
    source: str
    scores: dict[str, float]


@dataclass(frozen=True)
class Number:
    """A number that a paper prints: a line of the data file."""

    table: str  # "16", or "section 4.2"
    row: str
    column: str
    value: float
    model: str  # last part of the checkpoint's Hub id; two joined by "+" for a pair of languages
    variant: str  # "cls" or "mean_padded" without training, "mirror" and what was changed with it, empty: a baseline
    score: str  # a task, or the label of a study's column; "average" of the row

    @property
    def system(self) -> str:
        if self.variant.startswith("mirror"):
            return f"mirror-{self.model}{self.variant.removeprefix('mirror')}"
        return f"{self.model} {self.variant}".strip()


def read_numbers(path: Path) -> tuple[Number, ...]:
    """Read a tab-separated file with the fields of `Number`."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return tuple(Number(**row | {"value": float(row["value"])}) for row in rows)


MIRROR_BERT = read_numbers(Path(__file__).with_name("published_mirror_bert.tsv"))
# Tables 1, 4, 5, 6 and 9 repeat rows of 16 to 19 and 14. The others print ablations.
COMPARED_TABLES = ("2", "3", "16", "17", "18", "19", "section 4.2", "section 4.4")
COMPARED_VARIANTS = ("", "cls", "mean_padded", "mirror", "mirror drophead")


def _row(system: str, source: str, *parts: tuple[tuple[str, ...], str]) -> Row:
    """Build a row from `parts`: task names, and their scores in the same order, as percentages or as fractions."""
    scores = {}
    for names, numbers in parts:
        values = [float(number) for number in numbers.split()]
        scores |= {name: value / 100 if max(values) > 1 else value for name, value in zip(names, values, strict=True)}
    return Row(system, source, scores)


def _mirror_bert_rows() -> list[Row]:
    """Build a row for each system of Mirror-BERT from the numbers that are main scores of tasks."""
    numbers: dict[str, list[Number]] = {}
    for number in MIRROR_BERT:
        is_task = number.score != "average" and " " not in number.score
        if is_task and number.table in COMPARED_TABLES and number.variant in COMPARED_VARIANTS:
            numbers.setdefault(number.system, []).append(number)
    return [Row(system, _source(found), {n.score: n.value for n in found}) for system, found in numbers.items()]


def _source(numbers: Sequence[Number]) -> str:
    places = dict.fromkeys(n.table if n.table.startswith("section") else f"Table {n.table}" for n in numbers)
    return f"Mirror-BERT {', '.join(places)}"


# System -> table and row of CMLM. The baselines without a checkpoint of that name are only in the tables of studies.
CMLM_SYSTEMS = {
    "cmlm-base": (("1", "CMLM base"),),
    "cmlm-large": (("1", "CMLM large"),),
    "bert-large-uncased mean": (("1", "English BERT large"),),
    "bert-base-multilingual-cased mean": (("2", "mBERT"),),
    "bert-base-multilingual-cased": (("5", "mBERT"),),  # both from XTREME; Table 2 does not tell the size of XLM-R
    "xlm-roberta-large": (("5", "XLM-R"),),
    "LASER": (("3", "LASER"), ("5", "LASER")),
    "cmlm-multilingual": (("2", "CMLM"),),
    "cmlm-multilingual-s1": (("3", "S1"),),
    "cmlm-multilingual-s2": (("3", "S2"),),
    "cmlm-multilingual-s3": (("3", "S3"), ("5", "CMLM+BR")),
    "cmlm-multilingual-s3-nli": (("3", "S3+NLI"), ("5", "CMLM+BR+NLI")),
    "cmlm-f-mbert": (("3", "f-mBERT"),),
}


def _cmlm_rows() -> list[Row]:
    """Build a row for each system of CMLM whose name a checkpoint can have."""
    return [
        Row(
            system,
            f"CMLM Table{'s' * (len(places) > 1)} {' and '.join(table for table, _ in places)}",
            {task: score for place in places for task, score in scores_by_task(*place).items()},
        )
        for system, places in CMLM_SYSTEMS.items()
    ]


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
    *_mirror_bert_rows(),
    _row("unsup-simcse-bert-base-uncased cls", "SimCSE Table 5",
         (STS_PAPER, "68.40 82.41 74.38 80.91 78.56 76.85 72.23")),
    _row("sup-simcse-bert-base-uncased pooler", "SimCSE Table 5; MTEB paper (SICK-R, all)",
         (STS_PAPER, "75.30 84.67 80.19 85.40 80.82 84.25 80.39"), (("sickr_full",), "80.77")),
    *_cmlm_rows(),
)  # fmt: skip


def checkpoint_name(*models: str) -> str:
    """Return the name of a checkpoint in the published tables: the last part of a path or Hub id, in lower case.

    Args:
        models: one, or one for each of two languages.
    """
    return "+".join(PurePath(model).name.lower() for model in models)


def nearest_row(model_name_or_path: str, pooling: str, tasks: set[str]) -> Row | None:
    """Return the row of the system that has the name most similar to the model's and shares a task with it.

    Only names are compared, so the system is always printed with its scores. None if no name is similar, or if nothing
    was published of the most similar system on these tasks: another checkpoint's numbers are not shown instead.

    Args:
        model_name_or_path: a model, or two joined by "+": an encoder for each language.
        tasks: names of the scored tasks.
    """
    name = checkpoint_name(*model_name_or_path.split("+"))

    def similarity(row: Row) -> tuple[float, bool, float]:
        checkpoint, *qualifiers = row.system.split()
        return _name_similarity(name, checkpoint), qualifiers == [pooling], _name_similarity(name, row.system)

    rows = [row for row in ROWS if ("+" in row.system) == ("+" in name)]
    closest = max(0.6, *(similarity(row)[0] for row in rows))
    rows = [row for row in rows if similarity(row)[0] >= closest and tasks & row.scores.keys()]
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
        return [nearest_row(_models(record), record["pooling"], set(record["tasks"])) for record in records]
    rows = {row.system: row for row in ROWS}
    if system not in rows:
        raise InputError(f"--published: no row of '{system}'{did_you_mean(system, rows)}; known: {', '.join(rows)}")
    return [rows[system]] * len(records)


def _models(record: dict) -> str:
    names = (record.get(key) for key in ("model_name_or_path", "second_model_name_or_path"))
    return "+".join(name for name in names if name)


def _name_similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other.lower()).ratio()

"""Published scores of papers and leaderboards, for comparison. All scores are fractions.

published_mirror_bert.tsv has all numbers of Mirror-BERT, with the checkpoint that made them (Table 15). published_cmlm.tsv
has Tables 1 to 7 of CMLM in percent, as printed. "CMLM+BR" in Table 6 is printed as "ours", and ", frozen" and ", trained"
tell the halves of Table 4 apart. The poster of Mirror-BERT prints .434 for fastText on English (average .450) where the
paper has .528 (.461), which is used. The paper's Russian STS is deepPavlovEval's and not the set of the task `sts_ru`.
published_others.tsv has scores of MTEB and of SimCSE, published_cmlm_systems.tsv the rows of CMLM that have a checkpoint: both
rows of mBERT and XLM-R are from XTREME, and Table 2 does not state the size of XLM-R.

A row of `ROWS` contains only scores under the same protocol as the task of that name. Where two protocols exist there are
two tasks: `sickr` is the test part as in the papers, `sickr_full` all 9,927 pairs as in MTEB.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from mirror.common.errors import InputError, did_you_mean


class Row(NamedTuple):
    """Published scores of one system."""

    system: str  # usual name of the checkpoint, then pooling or variant
    source: str
    scores: dict[str, float]


class Number(NamedTuple):
    """A number that Mirror-BERT prints: a line of the data file."""

    table: str  # "16", or "section 4.2"
    row: str
    column: str
    value: float
    model: str  # last part of the checkpoint's Hub id; two joined by "+" for a pair of languages
    variant: str  # "cls" or "mean_padded" without training, "mirror" and what was changed with it, empty: a baseline
    score: str  # a task, or the label of a study's column; "average" of the row

    @property
    def system(self) -> str:
        """Return the usual name of the checkpoint, then its variant."""
        if self.variant.startswith("mirror"):
            return f"mirror-{self.model}{self.variant.removeprefix('mirror')}"
        return f"{self.model} {self.variant}".strip()


def _read_tsv(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


MIRROR_BERT = tuple(Number(**row | {"value": float(row["value"])}) for row in _read_tsv("published_mirror_bert.tsv"))
# Tables 1, 4, 5, 6 and 9 repeat rows of 16 to 19 and 14. The others print ablations.
COMPARED_TABLES = ("2", "3", "16", "17", "18", "19", "section 4.2", "section 4.4")
COMPARED_VARIANTS = ("", "cls", "mean_padded", "mirror", "mirror drophead")
LEVEL_TASKS = {"word": ("multisimlex", "bli"), "sentence": ("sts", "sickr")}  # of released models; not QNLI

CMLM_AVERAGES = ("Avg.", "Mean")  # as printed: some differ from the mean of their row
# Printed as 9.5; the printed mean of the row, 88.8, implies about 96.
MISPRINTS = (("5", "CMLM+BR+NLI", "es"),)
_SENTEVAL = {column: f"transfer_{column.lower()}" for column in "MR CR SUBJ MPQA TREC MRPC".split()}
_SENTEVAL |= {"SST": "transfer_sst2", "SICK-E": "transfer_sicke", "SICK-R": "transfer_sickr"}
_XEVAL = {language: f"xeval_{language}" for language in "ar bg de el en es fr hi ru sw th tr ur vi zh".split()}
_CODES = {
    "af": "afr", "ar": "ara", "bg": "bul", "bn": "ben", "de": "deu", "el": "ell", "es": "spa", "et": "est", "eu": "eus",
    "fa": "pes", "fi": "fin", "fr": "fra", "he": "heb", "hi": "hin", "hu": "hun", "id": "ind", "it": "ita", "ja": "jpn",
    "jv": "jav", "ka": "kat", "kk": "kaz", "ko": "kor", "ml": "mal", "mr": "mar", "nl": "nld", "pt": "por", "ru": "rus",
    "sw": "swh", "ta": "tam", "te": "tel", "th": "tha", "tl": "tgl", "tr": "tur", "ur": "urd", "vi": "vie", "zh": "cmn",
}  # fmt: skip
# Column -> task, for the tables in which a column is the main score of a task.
CMLM_TASKS = {"1": _SENTEVAL, "2": _XEVAL, "3": _XEVAL, "7": _SENTEVAL}
CMLM_TASKS["5"] = {column: f"tatoeba_{code}" for column, code in _CODES.items()}
CMLM_TASKS["6"] = {code: f"tatoeba_{code}" for code in "fra cmn spa deu rus ita tur por hun jpn nld".split()}
# Every printed number of CMLM: (table, row, column) -> percent.
CMLM = {(row["table"], row["row"], row["column"]): float(row["value"]) for row in _read_tsv("published_cmlm.tsv")}


def printed_table(table: str) -> dict[str, dict[str, float]]:
    """Return a table of CMLM as fractions: row -> column -> score, misprints left out."""
    found: dict[str, dict[str, float]] = {}
    for place, percent in CMLM.items():
        if place[0] == table and place not in MISPRINTS:
            found.setdefault(place[1], {})[place[2]] = round(percent / 100, 4)
    return found


def _all_rows() -> list[Row]:
    """Build a row for each system of MTEB and SimCSE, then of Mirror-BERT, then of CMLM, from the main scores of tasks."""
    others: dict[str, Row] = {}
    for line in _read_tsv("published_others.tsv"):
        row = others.setdefault(line["system"], Row(line["system"], line["source"], {}))
        row.scores[line["task"]] = float(line["percent"]) / 100
    numbers: dict[str, list[Number]] = {}
    for number in MIRROR_BERT:
        is_task = number.score != "average" and " " not in number.score
        if is_task and number.table in COMPARED_TABLES and number.variant in COMPARED_VARIANTS:
            numbers.setdefault(number.system, []).append(number)
    rows = list(others.values())
    for system, found in numbers.items():
        places = dict.fromkeys(n.table if n.table.startswith("section") else f"Table {n.table}" for n in found)
        rows.append(Row(system, f"Mirror-BERT {', '.join(places)}", {n.score: n.value for n in found}))
    systems: dict[str, list[tuple[str, str]]] = {}
    for line in _read_tsv("published_cmlm_systems.tsv"):
        systems.setdefault(line["system"], []).append((line["table"], line["row"]))
    for system, places in systems.items():
        tables = " and ".join(table for table, _ in places)
        found = ((CMLM_TASKS[table], printed_table(table)[row].items()) for table, row in places)
        scores = {tasks[column]: score for tasks, items in found for column, score in items if column in tasks}
        rows.append(Row(system, f"CMLM Table{'s' * (len(places) > 1)} {tables}", scores))
    return rows


ROWS = tuple(_all_rows())


def checkpoint_name(*models: str) -> str:
    """Return the name of one model, or of one for each of two languages: the last part of path or Hub id, in lower case."""
    return "+".join(PurePath(model).name.lower() for model in models)


def nearest_row(model_name_or_path: str, pooling: str, tasks: set[str]) -> Row | None:
    """Return the row of the model's name (two joined by "+") and pooling, if it has a score of `tasks`, or None."""
    name = checkpoint_name(*model_name_or_path.split("+"))
    _, model, level, drophead = re.fullmatch(r"((mirror-.*)-(word|sentence))?(.*?)", name).groups()
    systems = (f"{model} {drophead[1:]}".strip(),) if model else (f"{name} {pooling}", name)
    for row in sorted(ROWS, key=lambda row: -len(row.system)):  # that of the pooling first
        scores = {task: score for task, score in row.scores.items() if task.startswith(LEVEL_TASKS.get(level, ""))}
        if row.system.lower() in systems and tasks & scores.keys():
            return row._replace(scores=scores)
    return None


def find_rows(records: Sequence[dict], system: str | None = None) -> list[Row | None]:
    """Select the published row for each record of results.json: of `system`, of none ("none"), or of the same name (None)."""
    if system == "none":
        return [None] * len(records)
    if system:
        rows = {row.system: row for row in ROWS}
        if system not in rows:
            meant = did_you_mean(system, rows) or f"; known: {', '.join(rows)}"
            raise InputError(f"--published: no row of '{system}'{meant}")
        return [rows[system]] * len(records)
    keys = ("model_name_or_path", "second_model_name_or_path")
    names = ["+".join(record[key] for key in keys if record.get(key)) for record in records]
    return [nearest_row(name, each["pooling"], set(each["tasks"])) for name, each in zip(names, records, strict=True)]

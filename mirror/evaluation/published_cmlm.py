"""The numbers that the CMLM paper prints in Tables 1 to 7, its own and those of the baselines.

published_cmlm.tsv has one per line, in percent and as printed: table, row, column, value. Rows and columns have the paper's names;
"CMLM+BR" in Table 6 is printed as "ours", and the halves of Table 4 are told apart by ", frozen" and ", trained".
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path


AVERAGES = ("Avg.", "Mean")  # as printed: some differ from the mean of their row
# Printed as 9.5; the printed mean of the row, 88.8, implies about 96.
MISPRINTS = (("5", "CMLM+BR+NLI", "es"),)

_SENTEVAL = {
    column: f"transfer_{column.replace('-', '').lower().replace('sst', 'sst2')}"
    for column in "MR CR SUBJ MPQA SST TREC MRPC SICK-E SICK-R".split()
}
_XEVAL = {language: f"xeval_{language}" for language in "ar bg de el en es fr hi ru sw th tr ur vi zh".split()}
_CODES = {
    "af": "afr", "ar": "ara", "bg": "bul", "bn": "ben", "de": "deu", "el": "ell", "es": "spa", "et": "est", "eu": "eus",
    "fa": "pes", "fi": "fin", "fr": "fra", "he": "heb", "hi": "hin", "hu": "hun", "id": "ind", "it": "ita", "ja": "jpn",
    "jv": "jav", "ka": "kat", "kk": "kaz", "ko": "kor", "ml": "mal", "mr": "mar", "nl": "nld", "pt": "por", "ru": "rus",
    "sw": "swh", "ta": "tam", "te": "tel", "th": "tha", "tl": "tgl", "tr": "tur", "ur": "urd", "vi": "vie", "zh": "cmn",
}  # fmt: skip
_TATOEBA = {column: f"tatoeba_{code}" for column, code in _CODES.items()}
_ELEVEN = {code: f"tatoeba_{code}" for code in "fra cmn spa deu rus ita tur por hun jpn nld".split()}
# Column -> task, for the tables in which a column is the main score of a task.
TASKS = {"1": _SENTEVAL, "2": _XEVAL, "3": _XEVAL, "5": _TATOEBA, "6": _ELEVEN, "7": _SENTEVAL}


@cache
def read_printed() -> dict[tuple[str, str, str], float]:
    """Read every printed number: (table, row, column) -> percent."""
    path = Path(__file__).with_name("published_cmlm.tsv")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {(row["table"], row["row"], row["column"]): float(row["value"]) for row in rows}


def printed_table(table: str) -> dict[str, dict[str, float]]:
    """Return a table of the paper as fractions: row -> column -> score, misprints left out."""
    found: dict[str, dict[str, float]] = {}
    for place, percent in read_printed().items():
        if place[0] == table and place not in MISPRINTS:
            found.setdefault(place[1], {})[place[2]] = round(percent / 100, 4)
    return found


def scores_by_task(table: str, row: str) -> dict[str, float]:
    """Return a printed row as fractions by the name of the task, without its average."""
    tasks = TASKS[table]
    return {tasks[column]: score for column, score in printed_table(table)[row].items() if column in tasks}

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

"""From the records of cells to numbers, and to table.md and results.csv: ours, published, difference."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirror.studies.cells import Column, Study


AVERAGE = "average"


@dataclass(frozen=True)
class Score:
    """One number a seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """Over seeds, of the sample (ddof 1); None for a single value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.std is None else f" ± {self.std:.4f}")


Scores = dict[str, dict[str, Score]]  # row -> label of a column -> score


def collect(study: Study, records: Sequence[dict]) -> Scores:
    """Scores of every row and column that was run; with `study.average`, their mean in a last column.

    A row's average is taken for each seed by itself, over the columns that any row has. A row that lacks one of them, so
    far, has none.
    """
    by_seed: dict[str, dict] = {row: {} for row in study.rows}  # row -> seed -> label -> value
    for record in records:
        values = by_seed[record["row"]].setdefault(record["seed"], {})
        values |= {column.label: value for column, value in measured(study, record)}
    labels = [c.label for c in study.columns if any(c.label in v for s in by_seed.values() for v in s.values())]
    if study.average:
        for seeds in by_seed.values():
            for values in seeds.values():
                if all(label in values for label in labels):
                    values[AVERAGE] = float(np.mean([values[label] for label in labels]))
        labels = [*labels, AVERAGE] if labels else []
    return {row: _over_seeds(labels, seeds) for row, seeds in by_seed.items()}


def measured(study: Study, record: dict) -> list[tuple[Column, float]]:
    """The columns that a cell fills, and with what."""
    return [
        (column, record["tasks"][column.task][column.field])
        for column in study.columns
        if column.task in record["tasks"] and column.part in (None, record["part"])
    ]


def _over_seeds(labels: Sequence[str], seeds: Mapping) -> dict[str, Score]:
    found = {label: tuple(values[label] for values in seeds.values() if label in values) for label in labels}
    return {label: Score(values) for label, values in found.items() if values}


def shown_columns(study: Study, scores: Scores) -> list[str]:
    """Labels with a score in any row, in the study's order."""
    labels = [*(column.label for column in study.columns), *([AVERAGE] if study.average else [])]
    return [label for label in labels if any(label in of_row for of_row in scores.values())]


def head(study: Study, labels: Sequence[str], label: str) -> str:
    """What stands over a column: an average over fewer columns than the paper's says so."""
    parts = [shown for shown in labels if shown != AVERAGE]
    return f"{label} of {len(parts)}" if label == AVERAGE and len(parts) < len(study.columns) else label


def published_scores(study: Study, labels: Sequence[str], row: str, family: str) -> dict[str, float]:
    """What the paper prints for a row; its average over the columns shown where it prints them all.

    An average that the paper prints without its parts stands only if all columns are shown.
    """
    printed = study.published.get(family, {}).get(row, {})
    found = {label: printed[label] for label in labels if label in printed and label != AVERAGE}
    parts = [label for label in labels if label != AVERAGE]
    if AVERAGE in labels:
        if parts and all(label in found for label in parts):
            found[AVERAGE] = float(np.mean([found[label] for label in parts]))
        elif AVERAGE in printed and len(parts) == len(study.columns):
            found[AVERAGE] = printed[AVERAGE]
    return found


def format_table(study: Study, scores: Scores, family: str) -> str:
    """A Markdown table: for each row ours, and beneath it the published numbers and the difference."""
    labels = shown_columns(study, scores)
    heads = [head(study, labels, label) for label in labels]
    lines = ["| | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for row in study.rows:
        ours = scores[row]
        lines.append(_line(row, [str(ours[label]) if label in ours else "" for label in labels]))
        if theirs := published_scores(study, labels, row, family):
            lines.append(_line(f"published ({family})", [_number(theirs.get(label), "") for label in labels]))
            both = [
                ours[label].mean - theirs[label] if label in ours and label in theirs else None for label in labels
            ]
            if any(value is not None for value in both):
                lines.append(_line("difference", [_number(value, "+") for value in both]))
    return "\n".join(lines) + "\n"


def best_row(study: Study, scores: Scores) -> str | None:
    """The row with the highest mean on the study's dev column."""
    scored = {row: of_row[study.choose_on].mean for row, of_row in scores.items() if study.choose_on in of_row}
    return max(scored, key=scored.get) if scored else None


def format_csv(study: Study, records: Sequence[dict]) -> str:
    """One line for each cell, seed and column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("row", "part", "seed", "column", "task", "field", "score", "seconds"))
    for record in records:
        seconds = round(record["seconds_training"] + record["seconds_scoring"], 1)
        cell = (record["row"], record["part"], record["seed"] if record["seed"] is not None else "")
        for column, value in measured(study, record):
            writer.writerow((*cell, column.label, column.task, column.field, value, seconds))
    return text.getvalue()


def _line(label: str, cells: Sequence[str]) -> str:
    return f"| {label} | " + " | ".join(cells) + " |"


def _number(value: float | None, sign: str) -> str:
    return "" if value is None else f"{value:{sign}.4f}"

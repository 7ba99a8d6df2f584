"""Scores of a study, aggregated over seeds, and the content of table.md and results.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirror.studies.cells import AVERAGE, Cell, Column, Study


@dataclass(frozen=True)
class Score:
    """Values of one score, one per seed; the base model is scored once, with the seed None."""

    by_seed: Mapping[int | None, float]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds (ddof 1); None for a single value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.std is None else f" ± {self.std:.4f}")


Scores = dict[str, dict[str, Score]]  # row -> column label -> score
Beside = dict[str, dict[str, float]]  # row -> column label -> published score of the same model


def collect(study: Study, records: Sequence[dict]) -> Scores:
    """Collect the scores of all finished cells by row and column, with their mean if `study.average` is set.

    The average of a row is computed for each seed over the columns that any row has. Seeds that lack one of these
    columns have no average.

    Args:
        records: contents of `cell.json`.
    """
    by_seed: dict[str, dict] = {row: {} for row in study.rows}  # row -> seed -> label -> value
    for record in readings(study, records):
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


def readings(study: Study, records: Sequence[dict]) -> list[dict]:
    """Return each record, followed by a copy for each further row that reports another field of it (`Study.also`)."""
    suffixes = [("", {}), *((f", {suffix}", {"field": field}) for suffix, field in study.also.items())]
    return [record | {"row": record["row"] + suffix} | field for record in records for suffix, field in suffixes]


def measured(study: Study, record: dict) -> list[tuple[Column, float]]:
    """Return the columns that a cell fills, with their values."""
    return [
        (column, record["tasks"][column.task][record.get("field", column.field)])
        for column in study.columns
        if column.task in record["tasks"] and column.part in (None, record["part"])
    ]


def _over_seeds(labels: Sequence[str], seeds: Mapping) -> dict[str, Score]:
    found = {label: {seed: values[label] for seed, values in seeds.items() if label in values} for label in labels}
    return {label: Score(by_seed) for label, by_seed in found.items() if by_seed}


def shown_columns(study: Study, scores: Scores) -> list[str]:
    """Return the labels of the columns with a score in any row, in the study's order."""
    labels = [*(column.label for column in study.columns), *([AVERAGE] if study.average else [])]
    return [label for label in labels if any(label in of_row for of_row in scores.values())]


def column_header(study: Study, labels: Sequence[str], label: str) -> str:
    """Return the header of a column; an average over fewer columns than in the paper says how many."""
    parts = [shown for shown in labels if shown != AVERAGE]
    return f"{label} of {len(parts)}" if label == AVERAGE and len(parts) < len(study.columns) else label


def published_beside(study: Study, checkpoint_of: Callable[[Cell], str]) -> Beside:
    """Collect the published scores of the cells whose model is the one that made them.

    Args:
        checkpoint_of: name of a cell's checkpoint, see `mirror.evaluation.published.checkpoint_name`.
    """
    beside: Beside = {}
    for cell in study.cells:
        printed = study.published.get(checkpoint_of(cell), {}).get(cell.row, {})
        labels = [c.label for c in study.columns if c.task in cell.tasks and c.part in (None, cell.part)]
        found = {label: printed[label] for label in (*labels, AVERAGE) if label in printed}
        if found:
            beside.setdefault(cell.row, {}).update(found)
    return beside


def published_scores(study: Study, labels: Sequence[str], printed: Mapping[str, float]) -> dict[str, float]:
    """Return the published scores of a row for the shown columns, with their average.

    An average that the paper reports without its parts is returned only if all columns are shown.

    Args:
        labels: labels of the shown columns.
        printed: column label -> published score.
    """
    found = {label: printed[label] for label in labels if label in printed and label != AVERAGE}
    parts = [label for label in labels if label != AVERAGE]
    if AVERAGE in labels:
        if parts and all(label in found for label in parts):
            found[AVERAGE] = float(np.mean([found[label] for label in parts]))
        elif AVERAGE in printed and len(parts) == len(study.columns):
            found[AVERAGE] = printed[AVERAGE]
    return found


def format_table(study: Study, scores: Scores, beside: Beside) -> str:
    """Format a Markdown table: for each row our scores and, of the published model, its scores and the difference.

    The study's baselines follow if there is anything published to compare with.
    """
    labels = shown_columns(study, scores)
    headers = [column_header(study, labels, label) for label in labels]
    lines = ["| | " + " | ".join(headers) + " |", "| --- |" + " ---: |" * len(headers)]
    for row in study.rows:
        ours = scores[row]
        lines.append(_line(row, [str(ours[label]) if label in ours else "" for label in labels]))
        if theirs := published_scores(study, labels, beside.get(row, {})):
            lines.append(_line("published", [_number(theirs.get(label), "") for label in labels]))
            both = [
                ours[label].mean - theirs[label] if label in ours and label in theirs else None for label in labels
            ]
            if any(value is not None for value in both):
                lines.append(_line("difference", [_number(value, "+") for value in both]))
    for name, printed in study.baselines.items() if beside else ():
        if theirs := published_scores(study, labels, printed):
            lines.append(_line(f"{name}, published", [_number(theirs.get(label), "") for label in labels]))
    return "\n".join(lines) + "\n"


def best_row(study: Study, scores: Scores) -> str | None:
    """Return the row with the highest mean on the study's dev column, or None if it was not scored."""
    scored = {row: of_row[study.choose_on].mean for row, of_row in scores.items() if study.choose_on in of_row}
    return max(scored, key=scored.get) if scored else None


def format_csv(study: Study, records: Sequence[dict]) -> str:
    """Format results.csv: one line per cell, seed and column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("row", "part", "seed", "column", "task", "field", "score", "seconds"))
    for record in readings(study, records):
        seconds = round(record["seconds_training"] + record["seconds_scoring"], 1)
        cell = (record["row"], record["part"], record["seed"] if record["seed"] is not None else "")
        for column, value in measured(study, record):
            writer.writerow((*cell, column.label, column.task, record.get("field", column.field), value, seconds))
    return text.getvalue()


def _line(label: str, cells: Sequence[str]) -> str:
    return f"| {label} | " + " | ".join(cells) + " |"


def _number(value: float | None, sign: str) -> str:
    return "" if value is None else f"{value:{sign}.4f}"

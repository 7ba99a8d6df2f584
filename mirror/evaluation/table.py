"""The comparison table: models, published scores and differences side by side. Knows nothing of files and models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from mirror.evaluation.published import Row


COLUMNS_PER_BLOCK = 8  # of the printed table


class Line(NamedTuple):
    """A line of the comparison table: a score for each column, None where there is none."""

    label: str
    scores: list[float | None]
    # or published (of another system), difference (from the published scores), change (from the first model), percent
    kind: str = "scores"


Table = list[Line]


def short_names(models: Sequence[str]) -> list[str]:
    """Return the last part of each path or Hub id, or the full name where the last part is not unique."""
    last = [PurePath(model).name or model for model in models]
    return [name if last.count(name) == 1 else model for name, model in zip(last, models, strict=True)]


def comparison(records: Sequence[dict], published: Sequence[Row | None]) -> tuple[list[str], Table]:
    """Build the comparison table: for each model its scores, the published scores and the difference from them.

    Every model but the first also gets the change from the first model, and that in percent of the first model's score. The
    last line is TF-IDF, where a task measures it.

    Args:
        records: contents of results.json, one per model, all with the same tasks.
        published: the published row to show below each model, or None.

    Returns:
        Names of the columns, and the lines of the table.
    """
    lacking = {group: f" ({len(names)} missing)" for group, names in records[0]["group_members_missing"].items()}
    means = [f"mean {group}{lacking.get(group, '')}" for group in records[0]["groups"]]
    columns = [*records[0]["tasks"], *means]
    table: Table = []
    names = short_names([record["model_name_or_path"] for record in records])
    for name, record, row in zip(names, records, published, strict=True):
        ours = [*(task["main_score"] for task in record["tasks"].values()), *record["groups"].values()]
        table.append(Line(name, ours))
        if row:
            theirs = [row.scores.get(task) for task in record["tasks"]]
            theirs += [_published_mean(row, members) for members in record["group_members"].values()]
            table.append(Line(f"published: {row.system}", theirs, "published"))
            table.append(Line("difference", _differences(ours, theirs), "difference"))
        if record is not records[0]:
            first = table[0].scores
            change = _differences(ours, first)
            percent = [100 * c / b if b > 0 else None for c, b in zip(change, first, strict=True)]
            table.append(Line(f"change from {names[0]}", change, "change"))
            table.append(Line("change in percent", percent, "percent"))
    lexical = [task["tfidf"][task["metric"]] if "tfidf" in task else None for task in records[0]["tasks"].values()]
    if any(lexical):
        table.append(Line("TF-IDF", lexical + [None] * len(means), "published"))
    return columns, table


def format_text(columns: Sequence[str], table: Table) -> str:
    """Format the table as plain text, in blocks of eight columns."""
    labels = [line.label if line.kind == "scores" else f"  {line.label}" for line in table]
    margin = max(len(label) for label in labels)
    blocks = []
    for start in range(0, len(columns), COLUMNS_PER_BLOCK):
        names = columns[start : start + COLUMNS_PER_BLOCK]
        widths = [max(7, len(name)) for name in names]
        lines = [[" " * margin, *(name.rjust(width) for name, width in zip(names, widths, strict=True))]]
        for label, (_, scores, kind) in zip(labels, table, strict=True):
            cells = zip(scores[start : start + COLUMNS_PER_BLOCK], widths, strict=True)
            lines.append([label.ljust(margin), *(format_score(score, kind).rjust(width) for score, width in cells)])
        blocks.append("\n".join("  ".join(line).rstrip() for line in lines))
    return "\n\n".join(blocks)


def format_score(score: float | None, kind: str) -> str:
    """A score of the table, according to the kind of its line; empty where there is none."""
    if score is None:
        return ""
    return {"difference": f"{score:+.4f}", "change": f"{score:+.4f}", "percent": f"{score:+.1f}%"}.get(
        kind, f"{score:.4f}"
    )


def describe_settings(record: dict) -> str:
    """How a model was scored, in a few words."""
    return ", ".join(f"{key} {record[key]}" for key in ("pooling", "max_seq_length", "dtype"))


def _differences(ours: Sequence[float], theirs: Sequence[float | None]) -> list[float | None]:
    return [None if b is None else a - b for a, b in zip(ours, theirs, strict=True)]


def _published_mean(row: Row, members: Sequence[str]) -> float | None:
    scores = [row.scores[name] for name in members if name in row.scores]
    return sum(scores) / len(scores) if len(scores) == len(members) else None

"""Output of a scoring run: results.json, results.csv, results.md and the printed table. Knows nothing of models.

All scores are fractions. All text files of this module are written atomically.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

import evaluate
import numpy as np

from mirror.common.atomic_files import atomic_write_text
from mirror.evaluation.published import Row


CSV_COLUMNS = ("task", "metric", "main_score", "num_examples", "protocol", "seconds", "data_sha256")
COLUMNS_PER_BLOCK = 8  # of the printed table

Table = list[tuple[str, list[float | None]]]  # label and scores of each line


def short_names(models: Sequence[str]) -> list[str]:
    """Return the last part of each path or Hub id, or the full name where the last part is not unique."""
    last = [PurePath(model).name or model for model in models]
    return [name if last.count(name) == 1 else model for name, model in zip(last, models, strict=True)]


def result_paths(models: Sequence[str], output_dir: Path) -> list[Path]:
    """The file results.json of each model: in the output folder, or with several models in a folder for each."""
    if len(models) == 1:
        return [output_dir / "results.json"]
    return [output_dir / file_name(name) / "results.json" for name in short_names(models)]


def comparison(records: Sequence[dict], published: Sequence[Row | None]) -> tuple[list[str], Table]:
    """Build the comparison table: for each model its scores, the published scores and the difference.

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
    for name, record, row in zip(
        short_names([r["model_name_or_path"] for r in records]), records, published, strict=True
    ):
        ours = [*(task["main_score"] for task in record["tasks"].values()), *record["groups"].values()]
        table.append((name, ours))
        if row:
            theirs = [row.scores.get(task) for task in record["tasks"]]
            theirs += [_published_mean(row, members) for members in record["group_members"].values()]
            table.append((f"  published: {row.system}", theirs))
            table.append(("  difference", [None if b is None else a - b for a, b in zip(ours, theirs, strict=True)]))
    return columns, table


def format_text(columns: Sequence[str], table: Table) -> str:
    """Format the table as plain text, in blocks of eight columns."""
    margin = max(len(label) for label, _ in table)
    blocks = []
    for start in range(0, len(columns), COLUMNS_PER_BLOCK):
        names = columns[start : start + COLUMNS_PER_BLOCK]
        widths = [max(7, len(name)) for name in names]
        lines = [[" " * margin, *(name.rjust(width) for name, width in zip(names, widths, strict=True))]]
        for label, scores in table:
            cells = zip(scores[start : start + COLUMNS_PER_BLOCK], widths, strict=True)
            lines.append([label.ljust(margin), *(_format_score(label, score).rjust(width) for score, width in cells)])
        blocks.append("\n".join("  ".join(line).rstrip() for line in lines))
    return "\n\n".join(blocks)


def format_markdown(columns: Sequence[str], table: Table, records: Sequence[dict]) -> str:
    """Format results.md: one row per task and one column per model, then metrics, protocols and settings."""
    labels = [label.strip() for label, _ in table]
    lines = ["| task | " + " | ".join(labels) + " |", "| --- |" + " ---: |" * len(labels)]
    for index, name in enumerate(columns):
        lines.append(
            f"| {name} | " + " | ".join(_format_score(label, scores[index]) for label, scores in table) + " |"
        )
    lines += ["", "| task | metric | examples | protocol | compare with |", "| --- | --- | ---: | --- | --- |"]
    for name, task in records[0]["tasks"].items():
        protocol, published = (task[field].replace("|", "\\|") for field in ("protocol", "published"))
        lines.append(f"| {name} | {task['metric']} | {task['num_examples']:,} | {protocol} | {published} |")
    lines.append("")
    for group, members in records[0]["group_members"].items():
        lines.append(f"- mean {group}: {', '.join(members)}")
    if records[0]["missing"]:
        lines.append(f"- no data for: {', '.join(records[0]['missing'])}")
    for record in records:
        used = ", ".join(f"{key} {record[key]}" for key in ("pooling", "max_seq_length", "dtype"))
        lines.append(f"- {record['model_name_or_path']}: {used}")
    return "# Scores\n\n" + "\n".join(lines) + "\n"


def format_csv(records: Sequence[dict]) -> str:
    """Format results.csv: one line per model and task."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("model_name_or_path", "pooling", *CSV_COLUMNS))
    for record in records:
        for name, task in record["tasks"].items():
            fields = {"task": name} | task
            writer.writerow((record["model_name_or_path"], record["pooling"], *(fields[key] for key in CSV_COLUMNS)))
    return text.getvalue()


def write_results(records: Sequence[dict], columns: Sequence[str], table: Table, output_dir: Path) -> None:
    """Write all text files of a run; with several models, each results.json is in its own folder.

    `evaluate.save` writes run.json: command, time, commit and interpreter. They are not part of results.json, so two
    runs write the same results.json except for the seconds.
    """
    paths = result_paths([record["model_name_or_path"] for record in records], output_dir)
    for path, record in zip(paths, records, strict=True):
        atomic_write_text(path, json.dumps(record, indent=2, default=to_python_scalar, ensure_ascii=False) + "\n")
    atomic_write_text(output_dir / "results.csv", format_csv(records))
    atomic_write_text(output_dir / "results.md", format_markdown(columns, table, records))
    # `evaluate.save` runs git, which may not be installed, and which complains outside of a repository.
    with contextlib.suppress(FileNotFoundError), _no_stderr():
        evaluate.save(output_dir / "run.json", command=sys.argv)


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Discard what this process and its children write to stderr."""
    sys.stderr.flush()
    saved, discard = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(discard, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(discard)


def file_name(text: str) -> str:
    """Replace the characters of `text` that are not portable in file names."""
    return re.sub(r"[^\w.-]+", "_", text).strip("_.") or "model"


def _format_score(label: str, score: float | None) -> str:
    if score is None:
        return ""
    return f"{score:+.4f}" if label.strip() == "difference" else f"{score:.4f}"


def _published_mean(row: Row, members: Sequence[str]) -> float | None:
    scores = [row.scores[name] for name in members if name in row.scores]
    return sum(scores) / len(scores) if len(scores) == len(members) else None


def to_python_scalar(value: np.generic) -> float | int:
    """Convert a NumPy scalar for JSON."""
    return value.item()

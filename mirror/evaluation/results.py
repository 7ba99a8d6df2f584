"""What is written and shown after scoring: results.json, .csv, .md and the printed table. Knows numbers, no model.

Scores are fractions in the files and in the table. Every file is written aside and renamed: whole, or not there.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

import evaluate
import numpy as np

from mirror.errors import InputError
from mirror.evaluation.published import Row
from mirror.files import write_whole


CSV_COLUMNS = ("task", "metric", "main_score", "num_examples", "protocol", "seconds", "data_sha256")
COLUMNS_A_BLOCK = 8  # of a printed table

Table = list[tuple[str, list[float | None]]]  # label of a line and its scores


def make_folder(path: str) -> Path:
    """The folder at `path`, made if it is not there, before hours of work that would end in it.

    Raises:
        InputError: it cannot be one.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output_dir {path} cannot be a folder: {error.strerror}") from error
    return Path(path)


def short_names(models: Sequence[str]) -> list[str]:
    """The last part of each path or Hub id, or all of it where that is not unique."""
    last = [PurePath(model).name or model for model in models]
    return [name if last.count(name) == 1 else model for name, model in zip(last, models, strict=True)]


def comparison(records: Sequence[dict], published: Sequence[Row | None]) -> tuple[list[str], Table]:
    """Column names, and for each model its scores, the published ones beneath, and the difference.

    Args:
        records: contents of results.json, one a model, all with the same tasks.
        published: the row to set beneath each model, if any.
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
            theirs += [_mean_of(row, members) for members in record["group_members"].values()]
            table.append((f"  published: {row.system}", theirs))
            table.append(("  difference", [None if b is None else a - b for a, b in zip(ours, theirs, strict=True)]))
    return columns, table


def format_text(columns: Sequence[str], table: Table) -> str:
    """The printed table, eight columns side by side."""
    margin = max(len(label) for label, _ in table)
    blocks = []
    for start in range(0, len(columns), COLUMNS_A_BLOCK):
        names = columns[start : start + COLUMNS_A_BLOCK]
        widths = [max(7, len(name)) for name in names]
        lines = [[" " * margin, *(name.rjust(width) for name, width in zip(names, widths, strict=True))]]
        for label, scores in table:
            cells = zip(scores[start : start + COLUMNS_A_BLOCK], widths, strict=True)
            lines.append([label.ljust(margin), *(_cell(label, score).rjust(width) for score, width in cells)])
        blocks.append("\n".join("  ".join(line).rstrip() for line in lines))
    return "\n\n".join(blocks)


def format_markdown(columns: Sequence[str], table: Table, records: Sequence[dict]) -> str:
    """The page results.md: a score a line, a column a model, then what each number is and where it is from."""
    labels = [label.strip() for label, _ in table]
    lines = ["| task | " + " | ".join(labels) + " |", "| --- |" + " ---: |" * len(labels)]
    for index, name in enumerate(columns):
        lines.append(f"| {name} | " + " | ".join(_cell(label, scores[index]) for label, scores in table) + " |")
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
    """One line for each model and task."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("model_name_or_path", "pooling", *CSV_COLUMNS))
    for record in records:
        for name, task in record["tasks"].items():
            fields = {"task": name} | task
            writer.writerow((record["model_name_or_path"], record["pooling"], *(fields[key] for key in CSV_COLUMNS)))
    return text.getvalue()


def write_results(records: Sequence[dict], columns: Sequence[str], table: Table, output_dir: Path) -> None:
    """All text files of a run; of several models, each has its results.json in a folder of its own.

    `evaluate.save` adds run.json: the command, the time, the commit and the interpreter. They are not in results.json,
    so that two runs give the same one but for the seconds.
    """
    names = short_names([record["model_name_or_path"] for record in records])
    folders = [output_dir] if len(records) == 1 else [output_dir / file_name(name) for name in names]
    for folder, record in zip(folders, records, strict=True):
        write_whole(folder / "results.json", json.dumps(record, indent=2, default=_plain, ensure_ascii=False) + "\n")
    write_whole(output_dir / "results.csv", format_csv(records))
    write_whole(output_dir / "results.md", format_markdown(columns, table, records))
    with contextlib.suppress(FileNotFoundError):  # it asks git for the commit, and a machine may have none
        evaluate.save(output_dir / "run.json", command=sys.argv)


def file_name(text: str) -> str:
    """`text` with only what a file name can hold everywhere."""
    return re.sub(r"[^\w.-]+", "_", text).strip("_.") or "model"


def _cell(label: str, score: float | None) -> str:
    if score is None:
        return ""
    return f"{score:+.4f}" if label.strip() == "difference" else f"{score:.4f}"


def _mean_of(row: Row, members: Sequence[str]) -> float | None:
    scores = [row.scores[name] for name in members if name in row.scores]
    return sum(scores) / len(scores) if len(scores) == len(members) else None


def _plain(value: np.generic) -> float | int:
    """NumPy's scalars as Python's, for JSON."""
    return value.item()

"""Output of a scoring run: results.json, .csv, .md and .tex, and the printed table. Knows nothing of models.

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
from pathlib import Path

import evaluate
import numpy as np

from mirror.common.atomic_files import atomic_write_text
from mirror.evaluation.latex import format_latex
from mirror.evaluation.table import Table, describe_settings, format_score, short_names


CSV_COLUMNS = ("task", "metric", "main_score", "num_examples", "protocol", "seconds", "data_sha256")


def result_paths(models: Sequence[str], output_dir: Path) -> list[Path]:
    """The file results.json of each model: in the output folder, or with several models in a folder for each."""
    if len(models) == 1:
        return [output_dir / "results.json"]
    return [output_dir / file_name(name) / "results.json" for name in short_names(models)]


def format_markdown(columns: Sequence[str], table: Table, records: Sequence[dict]) -> str:
    """Format results.md: one row per task and one column per model, then metrics, protocols and settings."""
    labels = [line.label for line in table]
    lines = ["| task | " + " | ".join(labels) + " |", "| --- |" + " ---: |" * len(labels)]
    for index, name in enumerate(columns):
        lines.append(f"| {name} | " + " | ".join(format_score(line.scores[index], line.kind) for line in table) + " |")
    lines += ["", "| task | metric | examples | protocol | compare with |", "| --- | --- | ---: | --- | --- |"]
    for name, task in records[0]["tasks"].items():
        protocol, published = (task[field].replace("|", "\\|") for field in ("protocol", "published"))
        lines.append(f"| {name} | {task['metric']} | {task['num_examples']:,} | {protocol} | {published} |")
    lines.append("")
    for group, members in records[0]["group_members"].items():
        lines.append(f"- mean {group}: {', '.join(members)}")
    if records[0]["missing"]:
        lines.append(f"- no data for: {', '.join(records[0]['missing'])}")
    lines += [f"- {record['model_name_or_path']}: {describe_settings(record)}" for record in records]
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


def write_results(records: Sequence[dict], columns: Sequence[str], table: Table, output_dir: Path) -> list[Path]:
    """Write all text files of a run, and return their paths; with several models, each results.json is in its own folder.

    `evaluate.save` writes run.json: command, time, commit and interpreter. They are not part of results.json, so two
    runs write the same results.json except for the seconds.
    """
    paths = result_paths([record["model_name_or_path"] for record in records], output_dir)
    for path, record in zip(paths, records, strict=True):
        atomic_write_text(path, json.dumps(record, indent=2, default=to_python_scalar, ensure_ascii=False) + "\n")
    texts = {
        "results.csv": format_csv(records),
        "results.md": format_markdown(columns, table, records),
        "results.tex": format_latex(columns, table, records),
    }
    for name, text in texts.items():
        atomic_write_text(output_dir / name, text)
    # `evaluate.save` runs git, which may not be installed, and which complains outside of a repository.
    with contextlib.suppress(FileNotFoundError), _no_stderr():
        evaluate.save(output_dir / "run.json", command=sys.argv)
    return [path for path in (*paths, *(output_dir / name for name in (*texts, "run.json"))) if path.exists()]


def list_files(paths: Sequence[Path], folder: Path) -> str:
    """The files of a run below `folder`, one per line; those that differ only in their suffix share a line."""
    kinds: dict[Path, list[str]] = {}
    for path in paths:
        kinds.setdefault(path.relative_to(folder).with_suffix(""), []).append(path.suffix)
    return "\n".join(f"  {stem}{' '.join(suffixes)}" for stem, suffixes in kinds.items())


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


def to_python_scalar(value: np.generic) -> float | int:
    """Convert a NumPy scalar for JSON."""
    return value.item()

"""Output of a scoring run: the comparison table, and results.json, .csv, .md and .tex. All scores are fractions."""

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
from typing import NamedTuple

from mirror.common.errors import InputError
from mirror.common.files import atomic_write_text, to_python_scalar
from mirror.evaluation.published import Row


CSV_COLUMNS = "model_name_or_path pooling task metric main_score num_examples protocol seconds data_sha256".split()
COLUMNS_PER_BLOCK = 8  # of the printed table
ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
ESCAPED = str.maketrans(ESCAPED | {character: "\\" + character for character in "&%$#_{}"})  # of LaTeX


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


def file_name(text: str) -> str:
    """Replace the characters of `text` that are not portable in file names."""
    return re.sub(r"[^\w.-]+", "_", text).strip("_.") or "model"


def result_paths(models: Sequence[str], output_dir: Path) -> list[Path]:
    """Return the path of each model's results.json: in the output folder, or with several models in a folder for each."""
    if len(models) == 1:
        return [output_dir / "results.json"]
    names = [file_name(name) for name in short_names(models)]
    folders: dict[str, str] = {}
    for model, name in zip(models, names, strict=True):
        if other := folders.get(name.lower()):
            both = f"'{other}' and '{model}' would both write to {output_dir / name}"
            raise InputError(f"--models {both}; score one of them with another --output_dir")
        folders[name.lower()] = model
    return [output_dir / name / "results.json" for name in names]


def comparison(records: Sequence[dict], published: Sequence[Row | None]) -> tuple[list[str], Table]:
    """Return the columns and lines of the comparison table: for each model its scores, the published ones and the difference.

    Every model but the first also gets the change from the first model, in percent too. TF-IDF, BM25 and its fusion with a model
    follow where tasks measure them. `records` are contents of results.json, one per model, all with the same tasks.
    """
    lacking = {group: f" ({len(names)} missing)" for group, names in records[0]["group_members_missing"].items()}
    means = [f"mean {group}{lacking.get(group, '')}" for group in records[0]["groups"]]
    table: Table = []
    names = short_names([record["model_name_or_path"] for record in records])
    for name, record, row in zip(names, records, published, strict=True):
        ours = [*(task["main_score"] for task in record["tasks"].values()), *record["groups"].values()]
        table.append(Line(name, ours))
        table += _baseline(f"{name} with BM25", "fusion", record, means)
        if row:
            theirs = [row.scores.get(task) for task in record["tasks"]]
            for members in record["group_members"].values():  # a published mean needs every member
                complete = row.scores.keys() >= set(members)
                theirs.append(sum(map(row.scores.get, members)) / len(members) if complete else None)
            table.append(Line(f"published: {row.system}", theirs, "published"))
            table.append(Line("difference", _differences(ours, theirs), "difference"))
        if record is not records[0]:
            first = table[0].scores
            change = _differences(ours, first)
            percent = [100 * c / b if b > 0 else None for c, b in zip(change, first, strict=True)]
            table += [Line(f"change from {names[0]}", change, "change"), Line("change in percent", percent, "percent")]
    table += _baseline("TF-IDF", "tfidf", records[0], means) + _baseline("BM25", "bm25", records[0], means)
    return [*records[0]["tasks"], *means], table


def _baseline(label: str, field: str, record: dict, means: Sequence[str]) -> Table:
    """Return the line of a baseline that tasks measure beside the encoder, or nothing if none does."""
    scores = [task[field][task["metric"]] if field in task else None for task in record["tasks"].values()]
    return [Line(label, scores + [None] * len(means), "published")] if any(scores) else []


def _differences(ours: Sequence[float], theirs: Sequence[float | None]) -> list[float | None]:
    return [None if b is None else a - b for a, b in zip(ours, theirs, strict=True)]


def format_score(score: float | None, kind: str) -> str:
    """Format a score of the table according to the kind of its line. Empty where there is none."""
    if score is None:
        return ""
    return f"{score:+.1f}%" if kind == "percent" else f"{score:{'+' if kind in ('difference', 'change') else ''}.4f}"


def describe_settings(record: dict) -> str:
    """Return how a model was scored, in a few words."""
    return ", ".join(f"{key} {record[key]}" for key in ("pooling", "max_seq_length", "dtype"))


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


def format_markdown(columns: Sequence[str], table: Table, records: Sequence[dict]) -> str:
    """Format results.md: one row per task and one column per model, then metrics, protocols and settings."""
    labels = [line.label for line in table]
    lines = ["| task | " + " | ".join(labels) + " |", "| --- |" + " ---: |" * len(labels)]
    for index, name in enumerate(columns):
        cells = [name.replace("|", "\\|"), *(format_score(line.scores[index], line.kind) for line in table)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| task | metric | examples | protocol | compare with |", "| --- | --- | ---: | --- | --- |"]
    for name, task in records[0]["tasks"].items():
        protocol, published = (task[field].replace("|", "\\|") for field in ("protocol", "published"))
        lines.append(f"| {name} | {task['metric']} | {task['num_examples']:,} | {protocol} | {published} |")
    means = records[0]["group_members"].items()
    lines += ["", *(f"- mean {group}: {', '.join(members)}" for group, members in means)]
    if records[0]["missing"]:
        lines.append(f"- no data for: {', '.join(records[0]['missing'])}")
    lines += [f"- {record['model_name_or_path']}: {describe_settings(record)}" for record in records]
    return "# Scores\n\n" + "\n".join(lines) + "\n"


def format_latex(columns: Sequence[str], table: Table, records: Sequence[dict]) -> str:
    """Format results.tex for booktabs: one row per task, the best model of each row bold, means below a rule."""
    lines = [line for line in table if line.kind in ("scores", "published", "change")]
    rows = []
    for index, name in enumerate(columns):
        models = [line.scores[index] for line in lines if line.kind == "scores"]
        best = format_score(max(models), "scores") if len(models) > 1 else None
        cells = [name.translate(ESCAPED)]
        for line in lines:
            text = format_score(line.scores[index], line.kind)
            shown = text.replace("-", "$-$")
            # Compared as printed, so that all models of a tie are bold.
            cells.append(rf"\textbf{{{shown}}}" if line.kind == "scores" and text == best else shown)
        rows.append(" & ".join(cells) + r" \\")
    names = short_names([record["model_name_or_path"] for record in records])
    tasks = len(records[0]["tasks"])
    head = [
        r"% \usepackage{booktabs}; scores are fractions",
        *(f"% {name}: {describe_settings(record)}" for name, record in zip(names, records, strict=True)),
        *(f"% {name}: {task['metric']}, {task['protocol']}" for name, task in records[0]["tasks"].items()),
        rf"\begin{{tabular}}{{l{'r' * len(lines)}}}",
    ]
    labels = " & ".join(["task", *(line.label.translate(ESCAPED) for line in lines)]) + r" \\"
    means = [r"\midrule", *rows[tasks:]] if rows[tasks:] else []
    body = [r"\toprule", labels, r"\midrule", *rows[:tasks], *means, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*head, *body, ""])


def write_results(records: Sequence[dict], columns: Sequence[str], table: Table, output_dir: Path) -> list[Path]:
    """Write all text files of a run atomically and return their paths. Several models have a results.json each.

    `evaluate.save` writes run.json: command, time, commit, interpreter. Without them, two runs write the same results.json.
    """
    paths = result_paths([record["model_name_or_path"] for record in records], output_dir)
    for path, record in zip(paths, records, strict=True):
        atomic_write_text(path, json.dumps(record, indent=2, default=to_python_scalar, ensure_ascii=False) + "\n")
    one_line_per_task = io.StringIO()
    writer = csv.DictWriter(one_line_per_task, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(record | {"task": name} | task for record in records for name, task in record["tasks"].items())
    texts = {"results.csv": one_line_per_task.getvalue(), "results.md": format_markdown(columns, table, records)}
    texts["results.tex"] = format_latex(columns, table, records)
    for name, text in texts.items():
        atomic_write_text(output_dir / name, text)
    import evaluate  # slow to import

    # `evaluate.save` runs git, which may not be installed, and which complains outside of a repository.
    with contextlib.suppress(FileNotFoundError), _no_stderr():
        evaluate.save(output_dir / "run.json", command=sys.argv)
    return [path for path in (*paths, *(output_dir / name for name in (*texts, "run.json"))) if path.exists()]


def list_files(paths: Sequence[Path], folder: Path) -> str:
    """List the files of a run below `folder`, one per line. Those that differ only in their suffix share a line."""
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

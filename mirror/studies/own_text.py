"""Does the test on held-out texts tell the truth? Rank correlations over runs between criteria without labels and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import gmean, spearmanr

from mirror.evaluation import plots
from mirror.studies.cells import Study
from mirror.training.choices import ALIGNMENT_UNIFORMITY, OWN_TEXT
from mirror.training.run_record import RunRecord


MIN_RUNS = 3
MARKERS = "osD^"


def own_text_of(record: RunRecord) -> dict | None:
    """What a run measured on its held-out texts, as a result in results.json; None if it held out none.

    `main_score` is what `--select_by own_text` takes, `before` the same of the base model, `tests` the mean reciprocal rank
    of each test, `alignment_uniformity` the sum, lower is better.
    """
    if not record.own_text:
        return None
    return {
        "main_score": float(gmean([test["mrr_after"] for test in record.own_text])),
        "before": float(gmean([test["mrr_before"] for test in record.own_text])),
        "num_examples": record.own_text[0]["texts"],
        "tests": {test["test"]: test["mrr_after"] for test in record.own_text},
        ALIGNMENT_UNIFORMITY: record.held_out_views[ALIGNMENT_UNIFORMITY],
    }


def correlations(records: Sequence[dict], task: str) -> dict[str, tuple[float | None, float | None]]:
    """Spearman's rho over runs between each criterion and the score of a task.

    Args:
        records: contents of `cell.json` of the runs on one corpus; the row of each begins with its base model and a comma.

    Returns:
        For each criterion rho over all runs, which also compares base models, and the mean of the rhos over the runs of each
        base model, which a user chooses among. None: fewer than three runs, or one value only.
    """
    runs = [record for record in records if OWN_TEXT in record["tasks"] and task in record["tasks"]]
    by_base = [list(group) for _, group in groupby(sorted(runs, key=base_of), key=base_of)]
    found = {}
    for name, value in criteria(runs).items():
        within = [rho for group in by_base if (rho := _rho(group, value, task)) is not None]
        found[name] = (_rho(runs, value, task), float(np.mean(within)) if within else None)
    return found


def criteria(runs: Sequence[dict]) -> dict[str, Callable[[dict], float]]:
    """The criteria that all `runs` have, as functions of a record; higher is better."""
    results = [run["tasks"][OWN_TEXT] for run in runs]
    tests = [
        test for test in (results[0]["tests"] if results else ()) if all(test in each["tests"] for each in results)
    ]
    single = {test: lambda run, test=test: run["tasks"][OWN_TEXT]["tests"][test] for test in tests}
    return {
        OWN_TEXT: lambda run: run["tasks"][OWN_TEXT]["main_score"],
        **(single if len(single) > 1 else {}),
        ALIGNMENT_UNIFORMITY: lambda run: -run["tasks"][OWN_TEXT][ALIGNMENT_UNIFORMITY],
    }


def scored(study: Study) -> list[str]:
    """The tasks whose scores the criteria are compared with."""
    return [column.task for column in study.columns if column.task != OWN_TEXT]


def base_of(record: Mapping) -> str:
    return record["row"].split(",")[0]


def format_correlations(study: Study, records: Sequence[dict]) -> str:
    """Format a Markdown table: corpus and task by criterion; over all runs, and in brackets within a base model."""
    tasks = scored(study)
    lines = []
    names = [OWN_TEXT, "words", "halves", ALIGNMENT_UNIFORMITY]
    for corpus in dict.fromkeys(record["part"] for record in records if OWN_TEXT in record["tasks"]):
        of_corpus = [record for record in records if record["part"] == corpus]
        for task in tasks:
            count = sum(OWN_TEXT in record["tasks"] and task in record["tasks"] for record in of_corpus)
            if not count:
                continue
            found = correlations(of_corpus, task)
            cells = [_both(*found[name]) if name in found else "" for name in names]
            lines.append(f"| {corpus} | {task} | {count} | {' | '.join(cells)} |")
    header = f"| trained on | scored on | runs | {' | '.join(names)} |\n| --- | --- |" + " ---: |" * (1 + len(names))
    return "\n".join([header, *lines]) + "\n"


def format_choices(study: Study, records: Sequence[dict]) -> str:
    """Format a Markdown table: the score of the run that each criterion would choose, for each corpus, base and task."""
    names = (OWN_TEXT, ALIGNMENT_UNIFORMITY)
    columns = ("trained on", "base", "scored on", "runs", "worst", "mean", *(f"by {name}" for name in names), "best")
    lines = [f"| {' | '.join(columns)} |", "| --- | --- | --- |" + " ---: |" * (len(columns) - 3)]
    trained = [record for record in records if OWN_TEXT in record["tasks"]]
    for (corpus, base), group in groupby(trained, key=lambda run: (run["part"], base_of(run))):
        runs = list(group)
        for task in [task for task in scored(study) if task in runs[0]["tasks"]]:
            scores = [run["tasks"][task]["main_score"] for run in runs]
            chosen = [max(runs, key=criteria(runs)[name])["tasks"][task]["main_score"] for name in names]
            values = (min(scores), float(np.mean(scores)), *chosen, max(scores))
            shown = " | ".join(f"{value:.4f}" for value in values)
            lines.append(f"| {corpus} | {base} | {task} | {len(runs)} | {shown} |")
    return "\n".join(lines) + "\n"


def format_runs(study: Study, records: Sequence[dict]) -> str:
    """Format a Markdown table for each corpus: a row per run, and one per base model before any training."""
    tables = []
    for corpus in dict.fromkeys(record["part"] for record in records if record["part"]):
        runs = [record for record in records if record["part"] == corpus]
        tasks = [task for task in scored(study) if any(task in run["tasks"] for run in runs)]
        headers = [corpus, *tasks, f"{OWN_TEXT}, before", f"{OWN_TEXT}, after"]
        lines = [f"| {' | '.join(headers)} |", "| --- |" + " ---: |" * (len(headers) - 1)]
        for base, of_base in groupby(runs, key=base_of):
            before = [record for record in records if not record["part"] and base_of(record) == base]
            for record in [*before, *of_base]:
                own_text = record["tasks"].get(OWN_TEXT, {})
                values = [record["tasks"][task]["main_score"] for task in tasks]
                values += [own_text.get(key) for key in ("before", "main_score")]
                shown = ("" if value is None else f"{value:.4f}" for value in values)
                lines.append(f"| {record['row']} | {' | '.join(shown)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables) + "\n"


def scatter(path: Path, study: Study, records: Sequence[dict]) -> None:
    """Plot the criterion of each run against its score; a panel per task, a colour per corpus, a marker per base model."""
    runs = [record for record in records if OWN_TEXT in record["tasks"]]
    tasks = scored(study)
    bases, corpora = (list(dict.fromkeys(map(of, runs))) for of in (base_of, lambda run: run["part"]))
    figure = Figure(figsize=(7.2, 3.0 * math.ceil(len(tasks) / 2)), layout="constrained")
    for place, task in enumerate(tasks, start=1):
        axes = figure.add_subplot(math.ceil(len(tasks) / 2), 2, place)
        for colour, corpus in zip(plots.COLOURS, corpora, strict=False):
            for marker, base in zip(MARKERS, bases, strict=False):
                shown = [r["tasks"] for r in runs if (r["part"], base_of(r)) == (corpus, base) and task in r["tasks"]]
                points = [(result[OWN_TEXT]["main_score"], result[task]["main_score"]) for result in shown]
                if points:
                    axes.scatter(*zip(*points, strict=True), s=18, marker=marker, color=colour)
        axes.set(title=task, xlabel="own_text", ylabel="score")
    keys = [
        Line2D([], [], linestyle="", marker=MARKERS[0], color=colour)
        for colour, _ in zip(plots.COLOURS, corpora, strict=False)
    ]
    keys += [
        Line2D([], [], linestyle="", marker=marker, color="gray") for marker, _ in zip(MARKERS, bases, strict=False)
    ]
    figure.legend(keys, [*corpora, *bases], loc="outside lower center", frameon=False, ncols=4, fontsize=8)
    plots.save(figure, path, study.title)


def _rho(runs: Sequence[dict], value: Callable[[dict], float], task: str) -> float | None:
    pairs = [(value(run), run["tasks"][task]["main_score"]) for run in runs]
    if len(pairs) < MIN_RUNS or any(len(set(side)) < 2 for side in zip(*pairs, strict=True)):
        return None
    return float(spearmanr(pairs).statistic)


def _both(over_all: float | None, within: float | None) -> str:
    return " ".join(
        form.format(value) for form, value in (("{:.2f}", over_all), ("({:.2f})", within)) if value is not None
    )

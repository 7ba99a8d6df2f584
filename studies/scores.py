"""Scores of a study over seeds: tables beside the published numbers, and how well label-free criteria agree."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import PurePath

import numpy as np
from scipy.stats import spearmanr, t

from mirror.evaluation.published import checkpoint_name
from mirror.training.options import OWN_TEXT
from studies.study import AVERAGE, Cell, Claim, Column, Study, family_of


MIN_RUNS = 3  # of a rank correlation


@dataclass(frozen=True)
class Score:
    """Values of one score, one per seed. The base model is scored once, with the seed None."""

    by_seed: Mapping[int | None, float]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds (ddof 1), or None for a single value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95% confidence interval of the mean over seeds, or None for a single value."""
        if len(self.values) < 2:
            return None
        half = t.ppf(0.975, len(self.values) - 1) * self.std / len(self.values) ** 0.5
        return self.mean - half, self.mean + half

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.std is None else f" ± {self.std:.4f}")

    def as_difference(self) -> str:
        """Format the mean with its interval: `+0.3400 (+0.0667 to +0.6133)`."""
        limits = self.interval
        return f"{self.mean:+.4f}" + (f" ({limits[0]:+.4f} to {limits[1]:+.4f})" if limits else "")


Scores = dict[str, dict[str, Score]]  # row -> column label -> score
Beside = dict[str, dict[str, float]]  # row -> column label -> published score of the same model


@dataclass(frozen=True)
class Base:
    """A study's results with one base model."""

    study: Study
    records: Sequence[dict]  # contents of cell.json
    facts: dict  # study.json: model, command, published scores beside ours, notes

    @property
    def name(self) -> str:
        return PurePath(self.facts["model"]).name

    def is_judged_by(self, claim: Claim) -> bool:
        """Return whether a claim is about such a base model."""
        return claim.is_about(checkpoint_name(self.facts["model"]), family_of(self.facts["model_type"]))

    @cached_property
    def scores(self) -> Scores:
        return collect(self.study, self.records)


def collect(study: Study, records: Sequence[dict]) -> Scores:
    """Collect the scores of finished cells by row and column.

    With `study.average`, a row's average for each seed is over the columns that any row has, or missing if one is.
    """
    found: dict[str, dict] = {row: {column.label: {} for column in study.columns} for row in study.rows}
    for row, record, column, _, value in measured(study, records):
        found[row][column.label][record["seed"]] = value
    labels = [column.label for column in study.columns if any(of_row[column.label] for of_row in found.values())]
    for of_row in found.values() if study.average and labels else ():
        parts = [of_row[label] for label in labels]
        seeds = [seed for seed in parts[0] if all(seed in part for part in parts)]
        of_row[AVERAGE] = {seed: float(np.mean([part[seed] for part in parts])) for seed in seeds}
    return {row: {label: Score(by) for label, by in of_row.items() if by} for row, of_row in found.items()}


def measured(study: Study, records: Sequence[dict]) -> list[tuple[str, dict, Column, str, float]]:
    """Return row, record, column, field (`a.b`: b in a) and value of every score, those of `Study.also` after a cell's."""
    suffixes = {"": None} | {f", {name}": field for name, field in study.also.items()}
    found = []
    for record, (suffix, other_field), column in product(records, suffixes.items(), study.columns):
        if column.task in record["tasks"] and column.part in (None, record["part"]):
            field, value = other_field or column.field, record["tasks"][column.task]
            for key in field.split("."):
                value = (value or {}).get(key)
            if value is not None:
                found.append((f"{record['row']}{suffix}", record, column, field, value))
    return found


def shown_columns(study: Study, scores: Scores) -> list[str]:
    """Return the labels of the columns with a score in any row, in the study's order."""
    labels = [*(column.label for column in study.columns), *([AVERAGE] if study.average else [])]
    return [label for label in labels if any(label in of_row for of_row in scores.values())]


def column_header(study: Study, labels: Sequence[str], label: str) -> str:
    """Return the header of a column. That of an average over fewer columns than in the paper says how many."""
    parts = [shown for shown in labels if shown != AVERAGE]
    return f"{label} of {len(parts)}" if label == AVERAGE and len(parts) < len(study.columns) else label


def published_beside(study: Study, models_of: Callable[[Cell], list[str]]) -> Beside:
    """Collect the published scores of the cells whose models, by their names, are those that made them."""
    beside: Beside = {}
    for cell in study.cells:
        printed = study.published.get(checkpoint_name(*models_of(cell)), {}).get(cell.row, {})
        labels = [c.label for c in study.columns if c.task in cell.tasks and c.part in (None, cell.part)]
        if found := {label: printed[label] for label in (*labels, AVERAGE) if label in printed}:
            beside.setdefault(cell.row, {}).update(found)
    return beside


def published_scores(study: Study, labels: Sequence[str], printed: Mapping[str, float]) -> dict[str, float]:
    """Return the published scores of a row for the columns `labels`, and the average: of them, or as printed if all are shown."""
    found = {label: printed[label] for label in labels if label in printed and label != AVERAGE}
    parts = [label for label in labels if label != AVERAGE]
    if AVERAGE in labels:
        if parts and all(label in found for label in parts):
            found[AVERAGE] = float(np.mean([found[label] for label in parts]))
        elif AVERAGE in printed and len(parts) == len(study.columns):
            found[AVERAGE] = printed[AVERAGE]
    return found


def format_table(study: Study, scores: Scores, beside: Beside) -> str:
    """Format a Markdown table of our scores, those of the published model and the difference, then the published baselines."""
    labels = shown_columns(study, scores)
    lines = [["", *(column_header(study, labels, label) for label in labels)]]

    def add(name: str, values: Mapping[str, float], sign: str = "") -> None:
        lines.append([name, *(f"{values[label]:{sign}.4f}" if label in values else "" for label in labels)])

    for row in study.rows:
        ours, theirs = scores[row], published_scores(study, labels, beside.get(row, {}))
        lines.append([row, *(str(ours[label]) if label in ours else "" for label in labels)])
        if theirs:
            add("published", theirs)
        if both := [label for label in labels if label in ours and label in theirs]:
            add("difference", {label: ours[label].mean - theirs[label] for label in both}, "+")
    for name, printed in study.baselines.items() if beside else ():
        if theirs := published_scores(study, labels, printed):
            add(f"{name}, published", theirs)
    return markdown(lines)


def markdown(lines: Sequence[Sequence[str]], texts: Collection[int] = (0,)) -> str:
    """Format a Markdown table from its header and rows. The columns `texts` are aligned to the left."""
    rule = ["---" if number in texts else "---:" for number in range(len(lines[0]))]
    rows = (lines[0], rule, *lines[1:])
    return "".join(f"|{' | '.join(line) if not line[0] else ' ' + ' | '.join(line)} |\n" for line in rows)


def format_csv(study: Study, records: Sequence[dict]) -> str:
    """Format results.csv: one line per cell, seed and column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("row", "part", "seed", "column", "task", "field", "score", "seconds"))
    for row, record, column, field, value in measured(study, records):
        seconds = round(record["seconds_training"] + record["seconds_scoring"], 1)
        seed = "" if record["seed"] is None else record["seed"]
        writer.writerow((row, record["part"], seed, column.label, column.task, field, value, seconds))
    return text.getvalue()


# ---- Label-free criteria over runs -----------------------------------------------------------------------------------


def base_of(record: dict) -> str:
    """Return the base model of a run of the study `own_text`, or the method of one of `rivals`: what its row begins with."""
    return record["row"].split(",")[0]


def criteria(run: dict) -> dict[str, float]:
    """Return the values of a run's criteria. Higher is better."""
    result = run["tasks"][OWN_TEXT]
    tests = result["tests"] if len(result["tests"]) > 1 else {}
    return {OWN_TEXT: result["main_score"], **tests}


def rho(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Compute Spearman's rho, or return None for fewer than three pairs or one value only."""
    varies = len(pairs) >= MIN_RUNS and all(len(set(side)) > 1 for side in zip(*pairs, strict=True))
    return float(spearmanr(pairs).statistic) if varies else None


def correlations(records: Sequence[dict], task: str) -> dict[str, tuple[float | None, float | None]]:
    """Compute Spearman's rho between each criterion and the score of a task over the runs on one corpus.

    For each criterion: `rho` over all runs, and the mean of the rhos over the runs of each base model, among which a user chooses.
    None: fewer than three runs, or one value only.
    """
    runs = [record for record in records if OWN_TEXT in record["tasks"] and task in record["tasks"]]
    values, found = [criteria(run) for run in runs], {}
    for name in values[0] if values else (OWN_TEXT,):
        if not all(name in each for each in values):
            continue
        pairs = [(each[name], run["tasks"][task]["main_score"]) for each, run in zip(values, runs, strict=True)]
        bases = dict.fromkeys(map(base_of, runs))
        by_base = [[pair for pair, run in zip(pairs, runs, strict=True) if base_of(run) == base] for base in bases]
        within = [each for each in map(rho, by_base) if each is not None]
        found[name] = rho(pairs), float(np.mean(within)) if within else None
    return found


def format_runs(study: Study, records: Sequence[dict]) -> str:
    """Format Markdown tables: correlations by corpus and task, the run that each criterion would choose, and all runs."""
    names = [OWN_TEXT, "words", "halves"]
    rhos, tables = [["trained on", "scored on", "runs", *names]], []
    choices = [["trained on", "base", "scored on", "runs", "worst", "mean", f"by {OWN_TEXT}", "best"]]
    for corpus in dict.fromkeys(record["part"] for record in records if record["part"]):
        of_corpus = [record for record in records if record["part"] == corpus]
        tasks = [task for task in study.scored if any(task in run["tasks"] for run in of_corpus)]
        lines = [[corpus, *tasks, f"{OWN_TEXT}, before", f"{OWN_TEXT}, after"]]
        for task in tasks:
            runs = [run for run in of_corpus if OWN_TEXT in run["tasks"] and task in run["tasks"]]
            found = correlations(runs, task)
            both = [zip(("{:.2f}", "({:.2f})"), found.get(name, ()), strict=False) for name in names]
            shown = [" ".join(form.format(value) for form, value in pair if value is not None) for pair in both]
            rhos.append([corpus, task, str(len(runs)), *shown])
        for base in dict.fromkeys(map(base_of, of_corpus)):
            runs = [run for run in of_corpus if base_of(run) == base]
            for task in tasks if OWN_TEXT in runs[0]["tasks"] else ():
                scores = [run["tasks"][task]["main_score"] for run in runs]
                chosen = scores[int(np.argmax([run["tasks"][OWN_TEXT]["main_score"] for run in runs]))]
                values = (min(scores), float(np.mean(scores)), chosen, max(scores))
                choices.append([corpus, base, task, str(len(runs)), *(f"{value:.4f}" for value in values)])
            before = [record for record in records if not record["part"] and base_of(record) == base]
            for record in [*before, *runs]:
                values = [record["tasks"][task]["main_score"] for task in tasks]
                values += [record["tasks"].get(OWN_TEXT, {}).get(key) for key in ("before", "main_score")]
                lines.append([record["row"], *("" if value is None else f"{value:.4f}" for value in values)])
        tables.append(lines)
    return "\n".join([markdown(rhos, range(2)), markdown(choices, range(3)), *map(markdown, tables)])


def format_agreement(study: Study, records: Sequence[dict]) -> str:
    """Format a Markdown table of Spearman's rho between the test on own text and each task, over the rows of a corpus.

    A row counts by its means over seeds, and the base model as one more row. A row with other tests than the first one (pairs,
    beside words and halves) is left out. The last column counts the runs, of all seeds, in which both rose
    or both fell.
    """
    lines = [["trained on", "scored on", "ways", "rank correlation with own text", "same direction"]]
    for corpus, task in ((column.part, column.task) for column in study.columns if column.task != OWN_TEXT):
        scored = [record for record in records if record["part"] == corpus and task in record["tasks"]]
        runs = [run for run in scored if OWN_TEXT in run["tasks"]]
        runs = [
            run for run in runs if run["tasks"][OWN_TEXT]["tests"].keys() == runs[0]["tasks"][OWN_TEXT]["tests"].keys()
        ]
        base = [record["tasks"][task]["main_score"] for record in scored if record["seed"] is None]
        if not (runs and base):
            continue
        ways: dict[str, list[tuple[float, float]]] = {}
        alike = 0
        for run in runs:
            own_text, score = run["tasks"][OWN_TEXT], run["tasks"][task]["main_score"]
            ways.setdefault(run["row"], []).append((own_text["main_score"], score))
            alike += (own_text["main_score"] > own_text["before"]) == (score > base[0])
        before = float(np.mean([run["tasks"][OWN_TEXT]["before"] for run in runs]))
        pairs = [tuple(np.mean(each, axis=0)) for each in ways.values()] + [(before, base[0])]
        if (value := rho(pairs)) is not None:
            lines.append([corpus, task, str(len(pairs)), f"{value:.2f}", f"{alike} of {len(runs)} runs"])
    return markdown(lines, range(2)) if len(lines) > 1 else ""

"""Report of a study's finished cells: table.md and results.csv, rewritten after each cell, and the figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirror.assets import EMBEDDED_MODEL
from mirror.common.atomic_files import atomic_write_text
from mirror.studies.cells import Study
from mirror.studies.chains import is_chain_study, recipes_of
from mirror.studies.claims import format_claims
from mirror.studies.figures import draw
from mirror.studies.own_text import format_choices, format_correlations, format_runs
from mirror.studies.plan import Setup, as_arguments
from mirror.studies.table import Beside, Scores, best_row, collect, format_csv, format_table, published_beside


FACTS = "study.json"  # what `mirror.studies.pages` needs besides the cells
NAMED = 6  # unfinished cells in the notes below the table


def write_table(
    study: Study, setup: Setup, records: Mapping[str, dict | None], left_out: Sequence[str], command: str
) -> str:
    """Write table.md, results.csv and study.json; nothing is written if no cell is finished.

    Args:
        records: name of each cell -> its record, or None if the cell is not finished.
        left_out: lines that explain which cells were left out.
        command: the command line, shown in table.md.

    Returns:
        The table as Markdown, or an empty string.
    """
    done = [record for record in records.values() if record]
    if not done:
        return ""
    scores, beside = collect(study, done), published_beside(study, setup.checkpoint_of)
    table = format_scores(study, done, scores, beside) + format_claims(study, scores, beside)
    unfinished = [name for name, record in records.items() if record is None]
    run_on = dict.fromkeys(record["run_on"] for record in done if record.get("run_on"))
    notes = _notes(study, setup, scores, unfinished, [*run_on, *left_out])
    page = f"# {study.title}\n\n    {command}\n\n{table}\n{notes}"
    atomic_write_text(setup.output_dir / "table.md", page)
    atomic_write_text(setup.output_dir / "results.csv", format_csv(study, done))
    facts = {"study": study.name, "model": setup.model, "command": command, "published": beside, "notes": notes}
    atomic_write_text(setup.output_dir / FACTS, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    return table


def format_scores(study: Study, records: Sequence[dict], scores: Scores, beside: Beside) -> str:
    """Format the scores of finished cells as one or more Markdown tables."""
    if study.figure == "own_text":
        return "\n".join(form(study, records) for form in (format_correlations, format_choices, format_runs))
    return format_table(study, scores, beside)


def write_figure(study: Study, setup: Setup, records: Mapping[str, dict | None]) -> None:
    """Draw figure.png, .svg and .pdf, if any cell is finished."""
    if done := [record for record in records.values() if record]:
        scores, beside = collect(study, done), published_beside(study, setup.checkpoint_of)
        draw(study, scores, done, beside, setup.output_dir / "figure")


def _settings(study: Study, setup: Setup) -> list[str]:
    """Return what the cells were trained with: the published recipes, or this project's defaults."""
    if setup.modern:
        return ["Settings: this project's defaults (--modern), not the published recipes."]
    if is_chain_study(study):
        return [f"Settings as published: {', '.join(recipes_of(study))}; flags after -- come on top."]
    recipes: dict[str, None] = {}
    lacking: dict[str, None] = {}
    for cell in study.cells:
        for model in setup.models_of(cell) if cell.corpora else ():
            if recipe := setup.recipe_of(cell, model):
                recipes[recipe.name] = None
            else:
                lacking[f"{model} ({cell.level}{', drophead' * cell.drophead})"] = None
    changed = f", then {' '.join(as_arguments(setup.extra))}" if setup.extra else ""
    notes = [f"Settings as published: {', '.join(recipes)}{changed}."] if recipes else []
    if lacking:
        notes.append(f"Settings: this project's defaults, because there is no recipe for {', '.join(lacking)}.")
    return notes


def _shown(model: str) -> str:
    return EMBEDDED_MODEL.name if Path(model) == EMBEDDED_MODEL else model


def _notes(study: Study, setup: Setup, scores, unfinished: Sequence[str], lines: Sequence[str]) -> str:
    seeds = " ".join(map(str, setup.seeds))
    aggregation = f"mean ± sample standard deviation over seeds {seeds}" if len(setup.seeds) > 1 else f"seed {seeds}"
    notes = [f"{setup.model}; {aggregation}; scores are fractions."]
    notes += [f"{part}: {_shown(model)}" for part, model in setup.language_models.items()]
    notes += _settings(study, setup)
    if setup.max_train_samples:
        notes.append(f"Reduced: every cell was trained on at most {setup.max_train_samples:,} texts.")
    if best := best_row(study, scores) if study.choose_on else None:
        notes.append(f"Selected on {study.choose_on}: {best}.")
    notes += [study.note] if study.note else []
    if unfinished:
        more = f" and {len(unfinished) - NAMED:,} more" if len(unfinished) > NAMED else ""
        notes.append(f"Not done: {', '.join(unfinished[:NAMED])}{more}.")
    notes += [line[:1].upper() + line[1:] for line in lines]
    return "".join(f"- {note}\n" for note in notes)

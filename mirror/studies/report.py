"""The page of a study: table.md, results.csv and figure.png of the cells that are done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirror.files import write_whole
from mirror.studies.cells import Study
from mirror.studies.figures import draw
from mirror.studies.plan import Setup, family
from mirror.studies.table import best_row, collect, format_csv, format_table


def write_report(
    study: Study, setup: Setup, records: Mapping[str, dict | None], left_out: Sequence[str], command: str
) -> str:
    """Write the three files; without a finished cell there is nothing to write.

    Args:
        records: name of each cell to its record, None for one that is not done.

    Returns:
        The table.
    """
    done = [record for record in records.values() if record]
    if not done:
        return ""
    beside, scores = family(setup.model), collect(study, done)
    table = format_table(study, scores, beside)
    unfinished = [name for name, record in records.items() if record is None]
    run_on = dict.fromkeys(record["run_on"] for record in done if record.get("run_on"))
    notes = _notes(study, setup, scores, unfinished, [*run_on, *left_out])
    page = f"# {study.title}\n\n    {command}\n\n{table}\n{notes}"
    write_whole(setup.output_dir / "table.md", page)
    write_whole(setup.output_dir / "results.csv", format_csv(study, done))
    draw(study, scores, done, beside, setup.output_dir / "figure.png")
    return table


def _notes(study: Study, setup: Setup, scores, unfinished: Sequence[str], lines: Sequence[str]) -> str:
    seeds = " ".join(map(str, setup.seeds))
    over = f"mean ± standard deviation of the sample over seeds {seeds}" if len(setup.seeds) > 1 else f"seed {seeds}"
    notes = [f"{setup.model}; {over}; scores are fractions."]
    notes += [f"{part}: {model}" for part, model in setup.language_models.items()]
    if setup.max_train_samples:
        notes.append(f"Reduced: every cell was trained on at most {setup.max_train_samples:,} texts.")
    if best := best_row(study, scores) if study.choose_on else None:
        notes.append(f"Chosen on {study.choose_on}: {best}.")
    notes += [study.note] if study.note else []
    notes += [f"Not done: {', '.join(unfinished)}."] if unfinished else []
    notes += [line[:1].upper() + line[1:] for line in lines]
    return "".join(f"- {note}\n" for note in notes)

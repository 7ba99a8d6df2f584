"""Selects the plots of a scoring run by the tasks in its results. Knows results and `encode`; `plots.py` draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from accelerate import PartialState
from matplotlib.figure import Figure

from mirror.common.atomic_files import atomic_path
from mirror.evaluation import plots
from mirror.evaluation.results import Table, file_name, short_names
from mirror.evaluation.run import PreparedTask
from mirror.modeling.encoder import Encode


def draw_all(records: Sequence[dict], columns: Sequence[str], table: Table, folder: Path) -> list[Path]:
    """Draw bars of all scores, and the plots of `qnli`, `qqp_cosine`, `docs_search` and `language_bias` if scored.

    Returns:
        Paths of the written files.
    """
    names = short_names([record["model_name_or_path"] for record in records])
    results = {name: record["tasks"] for name, record in zip(names, records, strict=True)}
    first = records[0]["tasks"]
    paths = [folder / "scores.png"]
    score_bars(paths[0], columns, [(name, scores) for name, scores in table if name.strip() != "difference"])
    if "qnli" in first:
        paths.append(folder / "qnli_roc.png")
        plots.roc_curves(paths[-1], {name: tasks["qnli"] for name, tasks in results.items()}, "QNLI dev, unsupervised")
    for task, picture in (("qqp_cosine", "qqp_cosines.png"), ("docs_search", "docs_search_cosines.png")):
        if task in first:
            paths.append(folder / picture)
            plots.cosine_histograms(
                paths[-1], {name: tasks[task]["histogram"] for name, tasks in results.items()}, task
            )
    if "language_bias" in first:
        for name, tasks in results.items():
            paths.append(folder / f"language_bias_{file_name(name)}.png")
            plots.language_heat_map(
                paths[-1], tasks["language_bias"]["matrix"], tasks["language_bias"]["languages"], name
            )
    return paths


def draw_translations(
    encode: Encode, tasks: Sequence[PreparedTask], model: str, folder: Path, pairs: int = 50
) -> None:
    """Draw the first `pairs` sentences and translations of each Tatoeba language on two principal components.

    All processes must call this function because they share the encoding; only the main process draws.
    """
    for task in tasks:
        if task.name.startswith("tatoeba_"):
            columns = task.task.files[0].read(task.data_dir)
            source, english = (encode(columns[side][:pairs]) for side in ("source", "english"))
            language = task.name.removeprefix("tatoeba_")
            path = folder / "tatoeba" / f"{language}_{file_name(model)}.png"
            if PartialState().is_main_process:
                plots.translation_scatter(path, source, english, (language, "eng"), model)


def score_bars(path: Path, columns: Sequence[str], table: Table) -> None:
    """Draw one group of bars per task with one bar per line of the table; published scores are hatched.

    Args:
        columns: T names of tasks.
        table: label and T scores of each line, None for a missing score.
    """
    figure = Figure(figsize=(max(5.0, 0.35 * len(columns) * len(table) + 2), 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(table)
    for line, (label, scores) in enumerate(table):
        places = np.arange(len(columns)) + (line - (len(table) - 1) / 2) * width
        heights = [np.nan if score is None else score for score in scores]
        colour = plots.COLOURS[line % len(plots.COLOURS)]
        axes.bar(places, heights, width, label=label.strip(), color=colour, hatch="//" * label.startswith(" "))
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
    axes.set_ylabel("main score")
    figure.legend(loc="outside upper center", frameon=False, ncols=2)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)

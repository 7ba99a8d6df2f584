"""Selects the plots of a scoring run by the tasks in its results. Knows results and `encode`; `plots.py` draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState

from mirror.evaluation import plots
from mirror.evaluation.results import file_name
from mirror.evaluation.run import PreparedTask
from mirror.evaluation.score_bars import score_bars
from mirror.evaluation.table import Table, short_names
from mirror.modeling.encoder import Encode


def draw_all(records: Sequence[dict], columns: Sequence[str], table: Table, folder: Path) -> list[Path]:
    """Draw bars of all scores, and the plots of `qnli`, `qqp_cosine`, `docs_search` and `language_bias` if scored.

    Returns:
        Paths of the written files.
    """
    names = short_names([record["model_name_or_path"] for record in records])
    results = {name: record["tasks"] for name, record in zip(names, records, strict=True)}
    first = records[0]["tasks"]
    paths = score_bars(folder / "scores", columns, table, metrics_of(records[0]))
    if "qnli" in first:
        curves = {name: tasks["qnli"] for name, tasks in results.items()}
        paths += plots.roc_curves(folder / "qnli_roc", curves, "QNLI dev, unsupervised")
    for task, picture in (("qqp_cosine", "qqp_cosines"), ("docs_search", "docs_search_cosines")):
        if task in first:
            histograms = {name: tasks[task]["histogram"] for name, tasks in results.items()}
            paths += plots.cosine_histograms(folder / picture, histograms, task)
    if "language_bias" in first:
        for name, tasks in results.items():
            bias = tasks["language_bias"]
            path = folder / f"language_bias_{file_name(name)}"
            paths += plots.language_heat_map(path, bias["matrix"], bias["languages"], name)
    return paths


def metrics_of(record: dict) -> list[str]:
    """The metric of each column of the comparison table; that of a mean is its members'."""
    tasks = record["tasks"]
    means = [tasks[members[0]]["metric"] for members in record["group_members"].values()]
    return [*(task["metric"] for task in tasks.values()), *means]


def draw_translations(
    encode: Encode, tasks: Sequence[PreparedTask], model: str, folder: Path, pairs: int = 50
) -> list[Path]:
    """Draw the first `pairs` sentences and translations of each Tatoeba language on two principal components.

    All processes must call this function because they share the encoding; only the main process draws.

    Returns:
        Paths of the written files.
    """
    paths = []
    for task in tasks:
        if task.name.startswith("tatoeba_"):
            columns = task.task.files[0].read(task.data_dir)
            source, english = (encode(columns[side][:pairs]) for side in ("source", "english"))
            language = task.name.removeprefix("tatoeba_")
            path = folder / "tatoeba" / f"{language}_{file_name(model)}"
            if PartialState().is_main_process:
                paths += plots.translation_scatter(path, source, english, (language, "eng"), model)
    return paths

"""Figures of a scoring run: bars of all scores, and what the tasks' results contain.

The argument `path` of each function is a file whose suffix says the format, or a name without one of the suffixes, for
which PNG, SVG and PDF are written. Each function returns the paths of the written files. None needs a display.

matplotlib is imported when a figure is drawn: it takes half a second, and every training run imports the tasks.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirror.common.files import atomic_path
from mirror.evaluation.results import Line, Table, short_names
from mirror.evaluation.task import Task


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


FORMATS = (".png", ".svg", ".pdf")
# The same figure gives the same bytes, and text stays text that journals accept.
SETTINGS = {"svg.hashsalt": "mirror", "pdf.fonttype": 42}
NO_DATE = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000".split()  # Okabe and Ito, for color-blind readers

KINDS = ("positive", "negative")  # of pairs
GAP = 0.8  # between two tasks, in bars
BAR, PANEL = 0.15, 0.6  # heights in inches: all bars of a figure are equally thick
VALUE = 0.16  # width of a printed value, on the axis of scores
PUBLISHED = {"alpha": 0.45, "hatch": "////", "edgecolor": "white", "linewidth": 0}


def draw_all(records: list[dict], columns: list[str], table: Table, tasks: Sequence[Task], folder: Path) -> list[Path]:
    """Draw bars of all scores, and the plots of the scored tasks. `records` are the contents of results.json."""
    names = short_names([record["model_name_or_path"] for record in records])
    scored = records[0]["tasks"]
    # The metric of a mean is that of its members.
    of_columns = [*scored, *(members[0] for members in records[0]["group_members"].values())]
    paths = score_bars(folder / "scores", columns, table, [scored[name]["metric"] for name in of_columns])
    for task in tasks:
        if task.plot:
            results = {name: record["tasks"][task.name] for name, record in zip(names, records, strict=True)}
            paths += task.plot(results, folder)
    return paths


def cosine_histograms(path: Path, histograms: Mapping[str, dict], title: str = "") -> list[Path]:
    """Draw histograms of the cosines of positive and negative pairs, one panel for each model or title (Mirror-BERT Figure 7)."""
    figure = _figure(7, 2.4 * len(histograms) + 0.6)
    draw_histograms(figure, histograms)
    return save(figure, path, title)


def draw_histograms(figure: Figure | SubFigure, histograms: Mapping[str, dict]) -> None:
    """Draw the panels of `cosine_histograms`, over the bins that any of them uses, so that a narrow range stays visible."""
    panels = figure.subplots(len(histograms), sharex=True, squeeze=False)[:, 0]
    filled = np.flatnonzero(sum(np.asarray(each[kind]) for each in histograms.values() for kind in KINDS))
    for axes, (name, histogram) in zip(panels, histograms.items(), strict=True):
        edges = np.asarray(histogram["bin_edges"])
        for kind, color in zip(KINDS, COLORS, strict=False):
            share = np.asarray(histogram[kind]) / max(1, sum(histogram[kind]))
            axes.stairs(share, edges, fill=True, color=color, alpha=0.55, label=f"{kind} pairs")
        axes.set(ylabel="share of pairs", xlim=(edges[filled[0]], edges[filled[-1] + 1]))
        axes.set_title(name, loc="left", fontsize=10)
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("cosine")


def roc_curves(path: Path, curves: Mapping[str, dict], title: str = "") -> list[Path]:
    """Draw the ROC curves of the `qnli` results of several models in one plot, with their AUC (Mirror-BERT Figure 4)."""
    figure = _figure(5.4, 5.2)
    draw_roc_curves(figure, curves)
    return save(figure, path, title)


def draw_roc_curves(figure: Figure | SubFigure, curves: Mapping[str, dict]) -> None:
    """Draw the plot of `roc_curves`."""
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
    for number, (name, result) in enumerate(curves.items()):
        curve, color = result["roc_curve"], COLORS[number % len(COLORS)]
        label = f"{name} (AUC {result['main_score']:.3f})"
        axes.plot(curve["false_positive_rate"], curve["true_positive_rate"], color=color, label=label)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def score_bars(path: Path, columns: Sequence[str], table: Table, metrics: Sequence[str]) -> list[Path]:
    """Draw one bar for each of T tasks and each model, its value at its end, in a panel for each metric.

    `columns` and `metrics` are T names. Published scores are pale and hatched, differences are left out.
    """
    lines = [line for line in table if line.kind in ("scores", "published")]
    scores = [score for line in lines for score in line.scores if score is not None]
    low, high = min(0.0, *scores), max(1.0, *scores)
    limits = (low - VALUE if low < 0 else 0.0), high + VALUE  # with room for the values beside the bars
    panels = {metric: [index for index, each in enumerate(metrics) if each == metric] for metric in metrics}
    sizes = [sum(sum(line.scores[n] is not None for line in lines) + GAP for n in tasks) for tasks in panels.values()]
    figure = _figure(7, BAR * (sum(sizes) + len(lines)) + PANEL * len(panels))
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=sizes)[:, 0]
    for axes, (metric, tasks) in zip(grid, panels.items(), strict=True):
        _draw_bars(axes, tasks, lines)
        names = [columns[index] for index in tasks]
        axes.set_yticks(axes.get_yticks(), names, fontsize=8)
        axes.set(xlim=limits, xticks=(0, 0.2, 0.4, 0.6, 0.8, 1))
        axes.set_title(metric, loc="left", fontsize=9)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper left", frameon=False, fontsize=8)
    return save(figure, path, "")


def _draw_bars(axes: Axes, tasks: Sequence[int], lines: Sequence[Line]) -> None:
    """Draw the bars of a panel from top to bottom, those of a task together, with a tick at each task."""
    bars: list[list[tuple[float, float]]] = [[] for _ in lines]  # place and score
    ticks, top, model = [], 0.0, -1
    for index in tasks:
        present = [number for number, line in enumerate(lines) if line.scores[index] is not None]
        ticks.append(top + (len(present) - 1) / 2)
        for row, number in enumerate(present):
            bars[number].append((top + row, lines[number].scores[index]))
        top += len(present) + GAP
    for line, drawn in zip(lines, bars, strict=True):
        model += line.kind == "scores"
        places, scores = ([bar[side] for bar in drawn] for side in (0, 1))
        style = {"color": COLORS[model % len(COLORS)]} | (PUBLISHED if line.kind == "published" else {})
        container = axes.barh(places, scores, 0.88, label=line.label, **style)
        axes.bar_label(container, [f"{score:.3f}" for score in scores], padding=2, fontsize=6.5)
    axes.set(yticks=ticks, ylim=(top - 0.5 - GAP / 2, -0.5 - GAP / 2))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.spines["left"].set_visible(False)


def ranking_bars(path: Path, scores: Mapping[str, tuple[float, float | None]], label: str) -> list[Path]:
    """Draw one bar for each system, the first on top. `scores` has its score and half the width of its interval."""
    figure = _figure(6, 0.9 + 0.3 * len(scores))
    axes = figure.subplots()
    values, margins = zip(*scores.values(), strict=True)
    ends = [margin or 0 for margin in margins]
    axes.barh(list(scores), values, xerr=ends, color=COLORS[0], ecolor=COLORS[6], height=0.6)
    axes.invert_yaxis()
    axes.set(xlim=(min(0.0, *values), None), xlabel=label)
    return save(figure, path, "")


def merge_curve(path: Path, curve: Sequence[Mapping[str, float]], weight: float) -> list[Path]:
    """Draw the scores of each weight that `--merge auto` tried, a panel for each score, and the one that it chose."""
    names = [name for name in curve[0] if name != "weight"]
    figure = _figure(3.4 * len(names), 2.8)
    for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
        axes.plot([each["weight"] for each in curve], [each[name] for each in curve], "o-", color=COLORS[0])
        axes.axvline(weight, color=COLORS[1], linewidth=0.8)
        axes.set(xlabel="weight of the trained weights", ylabel=name)
    return save(figure, path, "")


def save(figure: Figure, path: Path, title: str) -> list[Path]:
    """Set the title of a figure and write it atomically. Return the paths of the written files."""
    from matplotlib import rc_context

    figure.suptitle(title)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    paths = [path] if path.suffix in FORMATS else [path.with_name(path.name + kind) for kind in FORMATS]
    for file in paths:
        drawn = io.BytesIO()  # not the file: matplotlib's PDF writer turns a full disk into an AttributeError
        with rc_context(SETTINGS):
            figure.savefig(drawn, format=file.suffix[1:], dpi=150, metadata=NO_DATE[file.suffix])
        with atomic_path(file) as temporary:
            temporary.write_bytes(drawn.getvalue())
    return paths


def _figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")

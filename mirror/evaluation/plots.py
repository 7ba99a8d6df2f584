"""Figures of a scoring run: bars of all scores, and what the tasks' results contain.

The argument `path` of each function is a file whose suffix says the format, or a name without one of the suffixes, for
which PNG, SVG and PDF are written. Each function returns the paths of the written files. None needs a display.

matplotlib is imported when a figure is drawn: it takes half a second, and every training run imports the tasks.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mirror.common.files import atomic_path
from mirror.evaluation.results import Line, Table, short_names
from mirror.evaluation.task import Task


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMATS = (".png", ".svg", ".pdf")
# The same figure gives the same bytes, and text stays text that journals accept.
SETTINGS = {"svg.hashsalt": "mirror", "pdf.fonttype": 42}
NO_DATE = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000".split()  # Okabe and Ito, for color-blind readers

BARS_PER_COLUMN, COLUMNS = 40, 3  # of the grid of scores.png; a longer table makes the three columns longer
GAP = 0.8  # between two tasks, in bars
BAR, TITLE, AXIS, LEGEND_ROW = 0.15, 0.3, 0.25, 0.19  # heights in inches: all bars of a figure are equally thick
BARS_WIDTH, CHARACTER, MARGIN = 2.9, 0.07, 0.25  # widths in inches
VALUE = 0.16  # width of a printed value, on the axis of scores
PUBLISHED = {"alpha": 0.45, "hatch": "////", "edgecolor": "white", "linewidth": 0}


def draw_all(
    records: Sequence[dict], columns: Sequence[str], table: Table, tasks: Sequence[Task], folder: Path
) -> list[Path]:
    """Draw bars of all scores, and the plots of the scored tasks. `records` are the contents of results.json."""
    names = short_names([record["model_name_or_path"] for record in records])
    scored = records[0]["tasks"]
    of_columns = [
        *scored,
        *(members[0] for members in records[0]["group_members"].values()),
    ]  # a mean has its members'
    paths = score_bars(folder / "scores", columns, table, [scored[name]["metric"] for name in of_columns])
    for task in tasks:
        if task.plot:
            results = {name: record["tasks"][task.name] for name, record in zip(names, records, strict=True)}
            paths += task.plot(results, folder)
    return paths


def cosine_histograms(path: Path, histograms: Mapping[str, dict], title: str = "") -> list[Path]:
    """Draw histograms of the cosines of positive and negative pairs, one panel per model (Mirror-BERT Figure 7).

    `histograms` maps the title of a panel, such as "before", to the field `histogram` of a `qqp_cosine` result.
    """
    figure = _figure(7, 2.4 * len(histograms) + 0.6)
    panels = figure.subplots(len(histograms), sharex=True, squeeze=False)[:, 0]
    for axes, (name, histogram) in zip(panels, histograms.items(), strict=True):
        edges = np.asarray(histogram["bin_edges"])
        for kind, colour in (("positive", COLOURS[0]), ("negative", COLOURS[1])):
            share = np.asarray(histogram[kind]) / max(1, sum(histogram[kind]))
            axes.stairs(share, edges, fill=True, color=colour, alpha=0.55, label=f"{kind} pairs")
        axes.set(ylabel="share of pairs", xlim=used_range(edges, histograms.values()))
        axes.set_title(name, loc="left", fontsize=10)
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("cosine")
    return save(figure, path, title)


def used_range(edges: np.ndarray, histograms) -> tuple[float, float]:
    """Return the range of the non-empty bins of all histograms, so that a narrow range of cosines stays visible."""
    counts = sum(np.asarray(histogram[kind]) for histogram in histograms for kind in ("positive", "negative"))
    filled = np.flatnonzero(counts)
    return float(edges[filled[0]]), float(edges[filled[-1] + 1])


def roc_curves(path: Path, curves: Mapping[str, dict], title: str = "") -> list[Path]:
    """Draw the ROC curves of the `qnli` results of several models in one plot, with their AUC (Mirror-BERT Figure 4)."""
    figure = _figure(5.4, 5.2)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
    for number, (name, result) in enumerate(curves.items()):
        curve, colour = result["roc_curve"], COLOURS[number % len(COLOURS)]
        label = f"{name} (AUC {result['main_score']:.3f})"
        axes.plot(curve["false_positive_rate"], curve["true_positive_rate"], color=colour, label=label)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(loc="lower right", frameon=False)
    return save(figure, path, title)


def language_heat_map(path: Path, matrix: Sequence, languages: Sequence[str], title: str = "") -> list[Path]:
    """Draw a heat map of retrieved languages (CMLM Figure 2); `matrix` is (L, L), one row per query language."""
    matrix = np.asarray(matrix)
    size = 0.75 * len(languages)
    figure = _figure(size + 1.8, size + 1.0)
    axes = figure.subplots()
    image = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(matrix):
        colour = "white" if share > 0.5 else "black"
        axes.text(column, row, f"{share:.2f}", ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(languages)), languages)
    axes.set_yticks(range(len(languages)), languages)
    axes.set(xlabel="language retrieved", ylabel="language of the query")
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of queries")
    return save(figure, path, title)


def translation_scatter(
    path: Path, source: np.ndarray, english: np.ndarray, names: tuple[str, str], title: str = ""
) -> list[Path]:
    """Draw sentences and their translations on two principal components, each pair joined by a line (CMLM Figure 3).

    Row n of `source` (N, D) is the translation of row n of `english` (N, D). About 50 pairs are readable.
    """
    from sklearn.decomposition import PCA

    points = PCA(2, random_state=0).fit_transform(np.concatenate([source, english]))  # (2N, 2)
    pairs = np.stack([points[: len(source)], points[len(source) :]], axis=1)  # (N, 2 sides, 2 coordinates)
    figure = _figure(6.4, 5.6)
    axes = figure.subplots()
    axes.plot(*pairs.transpose(2, 1, 0), color="0.8", linewidth=0.6, zorder=1)
    for side, (name, marker) in enumerate(zip(names, "o^", strict=True)):
        axes.scatter(*pairs[:, side].T, s=18, color=COLOURS[side], marker=marker, label=name, zorder=2)
    axes.set(xlabel="first principal component", ylabel="second principal component")
    axes.legend(frameon=False)
    return save(figure, path, title)


class Panel(NamedTuple):
    """Tasks of one metric, as indices of the table's columns."""

    metric: str
    tasks: list[int]


def score_bars(path: Path, columns: Sequence[str], table: Table, metrics: Sequence[str]) -> list[Path]:
    """Draw one bar for each of T tasks and each model, its value at its end. Published scores are pale and hatched.

    `columns` and `metrics` are T names, `table` has lines of T scores. Differences are left out. A long panel is continued
    in the next column of the grid.
    """
    lines = [line for line in table if line.kind in ("scores", "published")]
    scores = [score for line in lines for score in line.scores if score is not None]
    low, high = min(0.0, *scores), max(1.0, *scores)
    limits = (low - VALUE if low < 0 else 0.0), high + VALUE  # with room for the values beside the bars
    bars = [sum(line.scores[index] is not None for line in lines) for index in range(len(columns))]
    grid = arrange(metrics, bars)
    heights = [
        [TITLE + BAR * sum(bars[index] + GAP for index in panel.tasks) + AXIS for panel in column] for column in grid
    ]
    names = [[columns[index] for panel in column for index in panel.tasks] for column in grid]
    margins = [CHARACTER * max(map(len, column)) + MARGIN for column in names]
    legend = LEGEND_ROW * math.ceil(len(lines) / len(grid)) + 0.1
    width, height = sum(margins) + len(grid) * BARS_WIDTH, legend + max(map(sum, heights))
    figure, left = _figure(width, height, layout=None), 0.0
    for column, panel_heights, margin in zip(grid, heights, margins, strict=True):
        left, bottom = left + margin, height - legend
        for panel, panel_height in zip(column, panel_heights, strict=True):
            bottom -= panel_height
            inner = (BARS_WIDTH - MARGIN) / width, (panel_height - TITLE - AXIS) / height
            axes = figure.add_axes((left / width, (bottom + AXIS) / height, *inner))
            draw_panel(axes, panel, lines, columns)
            axes.set(xlim=limits, xticks=(0, 0.2, 0.4, 0.6, 0.8, 1))
        left += BARS_WIDTH
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", frameon=False, ncols=len(grid), fontsize=8)
    return save(figure, path, "")


def arrange(metrics: Sequence[str], bars: Sequence[int]) -> list[list[Panel]]:
    """Return the panels of each column of the grid, by the T tasks' metrics and numbers of bars, those of a metric together."""
    sizes = [count + GAP for count in bars]
    per_column = sum(sizes) / min(COLUMNS, math.ceil(sum(bars) / BARS_PER_COLUMN))
    used = 0.0
    grid: list[list[Panel]] = [[]]
    for index in sorted(range(len(metrics)), key=lambda index: list(metrics).index(metrics[index])):
        if used + sizes[index] / 2 > per_column * len(grid):
            grid.append([])
        if not grid[-1] or grid[-1][-1].metric != metrics[index]:
            grid[-1].append(Panel(metrics[index], []))
        grid[-1][-1].tasks.append(index)
        used += sizes[index]
    return grid


def draw_panel(axes: Axes, panel: Panel, lines: Sequence[Line], columns: Sequence[str]) -> None:
    """Draw the bars of one panel from top to bottom."""
    models = [number for number, line in enumerate(lines) if line.kind == "scores"]
    places: list[list[float]] = [[] for _ in lines]
    middles, top = [], 0.0
    for index in panel.tasks:
        present = [place for line, place in zip(lines, places, strict=True) if line.scores[index] is not None]
        for row, place in enumerate(present):
            place.append(top + row)
        middles.append(top + (len(present) - 1) / 2)
        top += len(present) + GAP
    for number, line in enumerate(lines):
        scores = [line.scores[index] for index in panel.tasks if line.scores[index] is not None]
        colour = COLOURS[(sum(model <= number for model in models) - 1) % len(COLOURS)]
        style = PUBLISHED if line.kind == "published" else {}
        bars = axes.barh(places[number], scores, 0.88, label=line.label, color=colour, **style)
        axes.bar_label(bars, [f"{score:.3f}" for score in scores], padding=2, fontsize=6.5)
    axes.set_yticks(middles, [columns[index] for index in panel.tasks], fontsize=8)
    axes.set_ylim(top - 0.5 - GAP / 2, -0.5 - GAP / 2)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.spines["left"].set_visible(False)
    axes.set_title(panel.metric, loc="left", fontsize=9)


def ranking_bars(path: Path, scores: Mapping[str, tuple[float, float | None]], label: str) -> list[Path]:
    """Draw one bar for each system, the first on top. `scores` has its score and half the width of its interval."""
    figure = _figure(6, 0.9 + 0.3 * len(scores))
    axes = figure.subplots()
    values, margins = zip(*scores.values(), strict=True)
    axes.barh(
        list(scores), values, xerr=[margin or 0 for margin in margins], color=COLOURS[0], ecolor=COLOURS[6], height=0.6
    )
    axes.invert_yaxis()
    axes.set(xlim=(min(0.0, *values), None), xlabel=label)
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


def _figure(width: float, height: float, layout: str | None = "constrained") -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)

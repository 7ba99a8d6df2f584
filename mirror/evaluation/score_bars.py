"""scores.png: the comparison table as bars, one panel for each metric. Knows the table; needs neither a model nor a display."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirror.evaluation.plots import COLOURS, save
from mirror.evaluation.table import Line, Table


BARS_PER_COLUMN, COLUMNS = 40, 3  # of the grid; a longer table makes the three columns longer
GAP = 0.8  # between two tasks, in bars
BAR, TITLE, AXIS, LEGEND_ROW = 0.15, 0.3, 0.25, 0.19  # heights in inches: all bars of a figure are equally thick
BARS_WIDTH, CHARACTER, MARGIN = 2.9, 0.07, 0.25  # widths in inches
TICKS, VALUE = (0, 0.2, 0.4, 0.6, 0.8, 1), 0.16  # of the axis of scores; the width of a printed value
PUBLISHED = {"alpha": 0.45, "hatch": "////", "edgecolor": "white", "linewidth": 0}


class Panel(NamedTuple):
    """Tasks of one metric, as indices of the table's columns."""

    metric: str
    tasks: list[int]


def score_bars(path: Path, columns: Sequence[str], table: Table, metrics: Sequence[str]) -> list[Path]:
    """Draw one bar for each task and model, its value at its end; published scores are pale and hatched.

    Args:
        columns: T names of tasks.
        table: lines of T scores; differences are left out.
        metrics: T names of metrics; a long panel is continued in the next column of the grid.

    Returns:
        Paths of the written files.
    """
    lines = [line for line in table if line.kind in ("scores", "published")]
    bars = [sum(line.scores[index] is not None for line in lines) for index in range(len(columns))]
    grid = arrange(metrics, bars)
    heights = [
        [TITLE + BAR * sum(bars[index] + GAP for index in panel.tasks) + AXIS for panel in column] for column in grid
    ]
    names = [[columns[index] for panel in column for index in panel.tasks] for column in grid]
    margins = [CHARACTER * max(map(len, column)) + MARGIN for column in names]
    legend = LEGEND_ROW * math.ceil(len(lines) / len(grid)) + 0.1
    width, height = sum(margins) + len(grid) * BARS_WIDTH, legend + max(map(sum, heights))
    figure, left = Figure(figsize=(width, height)), 0.0
    for column, panel_heights, margin in zip(grid, heights, margins, strict=True):
        left, bottom = left + margin, height - legend
        for panel, panel_height in zip(column, panel_heights, strict=True):
            bottom -= panel_height
            inner = (BARS_WIDTH - MARGIN) / width, (panel_height - TITLE - AXIS) / height
            axes = figure.add_axes((left / width, (bottom + AXIS) / height, *inner))
            draw_panel(axes, panel, lines, columns)
            axes.set(xlim=limits(lines), xticks=TICKS)
        left += BARS_WIDTH
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", frameon=False, ncols=len(grid), fontsize=8)
    return save(figure, path, "")


def arrange(metrics: Sequence[str], bars: Sequence[int]) -> list[list[Panel]]:
    """Distribute the tasks over the columns of the grid, those of one metric together.

    Args:
        metrics: of each of the T tasks.
        bars: of each task.

    Returns:
        For each column of the grid, its panels from top to bottom.
    """
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
        present = [number for number, line in enumerate(lines) if line.scores[index] is not None]
        for row, number in enumerate(present):
            places[number].append(top + row)
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


def limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The range of all panels: 0 to 1 and further where a score is outside, with room for the values beside the bars."""
    scores = [score for line in lines for score in line.scores if score is not None]
    low, high = min(0.0, *scores), max(1.0, *scores)
    return (low - VALUE if low < 0 else 0.0), high + VALUE

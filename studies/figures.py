"""Figures of studies: one panel, or group of panels, for each base model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from mirror.evaluation.plots import COLORS, draw_histograms, draw_roc_curves, save
from mirror.training.options import OWN_TEXT
from studies.scores import Base, Score, base_of, column_header, published_scores, shown_columns
from studies.study import AVERAGE


PANELS_PER_ROW = 3
BEST = 20  # rows of a search for hyperparameters that are drawn
WIDEST = 13.0  # inches; base models stand side by side if the figure is not wider
MARKERS = "osD^"
CHANGES = (-0.5, -0.2, -0.1, -0.05, -0.02, -0.01, 0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # ticks
QUERIES = ("de", "fr", "zh")  # the query languages of CMLM's Figure 2


def draw(bases: Sequence[Base], path: Path) -> None:
    """Draw the study's figure, as `mirror.evaluation.plots.save`. ROC curves, histograms and maps show the first seed."""
    panel = PANELS.get(bases[0].study.figure, _score_panels)
    sizes = [panel(None, base) for base in bases]
    width, height = max(size[0] for size in sizes), max(size[1] for size in sizes)
    columns = min(len(bases), max(1, int(WIDEST // width)))
    rows = -(-len(bases) // columns)
    titles = 0.3 + 0.3 * (len(bases) > 1)
    figure = Figure(figsize=(width * columns, (height + titles) * rows), layout="constrained")
    subfigures = figure.subfigures(rows, columns, squeeze=False).flat
    for subfigure, base in zip(subfigures, bases, strict=False):
        panel(subfigure, base)
        if len(bases) > 1:
            subfigure.suptitle(base.name, fontsize="medium")
    with rc_context({"svg.fonttype": "none"}):  # letters as text, not as paths: a fraction of the size
        save(figure, path, bases[0].study.title)


def _score_panels(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw one panel for the average, or one per column. As all functions here: without a figure, return inches only."""
    study, scores = base.study, base.scores
    columns, rows = shown_columns(study, scores), study.rows
    if study.choose_on:
        rows = [row for row in rows if study.choose_on in scores[row]]
        rows = sorted(rows, key=lambda row: scores[row][study.choose_on].mean, reverse=True)[:BEST]
    labels = [AVERAGE] if study.average else columns
    num_columns = min(PANELS_PER_ROW, len(labels))
    num_rows = -(-len(labels) // num_columns)
    panel_height = 3.6 if study.figure == "curve" else 0.6 + 0.32 * len(rows)
    if figure is None:
        return 2.4 + 2.8 * num_columns, 0.5 + panel_height * num_rows
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharey=study.figure == "dots")
    theirs = {row: published_scores(study, columns, base.facts["published"].get(row, {})) for row in rows}
    for axes, label in zip(grid.flat, labels, strict=False):
        ours = {row: scores[row][label] for row in rows if label in scores[row]}
        printed = {row: of_row[label] for row, of_row in theirs.items() if label in of_row}
        header = column_header(study, columns, label)
        if study.figure == "curve":  # over the rows, which are numbers
            numbers = {row: float(row) for row in rows}
            _draw_scores(axes, numbers, ours, printed, along_x=False)
            if max(numbers.values()) >= 16 * min(numbers.values()):
                axes.set_xscale("log")
            ticks = [f"{number / 1000:g}k" if number >= 1000 else f"{number:g}" for number in numbers.values()]
            axes.set_xticks(list(numbers.values()), ticks)
            axes.minorticks_off()
            if ranks := base.facts.get("ranks"):  # Mirror-BERT Figure 8: bars behind the curve
                behind = axes.twinx()
                width = 0.8 * min(map(float, ranks))
                behind.bar(list(map(float, ranks)), ranks.values(), width, color=COLORS[0], alpha=0.3)
                behind.set_ylabel("words of the test set")
            axes.set(xlabel=study.title.split(": ")[1], ylabel=header)
        else:
            _draw_scores(axes, {row: number for number, row in enumerate(rows)}, ours, printed, along_x=True)
            for row, score in ours.items():
                beside = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 9}
                axes.text(1.02, rows.index(row), f"{score.mean:.3f}", **beside)
            axes.margins(x=0.08)
            axes.set_yticks(range(len(rows)), rows)
            axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=header)
            axes.locator_params(axis="x", nbins=4)  # numbers such as 0.0125 overlap otherwise
    for axes in list(grid.flat)[len(labels) :]:
        axes.remove()
    if any(theirs.values()):
        handles, names = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", frameon=False, ncols=2)


def _draw_scores(
    axes: Axes, places: Mapping[str, float], ours: Mapping[str, Score], theirs: Mapping[str, float], along_x: bool
) -> None:
    """Draw seeds, interval and mean of each row at its place on the other axis. Over numbers, lines join the means."""
    axes.grid(color="0.92")
    axes.set_axisbelow(True)

    def plot(scores: Iterable[float], rows: Iterable[str], style: str, **look) -> None:
        values, at = list(scores), [places[row] for row in rows]
        axes.plot(*((values, at) if along_x else (at, values)), style, **look)

    for row, score in ours.items():
        if limits := score.interval:
            plot(limits, [row] * 2, "-", color=COLORS[0], linewidth=1.5)
            plot(score.values, [row] * len(score.values), "o", color=COLORS[5], markersize=3.5, zorder=3)
    line, dashes = ("", "") if along_x else ("-", "--")
    if ours:
        means = (score.mean for score in ours.values())
        plot(means, ours, f"o{line}", color=COLORS[0], markersize=5, zorder=4, label="ours")
    if theirs:
        plot(theirs.values(), theirs, f"D{dashes}", color=COLORS[1], markersize=4.5, zorder=3, label="published")


def _roc(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the ROC curves of the rows (Mirror-BERT Figure 4)."""
    return (4.8, 4.6) if figure is None else draw_roc_curves(figure, _first_seed(base, "qnli"))


def _histograms(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the cosines of positive and negative pairs, a panel for each row (Mirror-BERT Figure 7)."""
    histograms = {row: result["histogram"] for row, result in _first_seed(base, "qqp_cosine").items()}
    return (6.0, 2.1 * len(histograms)) if figure is None else draw_histograms(figure, histograms)


def _agreement(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the score on held-out texts of each checkpoint against its dev score: a panel per row, a color per seed."""
    rows = list(dict.fromkeys(record["row"] for record in base.records))
    if figure is None:
        return 4.2 * len(rows), 3.2
    for row, axes in zip(rows, figure.subplots(1, len(rows), squeeze=False).flat, strict=True):
        of_row = [record for record in base.records if record["row"] == row]
        for number, record in enumerate(of_row):
            result = record["tasks"]["selection_own_text"]
            label, color = f"seed {record['seed']}, rho {result['main_score']:.2f}", COLORS[number % len(COLORS)]
            axes.plot(result["criterion"], result["dev"], "o-", color=color, linewidth=0.6, markersize=4, label=label)
        axes.set(title=row, xlabel="test on held-out texts")
        axes.locator_params(axis="x", nbins=5)
        axes.legend(frameon=False, fontsize=8)
    figure.supylabel("STS-B dev", fontsize="medium")


def _own_text(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the criterion of each run against its score: a panel per task, a color per corpus, a marker per base model."""
    runs, tasks = [record for record in base.records if OWN_TEXT in record["tasks"]], base.study.scored
    if figure is None:
        return 7.2, 3.0 * -(-len(tasks) // 2)
    bases, corpora = (list(dict.fromkeys(map(of, runs))) for of in (base_of, lambda run: run["part"]))
    colors, markers = dict(zip(corpora, COLORS, strict=False)), dict(zip(bases, MARKERS, strict=False))
    grid = figure.subplots(-(-len(tasks) // 2), 2, squeeze=False)
    for axes, task in zip(grid.flat, tasks, strict=False):
        for corpus, name in product(corpora, bases):
            group = [run["tasks"] for run in runs if (run["part"], base_of(run)) == (corpus, name)]
            points = [[scores[of]["main_score"] for scores in group if task in scores] for of in (OWN_TEXT, task)]
            axes.scatter(*points, s=18, color=colors[corpus], marker=markers[name])
        axes.set(title=task, xlabel="own_text", ylabel="score")
    keys = [Line2D([], [], linestyle="", marker=MARKERS[0], color=color) for color in colors.values()]
    keys += [Line2D([], [], linestyle="", marker=marker, color="gray") for marker in markers.values()]
    figure.legend(keys, [*corpora, *bases], loc="outside lower center", frameon=False, ncols=4, fontsize=8)


def _trade(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw what each run gained on its own text against its change of STS-B: a color per method, a marker per corpus."""
    before = {
        record["part"]: record["tasks"]["stsb"]["main_score"] for record in base.records if record["seed"] is None
    }
    trained = [record for record in base.records if record["seed"] is not None]
    runs = [record for record in trained if OWN_TEXT in record["tasks"] and record["part"] in before]
    if figure is None:
        return 7.2, 4.4
    cells = [cell for cell in base.study.cells if cell.corpora]  # of the study, so that all panels look alike
    colors = dict(zip(dict.fromkeys(base_of({"row": cell.row}) for cell in cells), COLORS, strict=False))
    markers = dict(zip(dict.fromkeys(cell.part for cell in cells), MARKERS, strict=False))
    axes = figure.subplots()
    for run in runs:
        own_text, change = run["tasks"][OWN_TEXT], run["tasks"]["stsb"]["main_score"] - before[run["part"]]
        style = {"color": colors[base_of(run)], "marker": markers[run["part"]]}
        axes.scatter(own_text["main_score"] - own_text["before"], change, s=30, **style)
    axes.margins(0.1)
    axes.axhline(0, color="gray", linewidth=0.6)
    axes.axvline(0, color="gray", linewidth=0.6)
    axes.set_xscale("symlog", linthresh=0.02)  # what destroys an encoder lies far from what changes it a little
    axes.set_yscale("symlog", linthresh=0.02)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(CHANGES))
        axis.set_major_formatter(lambda change, _: f"{change:+g}" if change else "0")
    axes.set(xlabel="gain on its own text", ylabel="change of STS-B")
    methods, corpora = {base_of(run) for run in runs}, {run["part"] for run in runs}
    looks = {method: {"marker": MARKERS[0], "color": color} for method, color in colors.items() if method in methods}
    looks |= {corpus: {"marker": marker, "color": "gray"} for corpus, marker in markers.items() if corpus in corpora}
    keys = [Line2D([], [], linestyle="", **look) for look in looks.values()]
    figure.legend(keys, list(looks), loc="outside lower center", frameon=False, ncols=4, fontsize=8)


def _languages(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the languages of the sentences that rank first: a row of panels per query language, a column per model (CMLM Figure 2)."""
    results = _first_seed(base, "language_bias")
    if figure is None:
        return 0.6 + 2.4 * len(results), 5.1
    grid = figure.subplots(len(QUERIES), len(results), squeeze=False, sharey=True)
    for column, (row, result) in zip(grid.T, results.items(), strict=True):
        languages, matrix = result["languages"], np.asarray(result["matrix_ranked"])
        for axes, query in zip(column, QUERIES, strict=True):
            colors = [COLORS[language == query] for language in languages]
            axes.bar(languages, matrix[languages.index(query)], color=colors)
        column[0].set_title(row, fontsize=10)
    for axes, query in zip(grid[:, 0], QUERIES, strict=True):
        axes.set_ylabel(f"query: {query}")


def _plane(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the sentences of two languages: a row of panels per model, a column per language (CMLM Figure 3)."""
    results = _first_seed(base, "tatoeba_projection")
    languages = list(next(iter(results.values()))["points"])
    if figure is None:
        return 0.6 + 2.6 * len(languages), 0.3 + 2.6 * len(results)
    grid = figure.subplots(len(results), len(languages), squeeze=False)
    for line, (row, result) in zip(grid, results.items(), strict=True):
        for axes, language in zip(line, languages, strict=True):
            for points, label, color in zip(result["points"][language], (language, "eng"), COLORS, strict=False):
                axes.scatter(*np.asarray(points).T, s=4, color=color, label=label)
            axes.legend(frameon=False, fontsize=8, loc="upper right")
        line[0].set_ylabel(row)


def _first_seed(base: Base, task: str) -> dict[str, dict]:
    """Return the result of `task` for the first seed of each row, in the study's order."""
    first = {record["row"]: record["tasks"][task] for record in reversed(base.records) if task in record["tasks"]}
    return {row: first[row] for row in base.study.rows if row in first}


PANELS = {"roc": _roc, "histograms": _histograms, "agreement": _agreement, "own_text": _own_text, "trade": _trade}
PANELS |= {"languages": _languages, "plane": _plane}

"""Figures of studies: one panel, or group of panels, for each base model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from mirror.evaluation.plots import COLOURS, save
from mirror.studies.scores import Base, Score, base_of, column_header, published_scores, scored, shown_columns
from mirror.studies.study import AVERAGE
from mirror.training.options import ALIGNMENT_UNIFORMITY, OWN_TEXT


PANELS_PER_ROW = 3
BEST = 20  # rows of a search for hyperparameters that are drawn
WIDEST = 13.0  # inches; base models stand side by side if the figure is not wider
MARKERS = "osD^"
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
        if study.figure == "curve":
            _curve(axes, rows, ours, printed)
            if ranks := base.facts.get("ranks"):  # Mirror-BERT Figure 8: bars behind the curve
                behind = axes.twinx()
                width = 0.8 * min(map(float, ranks))
                behind.bar(list(map(float, ranks)), ranks.values(), width, color=COLOURS[0], alpha=0.3)
                behind.set_ylabel("words of the test set")
            axes.set(xlabel=study.title.split(": ")[1], ylabel=header)
        else:
            _dots(axes, rows, ours, printed)
            axes.set_xlabel(header)
    for axes in list(grid.flat)[len(labels) :]:
        axes.remove()
    if any(theirs.values()):
        handles, names = grid[0, 0].get_legend_handles_labels()
        by_name = dict(zip(names, handles, strict=True))
        figure.legend(by_name.values(), by_name.keys(), loc="outside lower center", frameon=False, ncols=2)


def _dots(axes: Axes, rows: Sequence[str], ours: Mapping[str, Score], theirs: Mapping[str, float]) -> None:
    """Draw for each row its mean with its interval, a point for each seed, and the mean as text."""
    places = {row: number for number, row in enumerate(rows)}
    axes.grid(axis="both", color="0.92")
    axes.set_axisbelow(True)
    for row, score in ours.items():
        _draw_seeds(axes, score, places[row], along_x=True)
        axes.plot(score.mean, places[row], "o", color=COLOURS[0], markersize=5, zorder=4, label="ours")
        beside = axes.get_yaxis_transform()
        axes.text(1.02, places[row], f"{score.mean:.3f}", transform=beside, va="center", fontsize=9)
    if theirs:
        look = {"marker": "D", "s": 22, "color": COLOURS[1], "zorder": 3}
        axes.scatter(theirs.values(), [places[row] for row in theirs], label="published", **look)
    axes.margins(x=0.08)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _curve(axes: Axes, rows: Sequence[str], ours: Mapping[str, Score], theirs: Mapping[str, float]) -> None:
    """Draw the scores with their intervals as a curve over the rows, which are numbers."""
    axes.grid(color="0.92")
    for row, score in ours.items():
        _draw_seeds(axes, score, float(row), along_x=False)
    means = [score.mean for score in ours.values()]
    if ours:
        axes.plot(list(map(float, ours)), means, "o-", color=COLOURS[0], markersize=5, label="ours")
    if theirs:
        published = list(map(float, theirs)), list(theirs.values())
        axes.plot(*published, "D--", color=COLOURS[1], markersize=4, label="published")
    numbers = [float(row) for row in rows]
    if max(numbers) >= 16 * min(numbers):
        axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number / 1000:g}k" if number >= 1000 else f"{number:g}" for number in numbers])
    axes.minorticks_off()


def _draw_seeds(axes: Axes, score: Score, place: float, along_x: bool) -> None:
    """Draw the seeds of a score as points and its interval as a line, at a place on the other axis."""
    if limits := score.interval:
        line, points = (limits, [place] * 2), (score.values, [place] * len(score.values))
        axes.plot(*(line if along_x else line[::-1]), color=COLOURS[0], linewidth=1.5)
        axes.scatter(*(points if along_x else points[::-1]), s=12, color=COLOURS[5], zorder=3)


def _roc(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the ROC curves of the rows (Mirror-BERT Figure 4)."""
    if figure is None:
        return 4.8, 4.6
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
    for (row, result), color in zip(_first_seed(base, "qnli").items(), COLOURS, strict=False):
        curve, label = result["roc_curve"], f"{row} (AUC {result['main_score']:.3f})"
        axes.plot(curve["false_positive_rate"], curve["true_positive_rate"], color=color, label=label)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def _histograms(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the cosines of positive and negative pairs, a panel for each row (Mirror-BERT Figure 7)."""
    histograms = {row: result["histogram"] for row, result in _first_seed(base, "qqp_cosine").items()}
    if figure is None:
        return 6.0, 2.1 * len(histograms)
    panels = figure.subplots(len(histograms), sharex=True, squeeze=False)[:, 0]
    counts = sum(np.asarray(each[kind]) for each in histograms.values() for kind in ("positive", "negative"))
    filled = np.flatnonzero(counts)  # so that a narrow range of cosines stays visible
    for axes, (row, histogram) in zip(panels, histograms.items(), strict=True):
        edges = np.asarray(histogram["bin_edges"])
        for kind, color in zip(("positive", "negative"), COLOURS, strict=False):
            share = np.asarray(histogram[kind]) / max(1, sum(histogram[kind]))
            axes.stairs(share, edges, fill=True, color=color, alpha=0.55, label=f"{kind} pairs")
        axes.set(ylabel="share of pairs", xlim=(edges[filled[0]], edges[filled[-1] + 1]))
        axes.set_title(row, loc="left", fontsize=10)
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("cosine")


def _agreement(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw each checkpoint's label-free scores against its dev score: a row of panels per row, a color per seed."""
    rows = list(dict.fromkeys(record["row"] for record in base.records))
    labels = {OWN_TEXT: "test on held-out texts", ALIGNMENT_UNIFORMITY: "alignment + uniformity (lower is better)"}
    if figure is None:
        return 4.2 * len(labels), 3.2 * len(rows)
    grid = figure.subplots(len(rows), len(labels), squeeze=False, sharey="row")
    for (row, criterion), axes in zip(product(rows, labels), grid.flat, strict=True):
        of_row = [record for record in base.records if record["row"] == row]
        for number, record in enumerate(of_row):
            result = record["tasks"][f"selection_{criterion}"]
            label, color = f"seed {record['seed']}, rho {result['main_score']:.2f}", COLOURS[number % len(COLOURS)]
            axes.plot(result["criterion"], result["dev"], "o-", color=color, linewidth=0.6, markersize=4, label=label)
        axes.set(title=row, xlabel=labels[criterion])
        axes.locator_params(axis="x", nbins=5)
        axes.legend(frameon=False, fontsize=8)
    figure.supylabel("STS-B dev", fontsize="medium")


def _own_text(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the criterion of each run against its score: a panel per task, a color per corpus, a marker per base model."""
    runs, tasks = [record for record in base.records if OWN_TEXT in record["tasks"]], scored(base.study)
    if figure is None:
        return 7.2, 3.0 * -(-len(tasks) // 2)
    bases, corpora = (list(dict.fromkeys(map(of, runs))) for of in (base_of, lambda run: run["part"]))
    looks = {"color": dict(zip(corpora, COLOURS, strict=False)), "marker": dict(zip(bases, MARKERS, strict=False))}
    grid = figure.subplots(-(-len(tasks) // 2), 2, squeeze=False)
    for axes, task in zip(grid.flat, tasks, strict=False):
        for run in runs:
            if task in run["tasks"]:
                place = (run["tasks"][name]["main_score"] for name in (OWN_TEXT, task))
                axes.scatter(*place, s=18, color=looks["color"][run["part"]], marker=looks["marker"][base_of(run)])
        axes.set(title=task, xlabel="own_text", ylabel="score")
    keys = [Line2D([], [], linestyle="", marker=MARKERS[0], color=color) for color in looks["color"].values()]
    keys += [Line2D([], [], linestyle="", marker=marker, color="gray") for marker in looks["marker"].values()]
    figure.legend(keys, [*corpora, *bases], loc="outside lower center", frameon=False, ncols=4, fontsize=8)


def _languages(figure: SubFigure | None, base: Base) -> tuple[float, float] | None:
    """Draw the languages of retrieved sentences: a row of panels per query language, a column per model (CMLM Figure 2)."""
    results = _first_seed(base, "language_bias")
    if figure is None:
        return 0.6 + 2.4 * len(results), 5.1
    grid = figure.subplots(len(QUERIES), len(results), squeeze=False, sharey=True)
    for column, (row, result) in zip(grid.T, results.items(), strict=True):
        languages, matrix = result["languages"], np.asarray(result["matrix"])
        for axes, query in zip(column, QUERIES, strict=True):
            colors = [COLOURS[language == query] for language in languages]
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
            for points, label, color in zip(result["points"][language], (language, "eng"), COLOURS, strict=False):
                axes.scatter(*np.asarray(points).T, s=4, color=color, label=label)
            axes.legend(frameon=False, fontsize=8, loc="upper right")
        line[0].set_ylabel(row)


def _first_seed(base: Base, task: str) -> dict[str, dict]:
    """Return the result of `task` for the first seed of each row, in the study's order."""
    first = {record["row"]: record["tasks"][task] for record in reversed(base.records) if task in record["tasks"]}
    return {row: first[row] for row in base.study.rows if row in first}


PANELS = {"roc": _roc, "histograms": _histograms, "agreement": _agreement, "own_text": _own_text}
PANELS |= {"languages": _languages, "plane": _plane}

"""Figure of a study. Knows scores and the records of cells; uses `mirror.evaluation.plots`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirror.evaluation import plots
from mirror.studies import figures_cmlm, own_text
from mirror.studies.cells import AVERAGE, Study
from mirror.studies.claims import interval
from mirror.studies.table import Beside, Score, Scores, column_header, published_scores, shown_columns
from mirror.training.choices import ALIGNMENT_UNIFORMITY, OWN_TEXT


PANELS_PER_ROW = 3
BEST = 20  # rows of a search for hyperparameters that are drawn


def draw(study: Study, scores: Scores, records: Sequence[dict], beside: Beside, path: Path) -> None:
    """Draw the study's figure from the finished cells. ROC curves and histograms show the first seed only."""
    if study.figure == "roc":
        plots.roc_curves(path, _first_seed(study, records, "qnli"), study.title)
    elif study.figure == "histograms":
        results = _first_seed(study, records, "qqp_cosine")
        plots.cosine_histograms(path, {row: result["histogram"] for row, result in results.items()}, study.title)
    elif study.figure == "languages":
        figures_cmlm.language_bars(path, _first_seed(study, records, "language_bias"), study.title)
    elif study.figure == "plane":
        figures_cmlm.language_planes(path, _first_seed(study, records, "tatoeba_projection"), study.title)
    elif study.figure == "agreement":
        agreement_scatter(path, records, study.title)
    elif study.figure == "own_text":
        own_text.scatter(path, study, records)
    else:
        panels(path, study, scores, beside)


def panels(path: Path, study: Study, scores: Scores, beside: Beside) -> None:
    """Draw one panel for the average, or one per column without an average, with 95% intervals and published scores."""
    rows = drawn_rows(study, scores)
    labels = [AVERAGE] if study.average else shown_columns(study, scores)
    num_columns = min(PANELS_PER_ROW, len(labels))
    num_rows = -(-len(labels) // num_columns)
    panel_height = 3.6 if study.figure == "curve" else 0.6 + 0.32 * len(rows)
    figure = Figure(figsize=(2.4 + 2.8 * num_columns, 0.8 + panel_height * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharey=study.figure == "dots")
    columns = shown_columns(study, scores)
    theirs = {row: published_scores(study, columns, beside.get(row, {})) for row in rows}
    for axes, label in zip(grid.flat, labels, strict=False):
        ours = {row: scores[row][label] for row in rows if label in scores[row]}
        printed = {row: of_row[label] for row, of_row in theirs.items() if label in of_row}
        if study.figure == "curve":
            curve(axes, rows, ours, printed)
            axes.set(xlabel=study.title.split(": ")[1], ylabel=column_header(study, columns, label))
        else:
            dots(axes, rows, ours, printed)
            axes.set_xlabel(column_header(study, columns, label))
    for axes in list(grid.flat)[len(labels) :]:
        axes.remove()
    if any(theirs.values()):
        handles, names = grid[0, 0].get_legend_handles_labels()
        by_name = dict(zip(names, handles, strict=True))
        figure.legend(by_name.values(), by_name.keys(), loc="outside lower center", frameon=False, ncols=2)
    plots.save(figure, path, study.title)


def drawn_rows(study: Study, scores: Scores) -> list[str]:
    """Return the rows of the figure: all, or the best ones of a study that selects a row."""
    if not study.choose_on:
        return study.rows
    scored = [row for row in study.rows if study.choose_on in scores[row]]
    return sorted(scored, key=lambda row: scores[row][study.choose_on].mean, reverse=True)[:BEST]


def dots(axes: Axes, rows: Sequence[str], ours: Mapping[str, Score], theirs: Mapping[str, float]) -> None:
    """Draw for each row its mean with its interval, a point for each seed, and the mean as text.

    The axis need not begin at zero: many differences are small.
    """
    places = {row: number for number, row in enumerate(rows)}
    axes.grid(axis="both", color="0.92")
    axes.set_axisbelow(True)
    for row, score in ours.items():
        draw_seeds(axes, score, places[row], along_x=True)
        axes.plot(score.mean, places[row], "o", color=plots.COLOURS[0], markersize=5, zorder=4, label="ours")
        axes.text(
            1.02, places[row], f"{score.mean:.3f}", transform=axes.get_yaxis_transform(), va="center", fontsize=9
        )
    if theirs:
        axes.scatter(theirs.values(), [places[row] for row in theirs], marker="D", s=22, color=plots.COLOURS[1],
                     zorder=3, label="published")  # fmt: skip
    axes.margins(x=0.08)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def draw_seeds(axes: Axes, score: Score, place: float, along_x: bool) -> None:
    """Draw the seeds of a score as points and its interval as a line, at a place on the other axis."""
    if limits := interval(score):
        line, points = (limits, [place] * 2), (score.values, [place] * len(score.values))
        axes.plot(*(line if along_x else line[::-1]), color=plots.COLOURS[0], linewidth=1.5)
        axes.scatter(*(points if along_x else points[::-1]), s=12, color=plots.COLOURS[5], zorder=3)


def curve(axes: Axes, rows: Sequence[str], ours: Mapping[str, Score], theirs: Mapping[str, float]) -> None:
    """Draw the scores with their intervals as a curve over the rows, which are numbers."""
    places = [float(row) for row in ours]
    axes.grid(color="0.92")
    for place, score in zip(places, ours.values(), strict=True):
        draw_seeds(axes, score, place, along_x=False)
    axes.plot(
        places, [score.mean for score in ours.values()], color=plots.COLOURS[0], marker="o", markersize=5, label="ours"
    )
    if theirs:
        axes.plot([float(row) for row in theirs], list(theirs.values()), "--D", color=plots.COLOURS[1], markersize=4,
                  label="published")  # fmt: skip
    numbers = [float(row) for row in rows]
    if max(numbers) >= 16 * min(numbers):
        axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number / 1000:g}k" if number >= 1000 else f"{number:g}" for number in numbers])
    axes.minorticks_off()


def agreement_scatter(path: Path, records: Sequence[dict], title: str) -> None:
    """Plot each checkpoint's label-free scores against its dev score.

    One row of panels per row of the study, one column per criterion, a colour per seed.
    """
    rows = list(dict.fromkeys(record["row"] for record in records))
    labels = {OWN_TEXT: "test on held-out texts", ALIGNMENT_UNIFORMITY: "alignment + uniformity (lower is better)"}
    figure = Figure(figsize=(4.2 * len(labels), 3.4 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(labels), squeeze=False, sharey="row")
    for (row, criterion), axes in zip(product(rows, labels), grid.flat, strict=True):
        for number, record in enumerate(record for record in records if record["row"] == row):
            result = record["tasks"][f"selection_{criterion}"]
            label = f"seed {record['seed']}, rho {result['main_score']:.2f}"
            axes.plot(result["criterion"], result["dev"], "o-", color=plots.COLOURS[number % len(plots.COLOURS)],
                      linewidth=0.6, markersize=4, label=label)  # fmt: skip
        axes.set(title=row, xlabel=labels[criterion])
        axes.locator_params(axis="x", nbins=5)
        axes.legend(frameon=False, fontsize=8)
    figure.supylabel("STS-B dev", fontsize="medium")
    plots.save(figure, path, title)


def _first_seed(study: Study, records: Sequence[dict], task: str) -> dict[str, dict]:
    """Return the result of `task` for the first seed of each row, in the study's order."""
    first = {record["row"]: record["tasks"][task] for record in reversed(records) if task in record["tasks"]}
    return {row: first[row] for row in study.rows if row in first}

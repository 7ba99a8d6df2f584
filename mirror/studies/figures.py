"""The picture of a study: figure.png. Knows scores and the records of cells; `mirror.evaluation.plots` draws what it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirror.evaluation import plots
from mirror.studies.cells import Study
from mirror.studies.table import AVERAGE, Scores, head, published_scores, shown_columns


PANELS_A_LINE = 4


def draw(study: Study, scores: Scores, records: Sequence[dict], family: str, path: Path) -> None:
    """The study's figure from what has been run so far; of several seeds, curves and histograms show the first."""
    if study.figure == "roc":
        plots.roc_curves(path, _first_seed(study, records, "qnli"), study.title)
    elif study.figure == "histograms":
        results = _first_seed(study, records, "qqp_cosine")
        plots.cosine_histograms(path, {row: result["histogram"] for row, result in results.items()}, study.title)
    elif study.figure == "agreement":
        agreement_scatter(path, records, study.title)
    else:
        panels(path, study, scores, family)


def panels(path: Path, study: Study, scores: Scores, family: str) -> None:
    """A panel for the average or, without one, for each column: ours with error bars over seeds, and the published."""
    labels = [AVERAGE] if study.average else shown_columns(study, scores)
    across = min(PANELS_A_LINE, len(labels))
    down = -(-len(labels) // across)
    one_height = 3.6 if study.figure == "curve" else 0.6 + 0.32 * len(study.rows)
    figure = Figure(figsize=(2.4 + 2.8 * across, 0.8 + one_height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=study.figure == "bars")
    columns = shown_columns(study, scores)
    theirs = {row: published_scores(study, columns, row, family) for row in study.rows}
    for axes, label in zip(grid.flat, labels, strict=False):
        ours = {row: of_row[label] for row, of_row in scores.items() if label in of_row}
        printed = {row: of_row[label] for row, of_row in theirs.items() if label in of_row}
        if study.figure == "curve":
            curve(axes, study.rows, ours, printed)
            axes.set(xlabel=study.title.split(": ")[1], ylabel=head(study, columns, label))
        else:
            bars(axes, study.rows, ours, printed)
            axes.set_xlabel(head(study, columns, label))
    for axes in list(grid.flat)[len(labels) :]:
        axes.remove()
    if any(theirs.values()):
        handles, names = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles[::-1], names[::-1], loc="outside lower center", frameon=False, ncols=2)
    plots.save(figure, path, study.title)


def bars(axes: Axes, rows: Sequence[str], ours: Mapping, theirs: Mapping[str, float]) -> None:
    """One horizontal bar a row; its number stands at the right, for many rows differ by less than can be seen."""
    places = {row: number for number, row in enumerate(rows)}
    means = [score.mean for score in ours.values()]
    axes.barh([places[row] for row in ours], means, 0.6, xerr=_errors(ours), color=plots.COLOURS[0], capsize=2,
              label="ours")  # fmt: skip
    for row, mean in zip(ours, means, strict=True):
        axes.text(1.02, places[row], f"{mean:.3f}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    if theirs:
        axes.scatter(theirs.values(), [places[row] for row in theirs], marker="D", s=22, color=plots.COLOURS[1],
                     zorder=3, label="published")  # fmt: skip
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def curve(axes: Axes, rows: Sequence[str], ours: Mapping, theirs: Mapping[str, float]) -> None:
    """The rows, which are numbers, along the axis."""
    places = [float(row) for row in ours]
    means = [score.mean for score in ours.values()]
    axes.errorbar(
        places, means, _errors(ours), color=plots.COLOURS[0], marker="o", markersize=4, capsize=2, label="ours"
    )
    if theirs:
        axes.plot([float(row) for row in theirs], list(theirs.values()), "--D", color=plots.COLOURS[1], markersize=4,
                  label="published")  # fmt: skip
    numbers = [float(row) for row in rows]
    if max(numbers) >= 16 * min(numbers):
        axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,g}" for number in numbers])
    axes.minorticks_off()


def agreement_scatter(path: Path, records: Sequence[dict], title: str) -> None:
    """Each checkpoint's label-free criterion against its dev score: a panel a row, a colour a seed."""
    rows = list(dict.fromkeys(record["row"] for record in records))
    figure = Figure(figsize=(4.4 * len(rows), 3.8), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        for number, record in enumerate(record for record in records if record["row"] == row):
            result = record["tasks"]["selection"]
            label = f"seed {record['seed']}, rho {result['main_score']:.2f}"
            axes.plot(result["criterion"], result["dev"], "o-", color=plots.COLOURS[number % len(plots.COLOURS)],
                      linewidth=0.6, markersize=4, label=label)  # fmt: skip
        axes.set(title=row, xlabel="alignment + uniformity of held-out texts", ylabel="STS-B dev")
        axes.legend(frameon=False, fontsize=8)
    plots.save(figure, path, title)


def _errors(ours: Mapping) -> list[float]:
    """Half lengths of the error bars; not a number, so no bar, for a single value."""
    return [float("nan") if score.std is None else score.std for score in ours.values()]


def _first_seed(study: Study, records: Sequence[dict], task: str) -> dict[str, dict]:
    """Row to the result of `task`, rows in the study's order."""
    first = {record["row"]: record["tasks"][task] for record in reversed(records) if task in record["tasks"]}
    return {row: first[row] for row in study.rows if row in first}

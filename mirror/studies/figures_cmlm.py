"""Figures 2 and 3 of CMLM. Knows the results of the tasks `language_bias` and `tatoeba_projection`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mirror.evaluation import plots


QUERIES = ("de", "fr", "zh")  # the query languages of Figure 2


def language_bars(path: Path, results: Mapping[str, dict], title: str) -> None:
    """Draw the languages of the retrieved sentences: a row of panels per query language, a column per model.

    Args:
        results: row of the study -> result of `language_bias`.
    """
    figure = Figure(figsize=(0.6 + 2.4 * len(results), 5.4), layout="constrained")
    grid = figure.subplots(len(QUERIES), len(results), squeeze=False, sharey=True)
    for column, (name, result) in zip(grid.T, results.items(), strict=True):
        languages, matrix = result["languages"], np.asarray(result["matrix"])
        for axes, query in zip(column, QUERIES, strict=True):
            colours = [plots.COLOURS[language == query] for language in languages]
            axes.bar(languages, matrix[languages.index(query)], color=colours)
        column[0].set_title(name, fontsize=10)
    for axes, query in zip(grid[:, 0], QUERIES, strict=True):
        axes.set_ylabel(f"query: {query}")
    plots.save(figure, path, title)


def language_planes(path: Path, results: Mapping[str, dict], title: str) -> None:
    """Draw the sentences of two languages in the plane: a row of panels per model, a column per language.

    Args:
        results: row of the study -> result of `tatoeba_projection`.
    """
    languages = list(next(iter(results.values()))["points"])
    figure = Figure(figsize=(0.6 + 2.6 * len(languages), 0.6 + 2.6 * len(results)), layout="constrained")
    grid = figure.subplots(len(results), len(languages), squeeze=False)
    for row, (name, result) in zip(grid, results.items(), strict=True):
        for axes, language in zip(row, languages, strict=True):
            for points, label, colour in zip(
                result["points"][language], (language, "eng"), plots.COLOURS, strict=False
            ):
                axes.scatter(*np.asarray(points).T, s=4, color=colour, label=label)
            axes.legend(frameon=False, fontsize=8, loc="upper right")
        row[0].set_ylabel(name)
    plots.save(figure, path, title)

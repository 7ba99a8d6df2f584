"""Plots of task results. Knows numbers and file names; needs neither a model nor a display.

The argument `path` of each function is a file whose suffix says the format, or a name without one of the suffixes, for
which PNG, SVG and PDF are written. Each function returns the paths of the written files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from mirror.common.atomic_files import atomic_path


# Okabe and Ito's palette, which is safe for colour-blind readers.
FORMATS = (".png", ".svg", ".pdf")
# The same figure gives the same bytes, and text stays text that journals accept.
SETTINGS = {"svg.hashsalt": "mirror", "pdf.fonttype": 42}
NO_DATE = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def cosine_histograms(path: Path, histograms: Mapping[str, dict], title: str = "") -> list[Path]:
    """Draw histograms of the cosines of positive and negative pairs, one panel per model (Mirror-BERT Figure 7).

    Args:
        histograms: panel title, such as "before" -> field `histogram` of a `qqp_cosine` result.
    """
    figure = Figure(figsize=(7, 2.4 * len(histograms) + 0.6), layout="constrained")
    panels = figure.subplots(len(histograms), sharex=True, squeeze=False)[:, 0]
    for axes, (name, histogram) in zip(panels, histograms.items(), strict=True):
        edges = np.asarray(histogram["bin_edges"])
        for kind, colour in (("positive", COLOURS[0]), ("negative", COLOURS[1])):
            share = np.asarray(histogram[kind]) / max(1, sum(histogram[kind]))
            axes.stairs(share, edges, fill=True, color=colour, alpha=0.55, label=f"{kind} pairs")
        axes.set(ylabel="share of pairs", xlim=_used_range(edges, histograms.values()))
        axes.set_title(name, loc="left", fontsize=10)
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("cosine")
    return save(figure, path, title)


def roc_curves(path: Path, curves: Mapping[str, dict], title: str = "") -> list[Path]:
    """Draw the ROC curves of several models in one plot (Mirror-BERT Figure 4).

    Args:
        curves: model name -> `qnli` result, of which `roc_curve` is drawn and `main_score` is shown in the legend.
    """
    figure = Figure(figsize=(5.4, 5.2), layout="constrained")
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
    figure = Figure(figsize=(size + 1.8, size + 1.0), layout="constrained")
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

    Args:
        source, english: (N, D); row n of one is the translation of row n of the other. About 50 pairs are readable.
        names: of the two languages, for the legend.
    """
    points = PCA(2, random_state=0).fit_transform(np.concatenate([source, english]))  # (2N, 2)
    pairs = np.stack([points[: len(source)], points[len(source) :]], axis=1)  # (N, 2 sides, 2 coordinates)
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(*pairs.transpose(2, 1, 0), color="0.8", linewidth=0.6, zorder=1)
    for side, (name, marker) in enumerate(zip(names, "o^", strict=True)):
        axes.scatter(*pairs[:, side].T, s=18, color=COLOURS[side], marker=marker, label=name, zorder=2)
    axes.set(xlabel="first principal component", ylabel="second principal component")
    axes.legend(frameon=False)
    return save(figure, path, title)


def _used_range(edges: np.ndarray, histograms) -> tuple[float, float]:
    """Return the range of the non-empty bins of all histograms, so that a narrow range of cosines stays visible."""
    counts = sum(np.asarray(histogram[kind]) for histogram in histograms for kind in ("positive", "negative"))
    filled = np.flatnonzero(counts)
    return float(edges[filled[0]]), float(edges[filled[-1] + 1])


def save(figure: Figure, path: Path, title: str) -> list[Path]:
    """Set the title of a figure and write it atomically; return the written files."""
    figure.suptitle(title)
    for axes in figure.axes:
        _hide_frame(axes)
    paths = [path] if path.suffix in FORMATS else [path.with_name(path.name + kind) for kind in FORMATS]
    for file in paths:
        with atomic_path(file) as temporary, rc_context(SETTINGS):
            figure.savefig(temporary, format=file.suffix[1:], dpi=150, metadata=NO_DATE[file.suffix])
    return paths


def _hide_frame(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)

"""Draws docs/figures/small.svg from the table of docs/small.md: quality against speed of a teacher and its students.

python docs/figures/small.py
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt


PAGE = Path(__file__).resolve().parents[1] / "small.md"
ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<score>\.\d+)[^|]*\| [^|]+\| (?P<speed>[\d,]+)[^|]*\|", re.MULTILINE)


def main() -> None:
    mpl.rcParams |= {"svg.fonttype": "path", "svg.hashsalt": "mirror", "font.size": 10}
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="tight", facecolor="white")
    for row in ROW.finditer(PAGE.read_text(encoding="utf-8")):
        speed, score = int(row["speed"].replace(",", "")), float(row["score"])
        axes.scatter(speed, score, color="#0072B2", zorder=3)
        axes.annotate(
            row["name"].split(",")[0].strip("`"),
            (speed, score),
            xytext=(7, -14 if "dimensions" in row["name"] else 5),
            textcoords="offset points",
        )
    axes.axhline(0.49, color="0.6", linestyle="--", linewidth=1)
    axes.annotate("the model as published", (400, 0.49), xytext=(0, 4), textcoords="offset points", color="0.4")
    axes.set(
        xscale="log",
        xlim=(350, 60_000),
        ylim=(0.44, 0.57),
        xlabel="texts per second",
        ylabel="docs_search, accuracy@1",
    )
    axes.grid(alpha=0.25)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()

"""Draws docs/figures/small.svg from the table of docs/small.md: quality against speed of a teacher, its students and exports.

python docs/figures/small.py
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt


PAGE = Path(__file__).resolve().parents[1] / "small.md"
ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<score>\.\d+)[^|]*\| [^|]*\| (?P<speed>[\d,]+)[^|]*\|", re.MULTILINE)

LABELS = {
    "teacher": (-14, 8),
    "bfloat16": (8, 4),
    "sentence-transformers": (-16, -14),
    "OpenVINO": (-8, 18),
    "OpenVINO 8 bits": (8, -12),
    "dimensions:128": (7, -12),
}


def main() -> None:
    mpl.rcParams |= {"svg.fonttype": "path", "svg.hashsalt": "mirror", "font.size": 10}
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="tight", facecolor="white")
    for row in ROW.finditer(PAGE.read_text(encoding="utf-8")):
        speed, score, name = (
            int(row["speed"].replace(",", "")),
            float(row["score"]),
            row["name"].split(",")[0].strip("`"),
        )
        color = "#0072B2" if name in ("teacher", "bfloat16") else "#009E73" if row["name"][0] == "`" else "#D55E00"
        axes.scatter(speed, score, color=color, zorder=3)
        # The exports have the scores of their teacher.
        place = {"xytext": LABELS.get(name, (7, 5)), "textcoords": "offset points"}
        axes.annotate(name, (speed, score), **place, fontsize=8, color=color)
    axes.axhline(0.49, color="0.6", linestyle="--", linewidth=1)
    axes.annotate("the model as published", (1500, 0.49), xytext=(0, 4), textcoords="offset points", color="0.4")
    axes.set(
        xscale="log",
        xlim=(200, 60_000),
        ylim=(0.44, 0.57),
        xlabel="texts per second",
        ylabel="docs_search, accuracy@1",
    )
    axes.grid(alpha=0.25)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()

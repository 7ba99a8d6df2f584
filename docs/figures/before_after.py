"""Draws docs/figures/before_after.svg, the picture of the README: what two encoders find first for five names of functions.

    python run_mirror.py --model_name_or_path sentence-transformers/all-MiniLM-L6-v2 --pairs auto --max_train_samples 12000 --output_dir out/pairs
    python docs/figures/before_after.py sentence-transformers/all-MiniLM-L6-v2 out/pairs

The queries are names of Python functions that no training text names (`docs_search_dev`). Shown are the first five, in the order
of the data, for which only the adapted encoder finds the right docstring first and which fit into the picture.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from mirror import Encoder
from mirror.common.vectors import top_k, unit_length
from mirror.data.docstrings import collect, search_pairs


WIDTH = 54  # characters of a text that fit


def main() -> None:
    queries, texts = zip(*search_pairs(collect(), "dev"), strict=True)
    found = []
    for name in sys.argv[1:3]:
        encoder = Encoder.from_pretrained(name)
        vectors = [
            unit_length(encode(list(each)))
            for encode, each in ((encoder.encode_query, queries), (encoder.encode_document, texts))
        ]
        found.append(top_k(*vectors, 1)[1][:, 0])
    before, after = found
    own = np.arange(len(texts))
    better, worse = (before != own) & (after == own), (before == own) & (after != own)
    fits = [len(texts[row]) <= WIDTH and len(texts[before[row]]) <= WIDTH for row in own]
    rows = np.flatnonzero(better & fits)[:5]
    mpl.rcParams |= {"svg.fonttype": "path", "svg.hashsalt": "mirror", "font.size": 9.5}
    figure, axes = plt.subplots(figsize=(11.5, 2.7), layout="tight", facecolor="white")
    axes.axis("off")
    head = ["query", "first result of all-MiniLM-L6-v2", "after adapting it to 12,000 docstrings"]
    cells = [[queries[row], texts[before[row]], texts[row]] for row in rows]
    table = axes.table([head, *cells], colWidths=[0.16, 0.42, 0.42], cellLoc="left", loc="center", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(11)
    table.scale(1, 1.7)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#cccccc")
        text = cell.get_text()
        text.set_parse_math(False)
        if row == 0:
            text.set_fontweight("bold")
        else:
            text.set_color(("#222222", "#b3261e", "#1b6e3c")[column])
    note = f"Of {len(own):,} names, {better.sum()} are found only afterwards, {worse.sum()} only before."
    axes.set_title(note, loc="left", fontsize=10, color="#555555", y=-0.12)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()

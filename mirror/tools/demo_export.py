"""The demo page as one file without a server: it compares and searches the texts that it contains, and no others."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

import numpy as np

from mirror.tools.demo_models import ComparedModel
from mirror.tools.demo_page import PAGE, corpus_map, map_rows
from mirror.tools.vector_types import quantise


QUANTILES = np.linspace(0, 1, 1001)


def export_page(before: ComparedModel, after: ComparedModel, k: int) -> str:
    """HTML that needs nothing else: the page, the texts on the map and their vectors; `k` matches per query."""
    models = {"before": before, "after": after}
    rows = map_rows(after.texts)
    data = {
        "corpus": corpus_map(models),
        "k": k,
        "models": {name: packed(model, rows) for name, model in models.items()},
    }
    # In JSON, "<" occurs in strings only; escaped, no text can end the element.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return inlined(f'<script type="application/json" id="snapshot">{text}</script>')


def packed(model: ComparedModel, rows: Sequence[int]) -> dict:
    """Vectors as signed bytes, and the quantiles of the cosines of random pairs.

    A vector is scaled to a largest value of 127. A cosine changes by less than 0.01.
    """
    quantised, _ = quantise(model.vectors[list(rows)])
    return {
        "dimensions": quantised.shape[1],
        "vectors": base64.b64encode(quantised.tobytes()).decode("ascii"),
        "random_cosines": np.quantile(model.random_cosines, QUANTILES).astype(float).round(4).tolist(),
    }


def inlined(data: str) -> str:
    """index.html with its style sheet, its icon, `data` and its scripts in it, under a policy that allows just those."""
    style, scripts = read("page.css"), [read("snapshot.js"), read("page.js")]
    icon = base64.b64encode(read("icon.svg").encode()).decode("ascii")
    policy = (
        f"default-src 'none'; img-src data:; style-src {source(style)}; script-src {' '.join(map(source, scripts))}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    parts = {
        '<meta charset="utf-8">': f'<meta charset="utf-8">\n  <meta http-equiv="Content-Security-Policy" content="{policy}">',
        "icon.svg": f"data:image/svg+xml;base64,{icon}",
        '<link rel="stylesheet" href="page.css">': f"<style>{style}</style>",
        '  <script src="page.js" defer></script>\n': "",
        "</body>": "\n".join([data, *(f"<script>{script}</script>" for script in scripts), "</body>"]),
    }
    page = read("index.html")
    for place, content in parts.items():
        before, after = page.split(place)  # each place occurs once
        page = before + content + after
    return page


def read(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def source(content: str) -> str:
    """The name of inline content in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}'"

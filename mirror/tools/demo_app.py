"""Gradio app that compares two encoders on a list of texts: cosines of two texts, search, and a map.

`build_demo` returns the app. `LAUNCH` has the arguments of its `launch()`, for the local page and for a Space.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from textwrap import wrap

import gradio as gr
import numpy as np
import plotly.graph_objects as go
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import PCA

from mirror.common.errors import InputError
from mirror.common.vectors import top_k, unit_length
from mirror.data.corpus import load_corpus
from mirror.data.source import CorpusSource
from mirror.evaluation.results import short_names
from mirror.modeling.encoder import Encoder


NUM_PAIRS = 10_000  # random pairs of texts, whose cosines are the reference for any other cosine
PAIR_BINS = np.linspace(-1, 1, 81)
MAX_CHARACTERS = 2000  # of a typed text
SHOWN_CHARACTERS = 300  # of a match
LABEL_CHARACTERS, LABEL_LINE = 180, 36  # of a dot; the label has to fit on a map that is 300 pixels wide
EXAMPLES = 5
MAP_TEXTS = 2000  # also the limit of an upload
PAGE = Path(__file__).resolve().parent / "page"
SIDES = ("before", "after")
LAUNCH = {
    "theme": gr.themes.Default(primary_hue="slate", font=["system-ui", "sans-serif"], font_mono=["monospace"]),
    "css_paths": PAGE / "page.css",
    "js": (PAGE / "page.js").read_text(encoding="utf-8"),
    "footer_links": [],
    "run_history": False,
    "enable_monitoring": False,
    "max_file_size": 2 << 20,
    "state_session_capacity": 20,  # visitors whose uploaded texts are in memory
    "share": False,
}


class ComparedModel:
    """One of the two models, with its name on the page and its embeddings of N distinct texts, at least two."""

    def __init__(self, name: str, encoder: Encoder, texts: Sequence[str]):
        if len(texts) < 2:
            raise InputError(f"{len(texts)} text(s): the map needs at least two texts")
        self.name, self.encoder, self.texts = name, encoder, texts
        self.vectors = unit_length(encoder.encode_document(texts))  # (N, D)
        self.pca = PCA(2, random_state=0).fit(self.vectors)
        self.turn = np.eye(2)
        self.points = self.place(self.vectors)  # (N, 2) on the map
        generator = np.random.default_rng(0)
        first = generator.integers(len(texts), size=NUM_PAIRS)
        second = (first + generator.integers(1, len(texts), size=NUM_PAIRS)) % len(texts)
        self.random_cosines = np.sort(np.einsum("nd,nd->n", self.vectors[first], self.vectors[second]))
        self.histogram = np.histogram(self.random_cosines.clip(-1, 1), PAIR_BINS)[0]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return embeddings of unit length, (N, D) float32."""
        return unit_length(self.encoder.encode(texts))

    def place(self, vectors: np.ndarray) -> np.ndarray:
        """Return the positions of `vectors` (N, D) on the map, (N, 2)."""
        return self.pca.transform(vectors) @ self.turn

    def compare(self, first: str, second: str) -> tuple[float, float]:
        """Return the cosine of two texts, and the share of random pairs whose cosine is lower."""
        left, right = self.encode([first, second])
        cosine = float(left @ right)
        return cosine, float(np.searchsorted(self.random_cosines, cosine) / NUM_PAIRS)

    def search(self, query: str, k: int) -> tuple[list[tuple[float, int]], np.ndarray]:
        """Return cosine and row of the `k` nearest texts other than the query, best first, and its place (1, 2)."""
        vector = unit_length(self.encoder.encode_query([query]))  # (1, D)
        scores, rows = top_k(vector, self.vectors, k + 1)  # (1, k + 1) each, since one may be the query itself
        found = zip(scores[0].tolist(), rows[0].tolist(), strict=True)
        others = [(score, row) for score, row in found if self.texts[row][:MAX_CHARACTERS] != query]
        return others[:k], self.place(vector)


Models = tuple[ComparedModel, ComparedModel]


def compare_on(texts: Sequence[str], names: Sequence[str], encoders: Sequence[Encoder]) -> Models:
    """Encode `texts` with both encoders.

    The axes of principal components have arbitrary signs and order. The map before training is rotated and mirrored to
    lie as closely as possible on the one after, which leaves its distances as they are.
    """
    before, after = (ComparedModel(name, encoder, texts) for name, encoder in zip(names, encoders, strict=True))
    before.turn = orthogonal_procrustes(before.points, after.points)[0]
    before.points = before.place(before.vectors)
    return before, after


def build_demo(
    before: str, after: str, texts: Sequence[str], pooling: str | None = None, num_matches: int = 5
) -> gr.Blocks:
    """Load two models, encode the texts, and return the app.

    >>> build_demo("bert-base-uncased", "out/mirror", ["a text", "another one"]).launch(**LAUNCH)

    Pooling and truncation of `before` are those of `after`, the trained model, or `pooling`. Blank and repeated texts are
    left out, and two have to remain. A query gets `num_matches` matches.
    """
    trained = Encoder.from_pretrained(after, pooling)
    encoders = Encoder.from_pretrained(before, trained.pooling, trained.max_seq_length), trained
    texts = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    return build_page(compare_on(texts, short_names([before, after]), encoders), num_matches)


# ---- What the page shows. Texts and names are written into HTML, so each passes `escape`. ----


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def both_sides(models: Models, bodies: Sequence[str], key: str) -> str:
    """Return two cards side by side, or one below the other where the page is narrow, and `key` below them."""
    cards = ""
    for side, model, body in zip(SIDES, models, bodies, strict=True):
        cards += f"<article class='{side}'><h3><b>{side}</b> {escape(model.name)}</h3>{body}</article>"
    return f"<div class='sides'>{cards}</div><p class='key'>{key}</p>"


def show_cosines(models: Models, first: str, second: str) -> str:
    """Return the cosines of two texts, each in the histogram of random pairs, as HTML."""
    # Both histograms begin at the lowest cosine of either, so that they can be compared.
    start = min(int(np.flatnonzero(model.histogram)[0]) for model in models)
    lowest = PAIR_BINS[start]
    edges = (100 * (PAIR_BINS[start:] - lowest) / (1 - lowest)).round(2)
    bodies = []
    for model in models:
        cosine, share = model.compare(first, second)
        tops = (100 - 92 * model.histogram[start:] / model.histogram.max()).round(1)
        bars = "".join(f"L{edges[i]} {top}L{edges[i + 1]} {top}" for i, top in enumerate(tops))
        line = min(max(100 * (cosine - lowest) / (1 - lowest), 0), 100)
        bodies.append(
            f"""<p class='number'>{number(cosine)}</p>
            <svg viewBox='0 0 100 100' preserveAspectRatio='none' aria-hidden='true'>
            <path d='M0 100{bars}L100 100Z'/><line x1='{line:.2f}' x2='{line:.2f}' y1='0' y2='100'/></svg>
            <p class='axis'><span>{number(lowest, 2)}</span><span>1</span></p>
            <p class='note'>higher than {np.floor(1000 * share) / 10:g}% of random pairs</p>"""
        )
    key = "Gray: cosines of random pairs of your texts. Line: cosine of the two texts above."
    return both_sides(models, bodies, key)


def show_search(models: Models, query: str, num_matches: int) -> tuple[str, go.Figure, go.Figure]:
    """Return the matches of both models as HTML, and both maps with the query and its matches."""
    found = [model.search(query, num_matches) for model in models]
    rows = [[row for _, row in matches] for matches, _ in found]
    lists = ["", ""]
    for side, (matches, _) in enumerate(found):
        for cosine, row in matches:
            text = escape(shorten(models[side].texts[row], SHOWN_CHARACTERS))
            only = "" if row in rows[1 - side] else " class='only'"
            lists[side] += f"<li{only}><span>{number(cosine)}</span><span dir='auto'>{text}</span></li>"
    key = "Nearest texts by cosine, without the query itself. A colored bar marks a text that only this model found."
    maps = [draw_map(models, side, rows[side], place) for side, (_, place) in enumerate(found)]
    return both_sides(models, [f"<ol>{items}</ol>" for items in lists], key), *maps


def draw_map(models: Models, side: int, matches: Sequence[int], query: np.ndarray) -> go.Figure:
    """Draw the texts as dots, `matches` as rings and the place (1, 2) of the query as a cross."""
    model, rows = models[side], map_rows(models[side].texts)
    # plotly renders tags in titles and labels, links among them. It knows no &quot;.
    labels = [wrap(shorten(model.texts[row], LABEL_CHARACTERS), LABEL_LINE) for row in rows]
    labels = ["<br>".join(escape(line, quote=False) for line in lines) for lines in labels]
    explained = np.nan_to_num(model.pca.explained_variance_ratio_.sum())  # nan if all vectors are equal
    note = f"{len(rows):,} texts, {explained:.0%} of the variance explained"
    title = f"<b>{SIDES[side]}</b> {escape(shorten(model.name, LABEL_LINE), quote=False)}<br><span style='font-size: 13px'>{note}</span>"
    # A text has the same color on both maps: its direction on the map after training.
    angles = np.degrees(np.arctan2(*models[1].points[rows].T[::-1])).round()
    dots = {"size": 6, "opacity": 0.7, "color": angles, "cmin": -180, "cmax": 180, "colorscale": "phase"}
    rings, cross = {"symbol": "circle-open", "size": 13}, {"symbol": "x-thin-open", "size": 11}
    figure = go.Figure()
    for points, marker in ((model.points[rows], dots), (model.points[matches], rings), (query, cross)):
        x, y = points.astype(float).round(4).T
        figure.add_scatter(x=x, y=y, marker=marker, mode="markers", hoverinfo="skip")
    figure.data[0].update(hovertext=labels, hoverinfo="text")
    axis = {"visible": False, "fixedrange": True}
    return figure.update_layout(
        xaxis=axis,
        yaxis=axis | {"scaleanchor": "x"},
        title={"text": title, "font": {"size": 15}, "x": 0.03, "y": 0.95},
        margin={"l": 6, "r": 6, "t": 64, "b": 6},
        height=440,
        showlegend=False,
        dragmode=False,  # a finger on the map scrolls the page
        hoverlabel={"align": "left", "bgcolor": "#1d1f23", "font": {"color": "#f7f7f5", "size": 12}},
        **dict.fromkeys(("paper_bgcolor", "plot_bgcolor"), "rgba(0,0,0,0)"),
    )


def map_rows(texts: Sequence[str]) -> list[int]:
    """Return a fixed random sample of at most `MAP_TEXTS` rows, in ascending order."""
    return sorted(random.Random(0).sample(range(len(texts)), min(MAP_TEXTS, len(texts))))


def opening(models: Models, num_matches: int) -> list:
    """Return what the page shows before anything is asked, in the order of `shown` in `build_page`."""
    model = models[1]
    rows = map_rows(model.texts)
    by_length = sorted(rows, key=lambda row: (len(model.texts[row]), row))
    middle = by_length[len(rows) // 4 : len(rows) - len(rows) // 4]  # texts of medium length
    picked = random.Random(0).sample(middle, min(EXAMPLES, len(middle)))
    others = [row for row in rows if row != picked[0]]
    picked.append(others[int(np.argmax(model.vectors[others] @ model.vectors[picked[0]]))])
    *examples, nearest = (model.texts[row][:MAX_CHARACTERS] for row in picked)
    names = " → ".join(escape(each.name) for each in models)
    facts = f"{names}, pooling “{escape(model.encoder.pooling)}”, {len(model.texts):,} texts"
    cosines, found = show_cosines(models, examples[0], nearest), show_search(models, examples[0], num_matches)
    heading = f"<h1>Before and after training</h1><p dir='auto'>{facts}</p>"
    return [[[text] for text in examples], heading, examples[0], nearest, cosines, examples[0], *found]


# ---- The app ----


@contextmanager
def shown_errors() -> Iterator[None]:
    """Show an `InputError` on the page. Gradio renders messages as HTML."""
    try:
        yield
    except InputError as error:
        raise gr.Error(escape(str(error)), print_exception=False) from None


def checked(text: str | None) -> str:
    """Return a typed text without outer space and without halves of characters, on which tokenizers fail."""
    text = (text or "").encode(errors="replace").decode().strip()
    if not 1 <= len(text) <= MAX_CHARACTERS:
        raise InputError(f"Type a text of 1 to {MAX_CHARACTERS:,} characters. This one has {len(text):,}.")
    return text


def read_upload(path: str) -> list[str]:
    """Return the first `MAP_TEXTS` texts of a file without repetitions. Streaming keeps them out of any cache."""
    try:
        rows = load_corpus(CorpusSource(train_file=(path,), streaming=True, max_train_samples=MAP_TEXTS)).rows
        return list(dict.fromkeys(row["text"] for row in rows))
    except InputError as error:
        message = str(error).replace(path, Path(path).name)  # without the path on the server
        raise InputError(message.partition("; choose with --")[0]) from None


def build_page(models: Models, num_matches: int) -> gr.Blocks:
    """Return the app for models that have encoded the texts."""

    def on_compare(uploaded: Models | None, first: str, second: str):
        with shown_errors():
            return show_cosines(uploaded or models, checked(first), checked(second))

    def on_search(uploaded: Models | None, text: str):
        with shown_errors():
            return show_search(uploaded or models, checked(text), num_matches)

    def on_example(uploaded: Models | None, sample: list):
        return sample[0], *on_search(uploaded, sample[0])

    def on_upload(path: str):
        with shown_errors():
            mine = compare_on(read_upload(path), [model.name for model in models], [model.encoder for model in models])
            samples, *values = opening(mine, num_matches)
            return mine, gr.Dataset(samples=samples), *values

    samples, *values = opening(models, num_matches)
    start = iter(values)
    field = {"show_label": False, "max_lines": 4, "max_length": MAX_CHARACTERS, "container": False, "scale": 6}
    click = {"variant": "primary", "min_width": 110}
    with gr.Blocks(title="Before and after training", analytics_enabled=False, delete_cache=(600, 600)) as page:
        uploaded = gr.State(time_to_live=3600)
        with gr.Row(elem_classes="ask"):
            facts = gr.HTML(next(start), scale=6)
            types = [".txt", ".csv", ".tsv"]
            upload = gr.UploadButton("Upload texts (txt, csv)", file_types=types, size="sm", scale=0)
        gr.HTML("<h2>Two texts</h2>")
        with gr.Row(elem_classes="ask"):
            first = gr.Textbox(next(start), elem_id="first", label="first text", **field)
            second = gr.Textbox(next(start), elem_id="second", label="second text", **field)
            compare = gr.Button("Compare", elem_id="compare", **click)
        cosines = gr.HTML(next(start))
        gr.HTML("<h2>Search</h2>")
        with gr.Row(elem_classes="ask"):
            query = gr.Textbox(next(start), elem_id="query", label="search query", **field | {"scale": 12})
            search = gr.Button("Search", **click)
        # A Dataset shortens long texts.
        examples = gr.Dataset(components=[query], samples=samples, label="Examples", elem_id="examples")
        matches = gr.HTML(next(start))
        gr.HTML("<h2>Map</h2>")
        with gr.Row(elem_id="map"):
            maps = [gr.Plot(next(start), show_label=False, elem_classes=side, min_width=300) for side in SIDES]
        gr.HTML((PAGE / "map.html").read_text(encoding="utf-8"))
        results = [matches, *maps]
        # Tokenizers are not thread-safe. One id for all lets one event at a time run.
        alone = {"concurrency_id": "encoder", "concurrency_limit": 1, "api_visibility": "undocumented"}
        gr.on([compare.click, first.submit, second.submit], on_compare, [uploaded, first, second], cosines, **alone)
        alone["show_progress_on"] = matches
        gr.on([search.click, query.submit], on_search, [uploaded, query], results, **alone)
        examples.click(on_example, [uploaded, examples], [query, *results], **alone)
        shown = [examples, facts, first, second, cosines, query, *results]
        upload.upload(on_upload, upload, [uploaded, *shown], **alone)
    return page.queue(max_size=20, api_open=False)

"""What the demo page shows before anything is asked: the map, example texts and facts about both models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mirror.tools.demo_models import ComparedModel


PAGE = Path(__file__).resolve().parent / "page"
SHOWN_CHARACTERS = 300  # of a text of the corpus on the page
MAP_TEXTS = 2000
EXAMPLES = 5
EXAMPLE_CHARACTERS = 100  # of the longest example: examples are buttons


def map_rows(texts: Sequence[str]) -> list[int]:
    """A fixed random sample of at most `MAP_TEXTS` rows, in ascending order."""
    return sorted(random.Random(0).sample(range(len(texts)), min(MAP_TEXTS, len(texts))))


def corpus_map(models: dict[str, ComparedModel]) -> dict:
    """The response of `/api/corpus`: texts on the map, examples, and the description of each model on these texts."""
    texts = models["after"].texts
    rows = map_rows(texts)
    suited = rows_for_examples(texts, rows)
    examples = random.Random(0).sample(suited, min(EXAMPLES, len(suited)))
    uncut = [row for row in rows if len(texts[row]) <= SHOWN_CHARACTERS and is_one_line(texts[row])]
    return {
        "num_texts": len(texts),
        "pooling": models["after"].encoder.pooling,
        "texts": [shorten(texts[row]) for row in rows],
        "examples": [texts[row] for row in examples],
        "pair": [texts[row] for row in first_and_nearest(models["after"], examples, uncut)],
        **{name: model.describe(rows) for name, model in models.items()},
    }


def rows_for_examples(texts: Sequence[str], rows: Sequence[int]) -> list[int]:
    """Those of `rows` whose texts are neither in the shortest nor in the longest quarter, and fit on a button and in a field."""
    by_length = sorted(rows, key=lambda row: (len(texts[row]), row))
    cut = len(rows) // 4
    middle = by_length[cut : len(rows) - cut]
    return [row for row in middle if len(texts[row]) <= EXAMPLE_CHARACTERS and is_one_line(texts[row])]


def is_one_line(text: str) -> bool:
    """Whether an input field keeps the text: it drops line breaks."""
    return "\n" not in text and "\r" not in text


def first_and_nearest(model: ComparedModel, examples: Sequence[int], rows: Sequence[int]) -> list[int]:
    """The first of `examples` and the row of `rows` that is nearest to it; empty if there is none of either."""
    others = [row for row in rows if row not in examples[:1]]
    if not examples or not others:
        return []
    return [examples[0], others[int(np.argmax(model.vectors[others] @ model.vectors[examples[0]]))]]


def shorten(text: str) -> str:
    """The text, cut to `SHOWN_CHARACTERS` characters."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"

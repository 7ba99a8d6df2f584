"""Studies of what came after Mirror-BERT (docs/methods.md): each option alone beside the paper's method, and some together."""

from __future__ import annotations

from mirror.studies.cells import STS_SENTENCES, WORDS, Cell, Claim, Column, Study


DOCSTRINGS = "train.txt"  # of data_scripts/docstring_corpus.py
STS = ("sts12", "sts13", "sts14", "sts15", "stsb", "sickr")
# part: level, corpus, tasks, flags that keep it short
PARTS = {
    "sentence": ("sentence", STS_SENTENCES, ("stsb_dev", *STS), {}),
    "word": ("word", WORDS.format("en"), ("simlex999", "bel_ncbi"), {}),
    "docs": (
        "sentence",
        DOCSTRINGS,
        ("docs_search_dev", "docs_search"),
        {"max_train_samples": 12_000, "validation_samples": 1000},
    ),
}
OPTIONS = {
    "Mirror": {},
    "projection head": {"projection_head": "mlp"},
    "repetition": {"augmentation": "repeat"},
    "queue of 500": {"negative_queue": 500},
    "repetition, queue of 500": {"augmentation": "repeat", "negative_queue": 500},
    "200 noise negatives": {"noise_negatives": 200},
    "false negatives left out": {"false_negative_weighting": 0.9},
    "noise, false negatives left out": {"noise_negatives": 200, "false_negative_weighting": 0.9},
    "hardness 9": {"hardness": 9.0},
    "batches of like length": {"batching": "length"},
    "matryoshka 64": {"matryoshka_dims": 64},
}
NOTE = (
    "Options have the values of their sources, with batches of 200; none was tuned. The published gains of these methods were "
    "measured on a million sentences, with the checkpoint that is best on STS-B dev; here are 10,000 texts and no selection. Names "
    "are linked by the encoder of words, since those of UMLS need a licence. A base that is an encoder already is trained on sentences "
    "with the settings for adapting (docs/adapt.md) in place of the paper's."
)


def _before() -> tuple[Cell, ...]:
    return tuple(Cell("before", tasks, (), level, part=part) for part, (level, _, tasks, _) in PARTS.items())


def _cells(row: str, options: dict) -> tuple[Cell, ...]:
    return tuple(
        Cell(row, tasks, (corpus,), level, short | options, part=part)
        for part, (level, corpus, tasks, short) in PARTS.items()
    )


COLUMNS = (
    *(Column(task, task, part=part) for part, (_, _, tasks, _) in PARTS.items() for task in tasks),
    # Measured by each run on the texts that it held out, with its base model and with what it trained.
    Column("own_text before", "own_text", "before", part="docs"),
    Column("own_text", "own_text", part="docs"),
)

BEYOND = Study(
    "Beyond Mirror-BERT: each later option alone",
    (*_before(), *(cell for row, options in OPTIONS.items() for cell in _cells(row, options))),
    COLUMNS,
    choose_on="stsb_dev",
    claims=tuple(
        Claim(row, "Mirror", dev) for dev in ("stsb_dev", "docs_search_dev") for row in OPTIONS if row != "Mirror"
    ),
    note=NOTE,
)
BEYOND_TOGETHER = Study(
    "Beyond Mirror-BERT: the options given after --, together",
    _cells("together", {}),
    COLUMNS,
    note=NOTE,
)

"""What a study is, as plain data: cells to run, columns to print, published numbers to set beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirror.evaluation.published import ROWS


# The paper's drophead rates; a mapping as a flag's value is by family of the model.
DROPHEAD = {"bert": 0.2, "roberta": 0.05, "mbert": 0.2, "pubmedbert": 0.2}
# A rate in a study is a multiple of the model's usual one, which is 2e-5 for a width of 768 and more for a narrow model.
RATE = "learning_rate_times"

WORDS, STS_SENTENCES = "{}_words_top_10k.txt", "stsbenchmark_train_10k_sents_random_sampled.txt"
UMLS_NAMES = "umls_names_10k.txt"

Published = Mapping[str, Mapping[str, Mapping[str, float]]]  # family -> row -> label of a column -> score


@dataclass(frozen=True)
class Cell:
    """One model to train and score, or to score as it is. Run once a seed, or once if nothing is trained."""

    row: str  # of the table; several cells may fill the columns of one row
    tasks: tuple[str, ...]  # names for run_eval.py
    corpora: tuple[str, ...] = ()  # files of --corpus_dir; none: the model as it is
    level: str = "sentence"
    flags: Mapping[str, object] = field(default_factory=dict)  # of run_mirror.py, beside the level's preset
    pooling: str | None = None  # None: the paper's choice for the level and the model
    part: str = ""  # tells the cells of one row apart: a language, a level
    isotropy_texts: str | None = None  # file of --corpus_dir whose lines the task `isotropy` measures


@dataclass(frozen=True)
class Column:
    """One number of a result: a field of a task, of the cells of one part or of any."""

    label: str
    task: str
    field: str = "main_score"
    part: str | None = None


@dataclass(frozen=True)
class Study:
    """A table or a figure of the paper as a grid of cells."""

    title: str
    cells: tuple[Cell, ...]
    columns: tuple[Column, ...]
    average: bool = False  # a last column, the mean of the others
    figure: str = "bars"  # bars, curve (rows are numbers), roc, histograms, agreement
    published: Published = field(default_factory=dict)
    choose_on: str = ""  # label of the dev column on which the best row is named
    note: str = ""  # what differs from the paper

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))


def main_scores(tasks: tuple[str, ...]) -> tuple[Column, ...]:
    """A column a task."""
    return tuple(Column(task, task) for task in tasks)


def scores_of(system: str) -> dict[str, float]:
    """The published row of `system` in `mirror.evaluation.published`."""
    (row,) = (row for row in ROWS if row.system == system)
    return row.scores


def numbers(labels: tuple[str, ...], text: str) -> dict[str, float]:
    """Published fractions, typed as the paper prints them, by label."""
    return {label: float(number) for label, number in zip(labels, text.split(), strict=True)}


def averages(text: str, *rows: str) -> dict[str, dict[str, float]]:
    """Published rows of which only the average is printed."""
    return {row: {"average": float(number)} for row, number in zip(rows, text.split(), strict=True)}


def before(tasks: tuple[str, ...], level: str = "sentence", **fields) -> tuple[Cell, ...]:
    """The base model as it is, by its first token and by the mean that counts padding ("mp"), as the paper's tables have it."""
    return tuple(
        Cell(f"before, {pooling}", tasks, (), level, {}, pooling, **fields) for pooling in ("cls", "mean_padded")
    )

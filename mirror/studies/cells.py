"""Definition of a study as plain data: cells to run, columns to report, published scores to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirror.evaluation.published import MIRROR_BERT


# Learning rates in a study are multiples of the model's default: 2e-5 at a width of 768, more for the embedded model.
RATE = "learning_rate_times"

WORDS, STS_SENTENCES = "{}_words_top_10k.txt", "stsbenchmark_train_10k_sents_random_sampled.txt"
UMLS_NAMES = "umls_names_10k.txt"

AVERAGE = "average"  # label of the column that `Study.average` adds

Published = Mapping[str, Mapping[str, Mapping[str, float]]]  # checkpoint -> row -> column label -> score


@dataclass(frozen=True)
class SecondEncoder:
    """The encoder of a cell's second language, for tasks that take an encoder for each language."""

    language: str  # key of --language_models
    corpora: tuple[str, ...] = ()  # as in `Cell`


@dataclass(frozen=True)
class Cell:
    """One model to train and score, run once per seed; or the base model, scored once."""

    row: str  # row of the table; several cells may fill the columns of one row
    tasks: tuple[str, ...]  # task names of run_eval.py
    corpora: tuple[str, ...] = ()  # files in --corpus_dir; empty: score the base model
    level: str = "sentence"
    flags: Mapping[str, object] = field(default_factory=dict)  # of run_mirror.py, on top of the recipe or the preset
    pooling: str | None = None  # None: that of the recipe, or this project's default for the level and the model
    part: str = ""  # distinguishes the cells of one row: a language or a level
    isotropy_texts: str | None = None  # file in --corpus_dir, measured by the task `isotropy`
    drophead: bool = False  # attention heads are dropped, at the published rate, instead of dropout
    language: str = ""  # key of --language_models; empty: `part`
    second: SecondEncoder | None = None


@dataclass(frozen=True)
class Column:
    """A column of the table: one field of a task's result.

    `part` restricts the column to the cells of one part; None: all cells.
    """

    label: str
    task: str
    field: str = "main_score"
    part: str | None = None


@dataclass(frozen=True)
class Claim:
    """A conclusion of the paper: in one column, one row has a higher score than another."""

    higher: str
    lower: str
    column: str = AVERAGE

    def __str__(self) -> str:
        return f"{self.higher} above {self.lower}: {self.column}"


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper as a grid of cells."""

    title: str
    cells: tuple[Cell, ...]
    columns: tuple[Column, ...]
    average: bool = False  # adds a last column with the mean of the others
    figure: str = "dots"  # dots, curve (rows are numbers), roc, histograms, agreement, own_text, languages, plane
    published: Published = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # published system -> label -> score
    paper_models: Mapping[str, str] = field(default_factory=dict)  # key of --language_models -> name of a recipe
    models: Mapping[str, str] = field(default_factory=dict)  # key of --language_models -> model that it has otherwise
    choose_on: str = ""  # label of the dev column that selects the best row
    also: Mapping[str, str] = field(
        default_factory=dict
    )  # suffix of further rows of the same cells -> field to report
    paper: str = ""  # what the paper concludes, in words
    claims: tuple[Claim, ...] = ()  # the same as differences between rows; `mirror.studies.claims` judges them
    note: str = ""  # differences from the paper
    name: str = ""  # in the catalogue

    @property
    def rows(self) -> list[str]:
        suffixes = ("", *(f", {suffix}" for suffix in self.also))
        return list(dict.fromkeys(f"{cell.row}{suffix}" for cell in self.cells for suffix in suffixes))


def main_scores(tasks: tuple[str, ...]) -> tuple[Column, ...]:
    """Return one column per task."""
    return tuple(Column(task, task) for task in tasks)


def printed(*tables: tuple[str, Mapping[str, str]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return what tables of Mirror-BERT print, by checkpoint and row of a study.

    Args:
        tables: a table, and its variants (see `mirror.evaluation.published`) by row of the study. Where two tables
            print a score of the same row, that of the first counts.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for table, rows in tables:
        for row, variant in rows.items():
            for number in MIRROR_BERT:
                if (number.table, number.variant) == (table, variant):
                    of_model = found.setdefault(number.model.lower(), {})
                    of_model.setdefault(row, {}).setdefault(number.score, number.value)
    return found


def baseline(table: str, model: str) -> dict[str, float]:
    """Return what a table of Mirror-BERT prints for a system that is not compared before and after training."""
    return {number.score: number.value for number in MIRROR_BERT if (number.table, number.model) == (table, model)}


def gains(*labels: str, row: str = "Mirror") -> tuple[Claim, ...]:
    """Return the claims that a row is above the untrained model (`baseline_cells`) in each column."""
    return tuple(Claim(row, f"before, {pooling}", label) for label in labels for pooling in ("cls", "mean_padded"))


def baseline_cells(tasks: tuple[str, ...], level: str = "sentence", **fields) -> tuple[Cell, ...]:
    """Return cells for the base model with CLS pooling and with the mean that counts padding ("mp" in the paper)."""
    return tuple(
        Cell(f"before, {pooling}", tasks, (), level, {}, pooling, **fields) for pooling in ("cls", "mean_padded")
    )

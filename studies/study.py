"""Definition of the studies: the tables in grids/*.yaml, read into cells, columns and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from operator import ne
from pathlib import Path

import yaml

from mirror.common.errors import InputError, did_you_mean
from mirror.evaluation.published import CMLM_AVERAGES, CMLM_TASKS, MIRROR_BERT, printed_table
from mirror.training.options import CLS_FAMILIES, OWN_TEXT


PACKAGE = Path(__file__).resolve().parents[1] / "mirror"
# Learning rates in a study are multiples of the model's default: 2e-5 at a width of 768, more for the embedded model.
RATE = "learning_rate_times"
AVERAGE = "average"  # label of the column that `Study.average` adds
SEEDS = tuple(range(33, 143, 11))  # a study has the first `Study.seeds` of them: 33, 44, 55, ...
CLOSE = 0.005  # "(close to) the best" (Table 21)


@dataclass(frozen=True)
class Stage:
    """One run of run_cmlm.py. Several cells can share it."""

    name: str  # of this recipe with these flags, in all studies; part of a folder's name
    recipe: str  # file in mirror/recipes/, without .yaml
    flags: Mapping[str, object] = field(default_factory=dict)  # on top of the recipe
    data: Mapping[str, str] = field(default_factory=dict)  # flag -> files in a folder of --corpus_dir


@dataclass(frozen=True)
class Cell:
    """One model to train and score, run once per seed, or a base model, scored once."""

    row: str  # row of the table; several cells may fill the columns of one row
    tasks: tuple[str, ...] = ()  # task names of run_eval.py
    corpora: tuple[str, ...] = ()  # files in --corpus_dir; empty: nothing is trained by run_mirror.py
    level: str = "sentence"
    # Of run_mirror.py, on top of the recipe or the preset; None takes a flag of the recipe out.
    flags: Mapping[str, object] = field(default_factory=dict)
    pooling: str | None = None  # None: that of the recipe, or this project's default for the level and the model
    part: str = ""  # tells apart the cells of one row: a language or a level
    isotropy_texts: str | None = None  # file in --corpus_dir, measured by the task `isotropy`
    drophead: bool = False  # attention heads are dropped, at the published rate, instead of dropout
    language: str = ""  # key of --language_models; empty: `part`
    second: tuple[str, ...] = ()  # language and corpora of a second encoder, for tasks that take one for each language
    chain: tuple[Stage, ...] = ()  # CMLM: the model is that of the last stage
    method: str = ""  # of `studies.rivals`, which trains instead of run_mirror.py
    scoring: Mapping[str, object] = field(default_factory=dict)  # flags of run_eval.py

    @property
    def texts(self) -> list[str]:  # files in --corpus_dir, but for those of the chain
        return list(dict.fromkeys(filter(None, (*self.corpora, *self.second[1:], self.isotropy_texts))))


@dataclass(frozen=True)
class Column:
    """A column of the table: one field of a task's result, of the cells of one part or of all (None)."""

    label: str
    task: str
    field: str = "main_score"
    part: str | None = None


@dataclass(frozen=True)
class Claim:
    """A conclusion of the paper: in one column, one row has a higher score than another, or than a published baseline.

    With `models`, what `higher` has more than `lower` (empty: than nothing) is more for the first checkpoint than for the second.
    """

    higher: str
    lower: str
    column: str = AVERAGE
    within: float = 0.0  # "close to": the higher row may be lower by this much
    either_way: bool = False  # "on a par": nor may it be higher by more
    of: tuple[str, ...] = ()  # checkpoints that it is about, or the families bert and roberta; empty: all
    models: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.models:
            gain = f"{self.higher} minus {self.lower}" if self.lower else self.higher
            return f"{self.models[0]} above {self.models[1]}: {gain}: {self.column}"
        comparison = f"at most {self.within:g} below" if self.within else "above"
        comparison = f"within {self.within:g} of" if self.either_way else comparison
        about = f" ({self.of[0]})" if len(self.of) == 1 else ""
        return f"{self.higher} {comparison} {self.lower}: {self.column}{about}"

    def is_about(self, checkpoint: str, family: str) -> bool:
        """Return whether it is about one checkpoint, of which this is the name in lower case, or its family."""
        return not self.models and (not self.of or family in self.of or checkpoint in self.of)


def family_of(name: str) -> str:
    """Return whose claims judge a checkpoint, `bert` or `roberta`, by its model type, or by its name if that says it."""
    return "roberta" if any(family in name for family in CLS_FAMILIES) else "bert"


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper as a grid of cells."""

    title: str
    cells: tuple[Cell, ...]
    columns: tuple[Column, ...]
    average: bool = False  # adds a last column with the mean of the others
    # dots, curve (rows are numbers), roc, histograms, agreement, own_text, trade, languages, plane
    figure: str = "dots"
    published: Mapping[str, dict] = field(default_factory=dict)  # model -> row -> label -> score
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # published system -> label -> score
    paper_models: Mapping[str, str] = field(default_factory=dict)  # key of --language_models -> name of a recipe
    models: Mapping[str, str] = field(default_factory=dict)  # key of --language_models -> model that it has otherwise
    choose_on: str = ""  # label of the dev column that selects the best row
    also: Mapping[str, str] = field(default_factory=dict)  # suffix of further rows of the same cells -> their field
    seeds: int = 3  # ten where a cell of the embedded model takes less than a minute
    ranks: str = ""  # file of words in the data folder, which are counted in the corpus of each row
    untested: str = ""  # why no results of it are kept
    paper: str = ""  # what the paper concludes, in words
    claims: tuple[Claim, ...] = ()  # the same as differences between rows; `studies.scores` judges them
    note: str = ""  # differences from the paper
    name: str = ""
    is_cmlm: bool = False

    @property
    def rows(self) -> list[str]:
        suffixes = ("", *(f", {suffix}" for suffix in self.also))
        return list(dict.fromkeys(f"{cell.row}{suffix}" for cell in self.cells for suffix in suffixes))

    @property
    def scored(self) -> list[str]:
        """Return the tasks whose scores label-free criteria are compared with."""
        return [column.task for column in self.columns if column.task != OWN_TEXT]

    @property
    def languages(self) -> list[str]:
        """Return the parts and languages that can have a model of their own."""
        keys = (key for cell in self.cells for key in (cell.language or cell.part, *cell.second[:1]))
        return list(dict.fromkeys(filter(None, keys)))


CELL_FIELDS = {item.name for item in fields(Cell)} - {"row"}


def read_studies(path: Path) -> dict[str, Study]:
    """Return the studies of a file of grids by name. The comments of mirror_bert.yaml explain the keys."""
    # libyaml's loader is ten times as fast; some builds of PyYAML lack it.
    tables = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    stages = {name: Stage(name, **entry) for name, entry in tables.pop("_stages", {}).items()}
    studies = {name: _study(table, stages) for name, table in tables.items() if not name.startswith("_")}
    return {name: replace(study, name=name, is_cmlm=bool(stages)) for name, study in studies.items()}


def _study(table: dict, stages: Mapping[str, Stage]) -> Study:
    """Build a study of its entry in a file of grids."""
    table = dict(table)  # entries share parts of others
    rows, claims = table.pop("rows", {}), table.pop("claims", [])
    if "grid" in table:
        grid, row_name, chosen = (table.pop(key) for key in ("grid", "row_name", "chosen"))
        names = {setting: row_name.format(*setting) for setting in product(*grid.values())}
        rows = {name: {"flags": dict(zip(grid, setting, strict=True))} for setting, name in names.items()}
        changed_once = [name for setting, name in names.items() if sum(map(ne, setting, chosen)) == 1]
        claims = [[row_name.format(*chosen), changed_once, table["choose_on"], CLOSE]]
    printed = table.pop("printed", None)
    labels = CMLM_TASKS.get(printed, {})  # column of the paper -> task
    defaults = {"tasks": list(labels.values())} | {key: table.pop(key) for key in CELL_FIELDS & table.keys()}
    cells = tuple(_cells(rows, table.pop("parts", {"": {}}), defaults, stages))
    columns = table.pop("columns", None) or {task: {"task": task} for cell in cells for task in cell.tasks}
    if printed:  # a table of CMLM: rows of the checkpoints, and baselines
        labels = (labels or {label: label for label in columns}) | dict.fromkeys(CMLM_AVERAGES, AVERAGE)
        rows = printed_table(printed).items()
        scores = {row: {labels[column]: value for column, value in values.items()} for row, values in rows}
        ours = table.pop("checkpoints")
        table["published"] = {checkpoint: {row: scores.pop(row) for row in own} for checkpoint, own in ours.items()}
        table["baselines"] = scores
    else:
        table["published"] = _printed_by_mirror_bert(table.get("published", {}))
        for name, place in table.get("baselines", {}).items():
            printed_as = (place, name) if isinstance(place, str) else tuple(place)
            scores = {n.score: n.value for n in MIRROR_BERT if (n.table, n.model) == printed_as}
            table["baselines"] = table["baselines"] | {name: scores}
    if "models" in table:
        table["models"] = {key: str(PACKAGE / model) for key, model in table["models"].items()}
    groups = {"": claims} | table.pop("claims_of", {})
    table["claims"] = []
    for about, found in groups.items():
        for higher, lower, labels, *within in ([*claim, AVERAGE] if len(claim) == 2 else claim for claim in found):
            lower, labels = ([each] if isinstance(each, str) else each for each in (lower, labels))
            of = {"of": tuple(about.lower().split())} | dict(zip(("within", "either_way"), within, strict=False))
            table["claims"] += [Claim(higher, row, label, **of) for label in labels for row in lower]
    for models, higher, lower, labels in table.pop("claims_between", []):
        table["claims"] += [Claim(higher, lower, label, models=tuple(models)) for label in labels]
    table["claims"] = tuple(table["claims"])
    return Study(cells=cells, columns=tuple(Column(label, **entry) for label, entry in columns.items()), **table)


def _cells(rows: Mapping[str, dict], parts: Mapping[str, dict], defaults: dict, stages: Mapping[str, Stage]):
    for row, of_row in rows.items():
        for part in of_row.get("parts", parts):
            layers = (defaults, parts[part], of_row)
            flags = {key: value for layer in layers for key, value in layer.get("flags", {}).items()}
            entry = {"part": part} | layers[0] | layers[1] | layers[2] | {"flags": flags}
            entry.pop("parts", None)
            if entry.pop("untrained", False):
                entry |= {"corpora": (), "flags": {}, "second": entry.get("second", ())[:1]}
            entry["chain"] = [stages[name] for name in entry.get("chain", ())]
            lists_as_tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
            yield Cell(row, **lists_as_tuples)


def _printed_by_mirror_bert(tables: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return what tables print of variants by row. Where two print a score of the same row, the first counts."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for table, rows in tables.items():
        for row, variant in rows.items():
            for number in MIRROR_BERT:
                if (number.table, number.variant) == (table, variant):
                    of_model = found.setdefault(number.model.lower(), {})
                    of_model.setdefault(row, {}).setdefault(number.score, number.value)
    return found


# In the order of --list.
PATHS = [Path(__file__).with_name("grids") / f"{name}.yaml" for name in ("mirror_bert", "later", "cmlm")]
STUDIES = {name: study for path in PATHS for name, study in read_studies(path).items()}


def find_study(name: str, rows: Sequence[str] = (), parts: Sequence[str] = ()) -> Study:
    """Return the study of that name, restricted to `rows` and `parts` if there are any. An unknown name is an `InputError`."""
    if name not in STUDIES:
        raise InputError(f"unknown study '{name}'{did_you_mean(name, STUDIES)}; --list prints all names")
    study = STUDIES[name]
    for kind, asked in (("row", rows), ("part", parts)):
        known = list(dict.fromkeys(getattr(cell, kind) for cell in study.cells))
        for value in asked:
            if value not in known:
                its = f"{kind}s: {', '.join(map(repr, known))}" if any(known) else f"it has no {kind}s"
                raise InputError(f"{name} has no {kind} '{value}'{did_you_mean(value, known)} ({its})")
    cells = [cell for cell in study.cells if (not rows or cell.row in rows) and (not parts or cell.part in parts)]
    if not cells:
        raise InputError(f"{name}: no row of --rows has a part of --parts; --dry_run without them lists the cells")
    return replace(study, name=name, cells=tuple(cells))

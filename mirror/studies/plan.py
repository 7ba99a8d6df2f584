"""Jobs of a study: the commands to run for each cell and seed, and the settings that identify each job.

Knows flags and files; does not run anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from mirror.common.errors import InputError
from mirror.evaluation.catalogue import Options
from mirror.evaluation.results import file_name
from mirror.evaluation.run import make_plan
from mirror.modeling.checkpoint_settings import checkpoint_settings
from mirror.studies.cells import RATE, Cell, Study
from mirror.studies.recipes import recipe_named
from mirror.studies.setup import Flags, Setup, check_models, corpus_facts, folder_content, how_to_make, model_type
from mirror.training.config import MirrorConfig
from mirror.training.levels import CLS_FAMILIES, LEVELS, default_learning_rate, default_pooling


OWN_FLAGS = {"model_name_or_path", "train_file", "dataset_name", "output_dir", "seed", "level", "data_dir", "force",
             "config"}  # fmt: skip
# Differ between computers, or are represented by a hash.
PATHS = {"output_dir", "data_dir", "train_file", "isotropy_texts", "bli_vocabulary"}
MODELS = ("model_name_or_path", "second_model_name_or_path")  # of run_eval.py


@dataclass(frozen=True)
class Job:
    """A cell with one seed: its folder and the flags of its two commands."""

    cell: Cell
    seed: int | None  # None: nothing is trained
    folder: Path
    train: Flags  # of run_mirror.py; empty: nothing is trained
    evaluate: Flags  # of run_eval.py
    corpora: dict[str, str]  # file name -> SHA-256
    texts: int  # number of training texts, summed over epochs and encoders
    steps: int = 0  # of training, summed over encoders
    train_second: Flags = field(default_factory=dict)  # of run_mirror.py for the second language, if there is one

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def identity(self) -> dict:
        """All settings that a finished cell must share with this job to be reused: everything except paths."""
        return {script: identity_of(flags, PATHS) for script, flags in self.commands.items()} | {
            "corpora": self.corpora
        }

    @property
    def commands(self) -> dict[str, Flags]:
        """The flags of each script that belong to the identity."""
        commands = {"run_mirror.py": self.train, "run_eval.py": self.evaluate}
        if self.train_second:
            commands["second run_mirror.py"] = self.train_second
        if self.train:  # what is scored is what the cell trains, in its own folder
            commands["run_eval.py"] = {key: values for key, values in self.evaluate.items() if key not in MODELS}
        return commands


def identity_of(flags: Flags, without: set[str]) -> Flags:
    """Return flags without some of them, in order; a model that is a folder is named by its content."""
    kept = {key: values for key, values in sorted(flags.items()) if key not in without}
    return {key: list(map(folder_content, values)) if key in MODELS else values for key, values in kept.items()}


def make_jobs(study: Study, setup: Setup) -> tuple[list[Job], list[str]]:
    """Build the jobs of a study.

    Returns:
        The jobs, with the seeds of a cell one after the other, and one line per reason why cells or tasks are left
        out.

    Raises:
        InputError: data or a corpus is missing and `skip_missing` is not set, a model cannot be read, or a flag after
            `--` is varied by the study or set by run_study.py.
    """
    check_extra(study, setup.extra)
    check_models(study, setup)
    jobs: list[Job] = []
    left_out: dict[str, list[str]] = {}  # reason -> cells
    for cell in study.cells:
        ready, reason = _available(cell, setup)
        if lacking := [task for task in cell.tasks if task not in ready.tasks]:
            reason = reason or f"no data for {' '.join(lacking)}"
        if reason:
            left_out.setdefault(reason, []).append(cell_name(cell))
        if ready.tasks:
            seeds = setup.seeds if ready.corpora else (None,)
            jobs += [_job(ready, seed, setup) for seed in seeds]
    return jobs, [f"left out of {', '.join(names)}: {reason}" for reason, names in left_out.items()]


def check_extra(study: Study, extra: Flags) -> None:
    """Check the flags given after `--`.

    Raises:
        InputError: a flag is varied by the study or set by run_study.py.
    """
    cells = [cell for cell in study.cells if cell.corpora]
    for key in extra:
        if key in OWN_FLAGS:
            raise InputError(f"--{key} after -- is set by run_study.py itself; leave it out")
        if key == "max_train_samples":
            raise InputError("--max_train_samples must be given before the --")
        seen = {str(_flag_of(cell, key)) for cell in cells}
        if len(seen) > 1:
            raise InputError(f"--{key} after -- is varied by this study; leave it out")


def cell_name(cell: Cell, seed: int | None = None) -> str:
    """Return the name of a cell's folder."""
    parts = [file_name(cell.row.replace("- ", "minus "))]
    parts += [file_name(cell.part)] if cell.part else []
    return "-".join(parts + ([f"seed{seed}"] if seed is not None else []))


def as_arguments(flags: Flags) -> list[str]:
    """Convert flags to a command line."""
    return [item for key, values in flags.items() for item in (f"--{key}", *values)]


def _flag_of(cell: Cell, key: str) -> object:
    if key == "pooling":
        return cell.pooling
    if key in ("dropout_rate", "drophead_rate"):
        return cell.flags.get(key), cell.drophead
    return cell.flags.get(RATE if key == "learning_rate" else key)


def _available(cell: Cell, setup: Setup) -> tuple[Cell, str]:
    """Restrict a cell to the tasks that can be run.

    Returns:
        The cell, with no tasks if its corpora cannot be used, and the reason in that case.

    Raises:
        InputError: a corpus or data is missing and `skip_missing` is not set.
    """
    limit, asked = setup.max_train_samples, cell.flags.get("max_train_samples")
    if limit and asked and asked > limit:
        return replace(cell, tasks=()), f"{asked:,} texts are more than --max_train_samples {limit}"
    if reason := _missing_corpus(cell, setup):
        if not setup.skip_missing:
            raise InputError(f"{reason}; --skip_missing leaves out such cells")
        return replace(cell, tasks=()), reason
    texts = str(setup.corpus(cell.isotropy_texts)) if cell.isotropy_texts else None
    options = Options(isotropy_texts=texts, bli_vocabulary=setup.bli_vocabulary)
    return replace(cell, tasks=_tasks_with_data(cell.tasks, setup.data_dir, setup.skip_missing, options)), ""


@cache
def _tasks_with_data(tasks: tuple[str, ...], data_dir: Path, skip_missing: bool, options: Options) -> tuple[str, ...]:
    return tuple(task.name for task in make_plan(tasks, data_dir, skip_missing, options).tasks)


def _missing_corpus(cell: Cell, setup: Setup) -> str:
    for name in _text_files(cell):
        path = setup.corpus(name)
        if not path.is_file():
            return f"no corpus {path} ({how_to_make(name)})"
    asked = cell.flags.get("max_train_samples", 0)
    available = sum(corpus_facts(setup.corpus(name)).distinct for name in cell.corpora)
    if available >= asked:
        return ""
    return f"{' '.join(cell.corpora)}: {available:,} distinct texts, {asked:,} are needed"


def _text_files(cell: Cell) -> list[str]:
    """Return the files in `--corpus_dir` that a cell needs."""
    measured = [cell.isotropy_texts] if cell.isotropy_texts else []
    return list(dict.fromkeys([*cell.corpora, *(cell.second.corpora if cell.second else ()), *measured]))


def _job(cell: Cell, seed: int | None, setup: Setup) -> Job:
    folder = setup.output_dir / cell_name(cell, seed)
    encoders = {"model": cell.corpora} | ({"second_model": cell.second.corpora} if cell.second else {})
    train, *second = (
        _training_flags(cell, model, corpora, seed, folder / name, setup) if corpora else {}
        for model, (name, corpora) in zip(setup.models_of(cell), encoders.items(), strict=True)
    )
    amounts = [_texts_and_steps(cell, flags, setup) for flags in (train, *second)]
    texts, steps = map(sum, zip(*amounts, strict=True))
    hashes = {name: corpus_facts(setup.corpus(name)).sha256 for name in _text_files(cell)}
    hashes |= {path.name: corpus_facts(path).sha256 for path in _bli_vocabularies(cell, setup)}
    return Job(cell, seed, folder, train, _evaluation_flags(cell, folder, setup), hashes, texts, steps, *second)


def _training_flags(
    cell: Cell, model: str, corpora: tuple[str, ...], seed: int, output_dir: Path, setup: Setup
) -> Flags:
    recipe = setup.recipe_of(cell, model)
    flags = dict(recipe.flags) if recipe else {}
    flags |= {
        "validation_samples": ["0"],  # the papers train on every text
        "model_name_or_path": [model],
        "train_file": [str(setup.corpus(name)) for name in corpora],
        "output_dir": [str(output_dir)],
        "seed": [str(seed)],
        "level": [cell.level],
    }
    if cell.drophead and not recipe:
        family = "roberta" if model_type(model) in CLS_FAMILIES else "bert"
        flags["drophead_rate"] = [str(recipe_named(f"sentence-{family}-drophead").drophead_rate)]
    if cell.pooling:
        flags["pooling"] = [cell.pooling]
    if "eval_tasks" in cell.flags:
        flags["data_dir"] = [str(setup.data_dir)]
    for key, value in cell.flags.items():
        key, value = _rate(key, value, model)
        flags[key] = [str(value)]
    if limit := _limit(cell, setup):
        flags["max_train_samples"] = [str(limit)]
    return flags | setup.extra


def _rate(key: str, value, model: str) -> tuple[str, object]:
    """Convert a multiple of the default learning rate to the rate itself; other flags are returned unchanged."""
    if key != RATE:
        return key, value
    return "learning_rate", value * default_learning_rate(model)


def _evaluation_flags(cell: Cell, folder: Path, setup: Setup) -> Flags:
    models = [str(folder / "model"), str(folder / "second_model")] if cell.corpora else setup.models_of(cell)
    flags: Flags = {
        "model_name_or_path": models[:1],
        "tasks": list(cell.tasks),
        "data_dir": [str(setup.data_dir)],
        "output_dir": [str(folder / "scores")],
        "published": ["none"],
        "no_cache": [],
    }
    if cell.second:
        flags["second_model_name_or_path"] = models[1:]
    if not cell.corpora:  # checkpoints of run_mirror.py store these settings
        flags["pooling"] = [cell.pooling] if cell.pooling else setup.extra.get("pooling", [_pooling(cell, setup)])
        length = LEVELS[cell.level]["max_seq_length"]
        flags["max_seq_length"] = setup.extra.get("max_seq_length", [str(length)])
    if cell.isotropy_texts:
        flags["isotropy_texts"] = [str(setup.corpus(cell.isotropy_texts))]
    if _bli_vocabularies(cell, setup):
        flags["bli_vocabulary"] = [setup.bli_vocabulary]
    return flags


def _pooling(cell: Cell, setup: Setup) -> str:
    """Return the pooling of a cell that is not trained and does not name one."""
    model = setup.model_of(cell)
    recipe = setup.recipe_of(cell, model)
    if recipe:
        return recipe.settings["pooling"]
    own = checkpoint_settings(model).get("pooling")
    return own or LEVELS[cell.level].get("pooling") or default_pooling(model_type(model))


def _bli_vocabularies(cell: Cell, setup: Setup) -> list[Path]:
    """Return the word lists that `--bli_vocabulary` adds to the candidates of a cell."""
    languages = [task.rpartition("_")[2] for task in cell.tasks if task.startswith("bli_")]
    pattern = setup.bli_vocabulary
    return [Path(pattern.replace("{language}", language)) for language in languages] if pattern else []


def _limit(cell: Cell, setup: Setup) -> int | None:
    return cell.flags.get("max_train_samples") or setup.max_train_samples


def _texts_and_steps(cell: Cell, train: Flags, setup: Setup) -> tuple[int, int]:
    """Compute from the flags of a training run how many texts it sees and how many steps it takes."""
    if not train:
        return 0, 0
    batch = number(train, "per_device_train_batch_size", MirrorConfig.per_device_train_batch_size, least=1)
    if steps := max(0, number(train, "max_steps", 0)):
        return steps * batch, steps
    facts = [corpus_facts(Path(path)) for path in train["train_file"]]
    keeps = train.get("keep_duplicates", ["False"]) not in (["False"], ["false"])
    texts = min(sum(one.rows if keeps else one.distinct for one in facts), _limit(cell, setup) or 1 << 60)
    epochs = number(train, "num_train_epochs", LEVELS[cell.level]["num_train_epochs"], float)
    return int(texts * epochs), int(max(1, texts // batch) * epochs)  # the last batch is dropped if it is smaller


def number(flags: Flags, key: str, default: float, kind: type = int, least: float | None = None) -> float:
    """Return the value of a flag of one number, or its default.

    Args:
        kind: int or float.

    Raises:
        InputError: no number, or one below `least`.
    """
    given = flags.get(key, [str(default)])
    try:
        value = kind(given[0])
        if least is not None and value < least:
            raise ValueError
    except (IndexError, ValueError):
        at_least = "" if least is None else f" of at least {least}"
        raise InputError(f"--{key} after --: expected a number{at_least}, got '{' '.join(given)}'") from None
    return value

"""Jobs of a study: the commands to run for each cell and seed, and the settings that identify each job.

Knows flags and files; does not run anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from transformers import AutoConfig

from mirror.common.errors import InputError, one_line
from mirror.evaluation.catalogue import Options
from mirror.evaluation.results import file_name
from mirror.evaluation.run import make_plan
from mirror.studies.cells import RATE, Cell, Study
from mirror.training.config import MirrorConfig
from mirror.training.levels import CLS_FAMILIES, LEVELS, default_learning_rate, default_pooling


Flags = dict[str, list[str]]

# part of a corpus file name -> the script that creates the corpus
CORPUS_SCRIPTS = (("random_strings", "random_strings.py"), ("_words_", "frequent_words.py"), ("umls", "umls_names.py"))
OWN_FLAGS = {"model_name_or_path", "train_file", "dataset_name", "output_dir", "seed", "level", "data_dir", "force"}


@dataclass(frozen=True)
class Setup:
    """Settings of a study run."""

    model: str
    data_dir: Path
    corpus_dirs: tuple[Path, ...]
    output_dir: Path
    seeds: tuple[int, ...]
    max_train_samples: int | None = None
    extra: Flags = field(default_factory=dict)  # for run_mirror.py
    language_models: Mapping[str, str] = field(default_factory=dict)  # part of a cell -> model
    skip_missing: bool = False

    def corpus(self, name: str) -> Path:
        """Return the path in the first folder that contains the file, or in the first folder if none does."""
        paths = [folder / name for folder in self.corpus_dirs]
        return next((path for path in paths if path.is_file()), paths[0])

    def model_of(self, cell: Cell) -> str:
        return self.language_models.get(cell.part, self.model)


@dataclass(frozen=True)
class Job:
    """A cell with one seed: its folder and the flags of its two commands."""

    cell: Cell
    seed: int | None  # None: nothing is trained
    folder: Path
    train: Flags  # of run_mirror.py; empty: nothing is trained
    evaluate: Flags  # of run_eval.py
    corpora: dict[str, str]  # file name -> SHA-256
    texts: int  # number of training texts, summed over epochs

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def identity(self) -> dict:
        """All settings that a finished cell must share with this job to be reused: everything except paths."""
        paths = ("output_dir", "data_dir", "train_file", "isotropy_texts")
        flags = {
            script: {key: values for key, values in sorted(given.items()) if key not in paths}
            for script, given in (("run_mirror.py", self.train), ("run_eval.py", self.evaluate))
        }
        return flags | {"corpora": self.corpora}


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
        seen = {str(cell.pooling if key == "pooling" else _flag_of(cell, key)) for cell in cells}
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


@cache
def model_type(model: str) -> str:
    """Return the model type (`bert`, `roberta`, ...) of a Hub id or folder.

    Raises:
        InputError: the configuration cannot be read.
    """
    try:
        return AutoConfig.from_pretrained(model).model_type
    except (OSError, ValueError) as error:
        raise InputError(f"--model_name_or_path {model}: {one_line(error, 200)}") from error


def family(model: str) -> str:
    """Return the paper's system to compare a model with: roberta, mbert, pubmedbert or, for any other model, bert."""
    if model_type(model) in CLS_FAMILIES:
        return "roberta"
    name = Path(model).name.lower()
    return "mbert" if "multilingual" in name else "pubmedbert" if "pubmed" in name else "bert"


def _flag_of(cell: Cell, key: str) -> object:
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
    return replace(cell, tasks=_tasks_with_data(cell.tasks, setup.data_dir, setup.skip_missing, texts)), ""


@cache
def _tasks_with_data(tasks: tuple[str, ...], data_dir: Path, skip_missing: bool, texts: str | None) -> tuple[str, ...]:
    plan = make_plan(tasks, data_dir, skip_missing, Options(isotropy_texts=texts))
    return tuple(task.name for task in plan.tasks)


def _missing_corpus(cell: Cell, setup: Setup) -> str:
    for name in dict.fromkeys((*cell.corpora, *([cell.isotropy_texts] if cell.isotropy_texts else []))):
        path = setup.corpus(name)
        if not path.is_file():
            return f"no corpus {path} ({how_to_make(name)})"
    asked = cell.flags.get("max_train_samples", 0)
    available = sum(corpus_facts(setup.corpus(name))[0] for name in cell.corpora)
    if available >= asked:
        return ""
    return f"{' '.join(cell.corpora)}: {available:,} distinct texts, {asked:,} are needed"


def how_to_make(corpus: str) -> str:
    """Return which script creates a missing corpus."""
    script = next((script for part, script in CORPUS_SCRIPTS if part in corpus), "sample_sentences.py")
    return f"in a checkout, python data_scripts/{script} creates it"


@cache
def corpus_facts(path: Path) -> tuple[int, str]:
    """Return the number of distinct texts and the SHA-256 of a text file."""
    content = path.read_bytes()
    return len({line.strip() for line in content.split(b"\n")} - {b""}), hashlib.sha256(content).hexdigest()


def _job(cell: Cell, seed: int | None, setup: Setup) -> Job:
    folder = setup.output_dir / cell_name(cell, seed)
    train = _training_flags(cell, seed, folder, setup) if cell.corpora else {}
    facts = {name: corpus_facts(setup.corpus(name)) for name in cell.corpora}
    measured = (cell.isotropy_texts,) if cell.isotropy_texts else ()
    hashes = {name: corpus_facts(setup.corpus(name))[1] for name in (*cell.corpora, *measured)}
    texts = min(sum(count for count, _ in facts.values()), _limit(cell, setup) or 1 << 60)
    return Job(
        cell, seed, folder, train, _evaluation_flags(cell, folder, setup), hashes, _texts_seen(texts, cell, train)
    )


def _training_flags(cell: Cell, seed: int, folder: Path, setup: Setup) -> Flags:
    model = setup.model_of(cell)
    flags: Flags = {
        "model_name_or_path": [model],
        "train_file": [str(setup.corpus(name)) for name in cell.corpora],
        "output_dir": [str(folder / "model")],
        "seed": [str(seed)],
        "level": [cell.level],
    }
    if cell.pooling:
        flags["pooling"] = [cell.pooling]
    if "eval_tasks" in cell.flags:
        flags["data_dir"] = [str(setup.data_dir)]
    for key, value in cell.flags.items():
        key, value = (key, value[family(model)]) if isinstance(value, Mapping) else _rate(key, value, model)
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
    model = setup.model_of(cell)
    flags: Flags = {
        "model_name_or_path": [str(folder / "model") if cell.corpora else model],
        "tasks": list(cell.tasks),
        "data_dir": [str(setup.data_dir)],
        "output_dir": [str(folder / "scores")],
        "published": ["none"],
        "no_cache": [],
    }
    if not cell.corpora:  # checkpoints of run_mirror.py store these settings
        preset = LEVELS[cell.level]
        pooling = preset.get("pooling") or default_pooling(model_type(model))
        flags["pooling"] = [cell.pooling] if cell.pooling else setup.extra.get("pooling", [pooling])
        flags["max_seq_length"] = setup.extra.get("max_seq_length", [str(preset["max_seq_length"])])
    if cell.isotropy_texts:
        flags["isotropy_texts"] = [str(setup.corpus(cell.isotropy_texts))]
    return flags


def _limit(cell: Cell, setup: Setup) -> int | None:
    return cell.flags.get("max_train_samples") or setup.max_train_samples


def _texts_seen(texts: int, cell: Cell, train: Flags) -> int:
    """Compute the number of texts seen in training from its flags; 0 if nothing is trained."""
    if not train:
        return 0
    if steps := int(train.get("max_steps", ["0"])[0]):
        batch = train.get("per_device_train_batch_size", [MirrorConfig.per_device_train_batch_size])
        return max(0, steps) * int(batch[0])
    epochs = train.get("num_train_epochs", [LEVELS[cell.level]["num_train_epochs"]])
    return int(texts * float(epochs[0]))

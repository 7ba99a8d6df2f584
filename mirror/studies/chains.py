"""CMLM's studies: cells that are chains of runs of run_cmlm.py, and the jobs made of them.

A stage starts from the folder of the stage before it. Cells that begin with the same stages share them. Knows flags and
files; runs nothing (`stage_runs.py` does).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mirror.cmlm.config import CMLMConfig
from mirror.cmlm.options import PAPER_LENGTH
from mirror.common.errors import InputError
from mirror.evaluation.run import make_plan
from mirror.studies.cells import Cell, Study
from mirror.studies.plan import OWN_FLAGS, Job, cell_name, identity_of, number
from mirror.studies.recipes import recipe_named
from mirror.studies.setup import Flags, Setup, check_models
from mirror.training.manifest import checksum, is_complete


# In a folder of --corpus_dir; a file's name up to the first dot is its language.
DOCUMENTS, ENGLISH, BITEXT, NLI = "documents/*", "documents/en.*", "bitext/*", "nli/*"
DATA_FLAGS = {
    "cmlm": ("train_file",),
    "quickthought": ("train_file",),
    "cmlm_bitext": ("train_file", "bitext_file"),
    "bitext": ("bitext_file",),
    "nli": ("nli_file",),
}
SET_BY_CHAINS = OWN_FLAGS | {"stage", "bitext_file", "nli_file", "language", "resume_from_checkpoint"}
SHAPE = ("num_projections", "skip_connection", "pooling")  # of the model: equal in all stages of a chain
PATHS = {"output_dir", "train_file", "bitext_file", "nli_file"}


@dataclass(frozen=True)
class Stage:
    """One run of run_cmlm.py."""

    name: str  # of this recipe with these flags, in all studies; part of a folder's name
    recipe: str  # file in recipes/, without .yaml
    flags: Mapping[str, object] = field(default_factory=dict)  # on top of the recipe
    documents: str = DOCUMENTS


@dataclass(frozen=True)
class ChainCell(Cell):
    """A cell whose model comes out of a chain of stages, or the base model if there are none."""

    chain: tuple[Stage, ...] = ()
    scoring: Mapping[str, object] = field(default_factory=dict)  # flags of run_eval.py
    own_model: bool = False  # of another model than the study's: left out unless --language_models names its part


@dataclass(frozen=True)
class StageRun:
    """A stage with one seed: its folder and its command."""

    stage: Stage
    folder: Path
    flags: Flags
    data: dict[str, str]  # data file -> SHA-256
    is_first: bool

    @property
    def record(self) -> Path:
        """The file beside the folder that holds `identity`."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def identity(self) -> dict:
        """All settings that a finished stage must share with this one to be reused: everything except paths."""
        paths = PATHS if self.is_first else PATHS | {"model_name_or_path"}
        flags = identity_of(self.flags, paths)
        return {f"{self.stage.name}: run_cmlm.py": flags, f"{self.stage.name}: data": self.data}

    @property
    def steps(self) -> int:
        """Number of training steps; 0 if the flags tell only epochs."""
        return max(0, number(self.flags, "max_steps", 0))

    @property
    def texts(self) -> int:
        """Number of training pairs, as far as the flags tell it."""
        batch = number(self.flags, "per_device_train_batch_size", CMLMConfig.per_device_train_batch_size, least=1)
        return self.steps * batch * number(self.flags, "gradient_accumulation_steps", 1, least=1)


@dataclass(frozen=True)
class ChainJob(Job):
    """A `ChainCell` with one seed: the stages, and the flags of run_eval.py."""

    stages: tuple[StageRun, ...] = ()

    @property
    def identity(self) -> dict:
        return super().identity | {key: part for run in self.stages for key, part in run.identity.items()}

    @property
    def commands(self) -> dict[str, Flags]:
        commands = super().commands
        if self.stages:  # the model is named by the stages
            flags = {key: values for key, values in commands["run_eval.py"].items() if key != "model_name_or_path"}
            commands["run_eval.py"] = flags
        return commands


def is_chain_study(study: Study) -> bool:
    return isinstance(study.cells[0], ChainCell)


def recipes_of(study: Study) -> list[str]:
    """Return the recipes of a study's stages, each once."""
    return list(dict.fromkeys(f"recipes/{stage.recipe}.yaml" for cell in study.cells for stage in cell.chain))


def make_chain_jobs(study: Study, setup: Setup, stages_dir: Path) -> tuple[list[ChainJob], list[str]]:
    """Build the jobs of a study of CMLM, as `mirror.studies.plan.make_jobs` does for Mirror-BERT's.

    Args:
        stages_dir: folder of the stages' models.

    Raises:
        InputError: data is missing and `skip_missing` is not set, a model cannot be read, a flag after `--` that the study
            sets or varies, a recipe that cannot be read, or a chain whose stages do not fit.
    """
    check_extra(study, setup.extra)
    check_models(study, setup)
    jobs: list[ChainJob] = []
    planned: set[Path] = set()  # folders of the stages that an earlier job runs
    left_out: dict[str, list[str]] = {}  # reason -> cells
    for cell in study.cells:
        reason = _reason_to_leave_out(cell, setup)
        tasks = () if reason else _tasks_with_data(cell.tasks, setup.data_dir, setup.skip_missing)
        if lacking := [task for task in cell.tasks if task not in tasks]:
            left_out.setdefault(reason or f"no data for {' '.join(lacking)}", []).append(cell_name(cell))
        if tasks:
            seeds = setup.seeds if cell.chain else (None,)
            jobs += [_job(cell, tasks, seed, setup, stages_dir, planned) for seed in seeds]
    return jobs, [f"left out of {', '.join(names)}: {reason}" for reason, names in left_out.items()]


def check_extra(study: Study, extra: Flags) -> None:
    """Check the flags given after `--`.

    Raises:
        InputError: a flag is varied by the study or set by run_study.py.
    """
    varied = {key for cell in study.cells for stage in cell.chain for key in stage.flags}
    for key in extra:
        if key in SET_BY_CHAINS:
            raise InputError(f"--{key} after -- is set by run_study.py itself; leave it out")
        if key == "max_train_samples":
            raise InputError("--max_train_samples must be given before the --")
        if key in varied:
            raise InputError(f"--{key} after -- is varied by this study; leave it out")


@cache
def read_recipe(name: str) -> dict:
    """Return the settings of `recipes/<name>.yaml`.

    Raises:
        InputError: it cannot be read, or names no stage.
    """
    recipe = recipe_named(name)
    if recipe.settings.get("stage") not in DATA_FLAGS:
        raise InputError(f"{recipe.path}: no stage of run_cmlm.py; one of {', '.join(DATA_FLAGS)}")
    return recipe.settings


@cache
def _tasks_with_data(tasks: tuple[str, ...], data_dir: Path, skip_missing: bool) -> tuple[str, ...]:
    return tuple(task.name for task in make_plan(tasks, data_dir, skip_missing).tasks)


def _reason_to_leave_out(cell: ChainCell, setup: Setup) -> str:
    """Return why a cell cannot be run, or an empty string.

    Raises:
        InputError: its training data is missing and `skip_missing` is not set.
    """
    if cell.own_model and cell.part not in setup.language_models:
        return f"another model than the study's; name it with --language_models {cell.part}=MODEL"
    for stage in cell.chain:
        for flag in DATA_FLAGS[_settings(stage, setup)["stage"]]:
            pattern = _pattern(stage, flag)
            if not _files(pattern, setup):
                reason = f"no {pattern} in {', '.join(map(str, setup.corpus_dirs))} (docs/studies/README.md explains the folder)"
                if not setup.skip_missing:
                    raise InputError(f"{reason}; --skip_missing leaves out such cells")
                return reason
    return ""


def _settings(stage: Stage, setup: Setup) -> dict:
    recipe = read_recipe(stage.recipe)
    return ({"stage": recipe["stage"]} if setup.modern else recipe) | stage.flags


def _pattern(stage: Stage, flag: str) -> str:
    return {"train_file": stage.documents, "bitext_file": BITEXT, "nli_file": NLI}[flag]


def _files(pattern: str, setup: Setup) -> list[Path]:
    """Return the files of the first folder of `--corpus_dir` that has any."""
    found = (sorted(path for path in folder.glob(pattern) if path.is_file()) for folder in setup.corpus_dirs)
    return next((files for files in found if files), [])


def _job(
    cell: ChainCell, tasks: tuple[str, ...], seed: int | None, setup: Setup, stages_dir: Path, planned: set[Path]
) -> ChainJob:
    folder, stages = setup.output_dir / cell_name(cell, seed), _stage_runs(cell, seed, setup, stages_dir)
    model = str(stages[-1].folder) if stages else setup.model_of(cell)
    flags: Flags = {
        "model_name_or_path": [model],
        "tasks": list(tasks),
        "data_dir": [str(setup.data_dir)],
        "output_dir": [str(folder / "scores")],
        "published": ["none"],
        "no_cache": [],
    }
    if not stages:  # checkpoints of run_cmlm.py store these settings
        flags |= {"pooling": ["mean"], "max_seq_length": [str(PAPER_LENGTH)]}
        flags |= {key: setup.extra[key] for key in ("pooling", "max_seq_length") if key in setup.extra}
    flags |= {key: [str(value)] for key, value in cell.scoring.items()}
    new = [run for run in stages if run.folder not in planned and not is_finished(run)]
    planned.update(run.folder for run in new)
    texts, steps = sum(run.texts for run in new), sum(run.steps for run in new)
    return ChainJob(cell, seed, folder, {}, flags, {}, texts, steps, stages=stages)


def _stage_runs(cell: ChainCell, seed: int | None, setup: Setup, stages_dir: Path) -> tuple[StageRun, ...]:
    """Build the runs of a cell's chain.

    Raises:
        InputError: two stages that do not fit, or a folder with the results of other flags.
    """
    runs: list[StageRun] = []
    for length, stage in enumerate(cell.chain, start=1):
        names = [one.name for one in cell.chain[:length]] + ([cell.part] if cell.part else [])
        folder = stages_dir / f"{'+'.join(names)}-seed{seed}".replace(" ", "_")
        settings = _settings(stage, setup)
        files = {flag: _files(_pattern(stage, flag), setup) for flag in DATA_FLAGS[settings["stage"]]}
        flags = {key: [str(value)] for key, value in settings.items()}
        flags |= {
            "model_name_or_path": [str(runs[-1].folder) if runs else setup.model_of(cell)],
            "output_dir": [str(folder)],
            "seed": [str(seed)],
        }
        flags |= {flag: [str(path) for path in paths] for flag, paths in files.items()}
        if "train_file" in files:
            flags["language"] = [path.name.partition(".")[0] for path in files["train_file"]]
            if setup.max_train_samples:
                flags["max_train_samples"] = [str(setup.max_train_samples)]
        data = {f"{path.parent.name}/{path.name}": content_of(path) for paths in files.values() for path in paths}
        run = StageRun(stage, folder, flags | setup.extra, data, is_first=not runs)
        if runs:
            check_fit(cell, runs[-1], run)
        runs.append(run)
    return tuple(runs)


@cache
def content_of(path: Path) -> str:
    """Return the SHA-256 of a data file, computed once by a process."""
    return checksum(path)


def check_fit(cell: ChainCell, earlier: StageRun, later: StageRun) -> None:
    """Check that a stage can start from the model of the stage before it.

    Raises:
        InputError
    """
    place = f"{cell.row}: stage '{later.stage.name}' does not fit '{earlier.stage.name}', from which it starts"
    if _value(later, "from_scratch") != "false":
        raise InputError(f"{place}: --from_scratch would discard its weights")
    for key in SHAPE:
        one, other = _value(earlier, key), _value(later, key)
        if one != other:
            raise InputError(f"{place}: --{key} {one} and {other}")


def _value(run: StageRun, key: str) -> str:
    """Return what a stage has for a flag of one value: given, "true" for a bare flag, or the default."""
    given = run.flags.get(key, [str(getattr(CMLMConfig, key))])
    return given[0].lower() if given else "true"


def is_finished(run: StageRun) -> bool:
    """Whether the stage has a complete result.

    Raises:
        InputError: its folder holds the result of other flags, another model or other data, or is not a stage's.
    """
    if run.folder.exists() and not run.record.is_file():
        raise InputError(f"{run.folder} was not made by run_study.py; give another --stages_dir")
    if run.record.is_file():
        earlier = json.loads(run.record.read_text(encoding="utf-8"))
        if different := different_settings(earlier, run.identity):
            raise InputError(
                f"{run.record} was created with another {', '.join(different)}; give another --stages_dir or --output_dir, "
                f"or delete {run.folder} and that file"
            )
    return is_complete(run.folder)


def different_settings(one: dict, other: dict) -> list[str]:
    """Return the flags and files in which two identities differ."""
    return [
        f"--{key}" if part.endswith(".py") else key
        for part in other
        for key in sorted({*one.get(part, {}), *other[part]})
        if one.get(part, {}).get(key) != other[part].get(key)
    ]

"""Jobs of a study: for each cell and seed the runs that train, the flags that score, and the identity of both.

Knows flags and files. Runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mirror.cmlm.options import PAPER_LENGTH, CMLMDataArguments, CMLMOptions
from mirror.common.config_parser import check_flags
from mirror.common.errors import InputError, did_you_mean
from mirror.common.files import StoredWork, atomic_write_text, digest
from mirror.data.source import CorpusSource
from mirror.evaluation.results import file_name
from mirror.evaluation.run import make_plan
from mirror.evaluation.task import Options
from mirror.modeling.read_checkpoint import checkpoint_settings
from mirror.training import options
from mirror.training.arguments import ScriptArguments
from mirror.training.options import CLS_FAMILIES, LEVELS, MirrorOptions, default_learning_rate, default_pooling
from mirror.training.record import versions
from studies import setup as places
from studies.cell import JOB, RESULT, check_stage, same_content
from studies.setup import Flags, Setup, content_of, corpus_facts, model_content, model_type, recipes
from studies.study import RATE, Cell, Stage, Study


SET_BY_STUDIES = {"model_name_or_path", "train_file", "dataset_name", "output_dir", "seed", "level", "data_dir", "force",
                  "config", "stage", "bitext_file", "nli_file", "language", "resume_from_checkpoint"}  # fmt: skip
OPTIONS = {
    "run_mirror.py": (ScriptArguments, CorpusSource, MirrorOptions),
    "run_cmlm.py": (ScriptArguments, CMLMDataArguments, CMLMOptions),
}
RIVALS = "studies/rivals.py"
MODELS = ("model_name_or_path", "second_model_name_or_path")
PATHS = {"output_dir", "data_dir", "train_file", "bitext_file", "nli_file"}  # the files are known by their content


@dataclass(frozen=True)
class Run:
    """One run of a training script with one seed. A stage is kept, and shared with other cells."""

    script: str
    flags: Flags
    folder: Path
    identity: dict  # the flags that matter, and models and data by content
    is_stage: bool = False


@dataclass(frozen=True)
class Job:
    """A cell with one seed. Its identity says whether it is done already, also by another study.

    It names every input by content. Names of rows and parts, and paths are not part of it.
    """

    cell: Cell
    seed: int | None  # None: nothing is trained
    folder: Path
    runs: tuple[Run, ...]
    evaluate: Flags  # of run_eval.py
    identity: dict
    is_shareable: bool  # false: the data of a task is not in files, so its content is unknown before it is scored

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def work(self) -> StoredWork:
        return StoredWork(self.folder / RESULT, self.identity)

    def write(self, keep_models: bool) -> Path:
        """Write the job.json that `studies.cell.run_cell` reads."""
        runs = [
            {"command": command(run.script, run.flags), "folder": str(run.folder)}
            | {"is_stage": run.is_stage, "identity": run.identity}
            for run in self.runs
        ]
        content = {"row": self.cell.row, "part": self.cell.part, "seed": self.seed, "runs": runs}
        content |= {"evaluate": command("run_eval.py", self.evaluate), "keep_models": keep_models}
        content["dev_task"] = self.runs[0].flags["eval_tasks"][0] if "select_by" in self.cell.flags else None
        content["identity"] = self.identity
        atomic_write_text(self.folder / JOB, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return self.folder / JOB

    def finished(self) -> dict | None:
        """Return the content of `cell.json`, or None if the cell is not finished. Refuse another identity."""
        return same_content(self.work, f"--output_dir or delete {self.folder}")


def make_jobs(study: Study, setup: Setup) -> tuple[list[Job], list[str]]:
    """Return the jobs of a study, the seeds of a cell one after the other, and a line per reason why cells are left out."""
    _check(study, setup)
    jobs: list[Job] = []
    left_out: dict[str, list[str]] = {}  # reason -> cells
    for cell in study.cells:
        reason = _reason_to_leave_out(study, cell, setup)
        texts = str(setup.corpus(cell.isotropy_texts)) if cell.isotropy_texts else None
        options = Options(isotropy_texts=texts, bli_vocabulary=setup.bli_vocabulary)
        data = {} if reason else data_of(cell.tasks, setup.data_dir, setup.skip_missing, options)
        if lacking := [task for task in cell.tasks if task not in data]:
            left_out.setdefault(reason or f"no data for {' '.join(lacking)}", []).append(cell_name(cell))
        if data:
            for seed in setup.seeds if cell.corpora or cell.chain else (None,):
                jobs.append(_job(study, replace(cell, tasks=tuple(data)), seed, setup, data))
    for run in next((job.runs for job in jobs if job.runs and not job.cell.method), ())[:1]:  # a mistyped flag
        check_flags(OPTIONS[run.script], as_arguments(run.flags))
    return jobs, [f"left out of {', '.join(names)}: {reason}" for reason, names in left_out.items()]


def _check(study: Study, setup: Setup) -> None:
    """Check the flags after `--`, that `--language_models` names parts of the study, and that every model can be read."""
    stage_flags = {key for cell in study.cells for stage in cell.chain for key in stage.flags}
    for key in setup.extra:
        if key in SET_BY_STUDIES:
            raise InputError(f"--{key} after -- is set by run_study.py itself; leave it out")
        if key == "max_train_samples":
            raise InputError("--max_train_samples must be given before the --")
        flag = RATE if key == "learning_rate" else key
        field = {"pooling": "pooling", "dropout_rate": "drophead", "drophead_rate": "drophead"}.get(key)
        values = {(cell.flags.get(flag), field and getattr(cell, field)) for cell in study.cells if cell.corpora}
        if len(values) > 1 or key in stage_flags:
            raise InputError(f"--{key} after -- is varied by this study; leave it out")
    model_type(setup.model)
    known = study.languages
    for part, model in setup.language_models.items():
        if part not in known:
            has = f"it has {', '.join(known)}" if known else "all its cells have one model"
            fix = f"{did_you_mean(part, known)}; {has}"
            raise InputError(f"--language_models {part}={model}: this study has no {part}{fix}")
        model_type(model, f"--language_models {part}=")


def _reason_to_leave_out(study: Study, cell: Cell, setup: Setup) -> str:
    """Return why a cell cannot be run, or an empty string. Without `skip_missing`, refuse a cell that lacks a corpus."""
    limit, asked = setup.max_train_samples, cell.flags.get("max_train_samples", 0)
    if limit and asked > limit:
        return f"{asked:,} texts are more than --max_train_samples {limit}"
    if study.is_cmlm and cell.part and cell.part not in setup.language_models:
        return f"another model than the study's; name it with --language_models {cell.part}=MODEL"
    folders = ", ".join(map(str, setup.corpus_dirs))
    chain = [(stage.data[flag], files) for stage in cell.chain for flag, files in _stage_files(stage, setup).items()]
    reasons = [
        f"no {name} in {folders} (docs/studies/README.md explains the folder)" for name, files in chain if not files
    ]
    lacking = (path for path in map(setup.corpus, cell.texts) if not path.is_file())
    reasons += [f"no corpus {path} (docs/studies/README.md says how to make it)" for path in lacking]
    if not reasons:
        available = sum(corpus_facts(setup.corpus(name))[0] for name in cell.corpora)
        if available >= asked:
            return ""
        reasons = [f"{' '.join(cell.corpora)}: {available:,} distinct texts, {asked:,} are needed"]
    if not setup.skip_missing:
        raise InputError(f"{reasons[0]}; --skip_missing leaves out such cells")
    return reasons[0]


@cache
def data_of(
    tasks: tuple[str, ...], data_dir: Path, skip_missing: bool = False, options: Options | None = None
) -> dict:
    """Return protocol and SHA-256 of the data of each task that has data. The hash is None where no files hold it."""
    found = [prepared.task for prepared in make_plan(tasks, data_dir, skip_missing, options).tasks]
    return {task.name: [task.protocol, task.data_sha256(data_dir) if task.files else None] for task in found}


def cell_name(cell: Cell, seed: int | None = None) -> str:
    """Return the name of a cell's folder."""
    parts = [file_name(cell.row.replace("- ", "minus ")), *([file_name(cell.part)] if cell.part else [])]
    return "-".join(parts + ([f"seed{seed}"] if seed is not None else []))


def as_arguments(flags: Flags) -> list[str]:
    """Convert flags to a command line."""
    return [item for key, values in flags.items() for item in (f"--{key}", *values)]


def command(script: str, flags: Flags) -> list[str]:
    """Return the command line of a script of this repository."""
    return [str(places.ROOT / script), *as_arguments(flags)]


# ---- A job: training, scoring, identity ------------------------------------------------------------------------------


def _job(study: Study, cell: Cell, seed: int | None, setup: Setup, data: Mapping) -> Job:
    """Build a job. `data` is that of its tasks."""
    folder = setup.output_dir / cell_name(cell, seed)
    runs = _mirror_runs(cell, seed, folder, setup) or _stage_runs(cell, seed, setup)
    # ---- Flags of run_eval.py
    models = [str(run.folder) for run in (runs[-1:] if cell.chain else runs)] or setup.models_of(cell)
    evaluate: Flags = {key: [model] for key, model in zip(MODELS, models, strict=False)} | {
        "tasks": list(cell.tasks),
        "data_dir": [str(setup.data_dir)],
        "output_dir": [str(folder / "scores")],
        "published": ["none"],
        "no_cache": [],
    }
    if not runs:  # trained checkpoints store these settings
        length = PAPER_LENGTH if study.is_cmlm else LEVELS[cell.level]["max_seq_length"]
        recipe = setup.recipe_of(cell, models[0])
        pooling = cell.pooling or (setup.extra.get("pooling") or [""])[0] or ("mean" if study.is_cmlm else "")
        pooling = pooling or (
            recipes()[recipe]["pooling"] if recipe else checkpoint_settings(models[0]).get("pooling")
        )
        pooling = pooling or LEVELS[cell.level].get("pooling") or default_pooling(model_type(models[0]))
        evaluate["pooling"] = [pooling]
        evaluate["max_seq_length"] = setup.extra.get("max_seq_length", [str(length)])
    if cell.isotropy_texts:
        evaluate["isotropy_texts"] = [str(setup.corpus(cell.isotropy_texts))]
    languages = [task.rpartition("_")[2] for task in cell.tasks if task.startswith("bli_")]
    words = setup.bli_vocabulary or ""
    vocabularies = [Path(words.replace("{language}", language)) for language in languages if words]
    if vocabularies:
        evaluate["bli_vocabulary"] = [words]
    evaluate |= _as_flags(cell.scoring)
    # ---- Identity
    without = {"output_dir", "data_dir", "isotropy_texts", "bli_vocabulary", *(MODELS if runs else ())}
    watched = [task for run in runs for task in run.flags.get("eval_tasks", ())]
    data = data | (data_of(tuple(watched), setup.data_dir) if watched else {})
    identity = {key: value for run in runs for key, value in run.identity.items()} | {
        **_identity_of("run_eval.py", evaluate, without),
        **{path.name: corpus_facts(path)[1] for path in (*map(setup.corpus, cell.texts), *vocabularies)},
        **{f"data of {task}": entry for task, entry in data.items()},
        **{f"version of {package}": version for package, version in versions().items()},
    }
    for run in runs:
        if run.is_stage:
            check_stage(run.folder, run.identity)  # before anything is run
    return Job(cell, seed, folder, runs, evaluate, identity, None not in (sha256 for _, sha256 in data.values()))


def _as_flags(settings: Mapping) -> Flags:
    return {key: [str(value)] for key, value in settings.items()}


def _identity_of(name: str, flags: Flags, without: set[str]) -> dict[str, list[str]]:
    """Return flags as entries of an identity. A model is named by its content."""
    kept = {key: values for key, values in flags.items() if key not in without}
    kept |= {key: [*map(model_content, kept[key])] for key in MODELS if key in kept}
    return {f"{name} --{key}": values for key, values in kept.items()}


def _mirror_runs(cell: Cell, seed: int | None, folder: Path, setup: Setup) -> tuple[Run, ...]:
    """Return the run of a cell's encoder, and that of its second language if there is one."""
    runs = []
    script = RIVALS if cell.method else "run_mirror.py"
    encoders = ((script, "model", cell.corpora), (f"second {script}", "second_model", cell.second[1:]))
    for (shown, name, corpora), model in zip(encoders, setup.models_of(cell), strict=False):
        if not corpora:
            continue
        recipe = setup.recipe_of(cell, model)
        own = {"method": [cell.method]} if cell.method else {"level": [cell.level]}
        flags = _as_flags(recipes()[recipe] if recipe and not cell.method else {}) | {
            "validation_samples": ["0"],  # the papers train on every text
            "model_name_or_path": [model],
            "train_file": [str(setup.corpus(file)) for file in corpora],
            "output_dir": [str(folder / name)],
            "seed": [str(seed)],
            **own,
        }
        if cell.drophead and not recipe:
            family = "roberta" if model_type(model) in CLS_FAMILIES else "bert"
            flags["drophead_rate"] = [str(recipes()[f"sentence-{family}-drophead"]["drophead_rate"])]
        data_dir = setup.data_dir if "eval_tasks" in cell.flags else None
        rate = cell.flags[RATE] * default_learning_rate(model) if RATE in cell.flags else None
        optional = {"pooling": cell.pooling, "data_dir": data_dir, "max_train_samples": setup.max_train_samples}
        optional |= {"learning_rate": rate} | {key: value for key, value in cell.flags.items() if key != RATE}
        flags |= _as_flags({key: value for key, value in optional.items() if value is not None}) | setup.extra
        flags = {key: values for key, values in flags.items() if cell.flags.get(key, "") is not None}
        identity = _identity_of(shown, flags, PATHS)
        if not (recipe or cell.method):
            identity[f"{shown} defaults"] = digest(defaults_for_bases())
        runs.append(Run(script, flags, folder / name, identity))
    return tuple(runs)


def defaults_for_bases() -> list[object]:
    """Return the defaults that depend on the base model. Flags do not name them, so they are part of a cell's identity."""
    of_levels = [options.LEVELS, options.ENCODER_SETTINGS, options.ADAPTING_NAMES, options.ADAPTING_PAIRS]
    without_mask = [options.MASKLESS, options.MASKLESS_PAIRS]
    rates = [options.LEARNING_RATE, options.EMBEDDED_LEARNING_RATE, options.STATIC_LEARNING_RATE]
    return of_levels + without_mask + rates + [options.PAIR_STEPS, options.MAX_PASSES, options.BATCH_SIZE]


def _stage_files(stage: Stage, setup: Setup) -> dict[str, list[Path]]:
    """Return the data files of a stage for each flag, of the first folder of `--corpus_dir` that has any."""
    found = {}
    for flag, pattern in stage.data.items():
        by_folder = (sorted(path for path in folder.glob(pattern) if path.is_file()) for folder in setup.corpus_dirs)
        found[flag] = next((files for files in by_folder if files), [])
    return found


def _stage_runs(cell: Cell, seed: int | None, setup: Setup) -> tuple[Run, ...]:
    """Return the runs of a cell's chain. Each starts from the folder of the one before it."""
    runs: list[Run] = []
    for length, stage in enumerate(cell.chain, start=1):
        # Cells that begin with the same stages have the same folders for them.
        names = [each.name for each in cell.chain[:length]] + ([cell.part] if cell.part else [])
        folder = setup.stages_dir / f"{'+'.join(names)}-seed{seed}"
        recipe, files = recipes()[stage.recipe], _stage_files(stage, setup)
        flags = _as_flags(({"stage": recipe["stage"]} if setup.modern else recipe) | stage.flags) | {
            "model_name_or_path": [str(runs[-1].folder) if runs else setup.models_of(cell)[0]],
            "output_dir": [str(folder)],
            "seed": [str(seed)],
            **{flag: [str(path) for path in paths] for flag, paths in files.items()},
        }
        if "train_file" in files:
            flags["language"] = [path.name.partition(".")[0] for path in files["train_file"]]
            if setup.max_train_samples:
                flags["max_train_samples"] = [str(setup.max_train_samples)]
        flags |= setup.extra
        if runs and flags.get("from_scratch", ["false"]) not in (["False"], ["false"]):
            discarded = f"--from_scratch would discard the weights that stage '{stage.name}' starts from"
            raise InputError(f"{cell.row}: {discarded}; leave it out")
        # The model of a later stage is known by the identity of the stage that makes it.
        identity = _identity_of(stage.name, flags, PATHS | ({"model_name_or_path"} if runs else set()))
        identity |= {f"{path.parent.name}/{path.name}": content_of(path) for paths in files.values() for path in paths}
        runs.append(Run("run_cmlm.py", flags, folder, identity, is_stage=True))
    return tuple(runs)

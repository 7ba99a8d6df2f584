"""Cells by content: what one study has run is not run again by another study that needs the same cell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from transformers import AutoConfig

from mirror.common.atomic_files import atomic_write_text
from mirror.evaluation.catalogue import Options, all_tasks, resolve
from mirror.studies.execution import RESULT
from mirror.studies.plan import MODELS, Job
from mirror.training.run_record import versions


OPTIONS = (
    "second_model_name_or_path",
    "bli_vocabulary",
    "isotropy_texts",
)  # flags that name data or change its reading


def take(job: Job, folder: Path) -> bool:
    """Write `cell.json` of a job from the shared cells in `folder`; return whether there was one."""
    source = _place(job, folder)
    if not (source and source.is_file()):
        return False
    record = json.loads(source.read_text(encoding="utf-8"))
    record |= {"row": job.cell.row, "part": job.cell.part, "identity": job.identity}
    atomic_write_text(job.folder / RESULT, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return True


def give(job: Job, folder: Path) -> None:
    """Copy `cell.json` of a finished job to the shared cells in `folder`."""
    if place := _place(job, folder):
        atomic_write_text(place, (job.folder / RESULT).read_text(encoding="utf-8"))


def _place(job: Job, folder: Path) -> Path | None:
    """Return the file of a job's content: flags, models, corpora, evaluation data and versions of the libraries.

    Where the study runs, the names of rows and parts, and paths do not count. None if a task's data is not in files.
    """
    data = _data(
        tuple(job.evaluate["tasks"] + job.train.get("eval_tasks", [])),
        Path(job.evaluate["data_dir"][0]),
        Options(**{key: job.evaluate[key][0] for key in OPTIONS if key in job.evaluate}),
    )
    if data is None:
        return None
    identity = {part: _with_commits(flags) for part, flags in job.identity.items()}
    content = json.dumps([identity, data, versions()], sort_keys=True)
    return folder / f"{hashlib.sha256(content.encode()).hexdigest()}.json"


def _with_commits(flags: Mapping[str, object]) -> dict:
    """Replace Hub ids by their commit; folders are named by their content already."""
    return {key: list(map(_commit, values)) if key in MODELS else values for key, values in flags.items()}


@cache
def _data(tasks: tuple[str, ...], data_dir: Path, options: Options) -> dict[str, list[str]] | None:
    found = resolve(tasks, all_tasks(data_dir, options))
    if not all(task.files for task in found):
        return None
    return {task.name: [task.protocol, task.data_sha256(data_dir)] for task in found}


@cache
def _commit(model: str) -> str:
    return model if model.startswith("sha256:") else AutoConfig.from_pretrained(model)._commit_hash or model

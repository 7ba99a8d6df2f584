"""Evaluation runs: check the data of the requested tasks, score each task, and average the groups."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.errors import InputError, one_line
from mirror.common.files import StoredWork
from mirror.evaluation.catalogue import all_groups, all_tasks, default_data_dir, resolve
from mirror.evaluation.task import Options, Task, preparation


if TYPE_CHECKING:
    from mirror.modeling.encoder import Encode, Encoder


logger = logging.getLogger(__name__)


class Progress:
    """Scores of an unfinished run, on disk. They are reused with the same `identity` only. One process `writes`, all read."""

    def __init__(self, path: Path, identity: dict, writes: bool = True):
        self.work, self.writes = StoredWork(path, identity), writes
        self.tasks: dict[str, dict] = (self.work.content() or {}).get("tasks", {})  # entries of results.json

    def add(self, name: str, entry: dict) -> None:
        """Store the entry of a task."""
        self.tasks[name] = entry
        if self.writes:
            self.work.save({"tasks": self.tasks})

    def finish(self) -> None:
        """Remove the file. From now on results.json has the scores."""
        if self.writes:
            self.work.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class PreparedTask:
    """A task whose files have been validated, and the data folder that contains them."""

    task: Task
    data_dir: Path

    @property
    def name(self) -> str:
        return self.task.name

    def score(self, encode: Encode, encoder: Encoder | None = None, second_encode: Encode | None = None) -> dict:
        """Score the task and return its entry of results.json: its fields, metric, protocol, data hash and seconds.

        `second_encode` is for the second language of tasks that take an encoder for each. Default: `encode`. A task that trains
        without `encoder`, and data without a score are an `InputError`.
        """
        if self.task.trains and encoder is None:
            raise InputError(f"task {self.name} trains a copy of the encoder; pass the encoder, not only `encode`")
        second = (second_encode or encode,) if self.task.takes_second_encode else ()
        start = time.perf_counter()
        try:
            fields = self.task.score(encoder if self.task.trains else encode, self.data_dir, *second)
        except ValueError as error:  # of scikit-learn or SciPy, for labels or scores that are all the same
            raise InputError(f"task {self.name}: {one_line(error)}") from error
        if not math.isfinite(found := fields["main_score"]):
            raise InputError(f"task {self.name}: the score is {found}, because its labels or scores are all the same")
        fields.pop("samples", None)  # for mirror.evaluation.comparison, in memory only
        seconds = time.perf_counter() - start
        logger.info("%s: %s %.4f (%.1f s)", self.name, self.task.metric, fields["main_score"], seconds)
        return {
            "main_score": fields["main_score"],
            "metric": self.task.metric,
            "protocol": self.task.protocol,
            "num_examples": fields["num_examples"],
            "seconds": round(seconds, 3),
            "data_sha256": fields.get("data_sha256") or self.task.data_sha256(self.data_dir),
            "published": self.task.published,
            **fields,
        }


@dataclass(frozen=True)
class Plan:
    """Validated tasks, ready to score any number of models."""

    tasks: list[PreparedTask]
    missing: list[str]  # tasks skipped because their data is missing
    groups: dict[str, list[str]]  # for each reported group, the members that are scored
    missing_members: dict[str, list[str]]  # for each reported group, the members without data

    def run(
        self, encode: Encode, encoder: Encoder | None = None, progress: Progress | None = None, second_encode=None
    ) -> dict:
        """Score all tasks, except those that `progress` has, and return the score section of results.json."""
        earlier = progress.tasks if progress else {}
        scored = {}
        for task in self.tasks:
            entry = earlier.get(task.name)
            if entry and task.task.files and entry["protocol"] == task.task.protocol:
                if entry["data_sha256"] == task.task.data_sha256(task.data_dir):
                    scored[task.name] = entry
                    continue
            scored[task.name] = task.score(encode, encoder, second_encode)
            if progress:
                progress.add(task.name, scored[task.name])
        scores = {name: entry["main_score"] for name, entry in scored.items()}
        means = {group: sum(map(scores.get, names)) / len(names) for group, names in self.groups.items()}
        members = {"group_members": self.groups, "group_members_missing": self.missing_members}
        return {"tasks": scored, "groups": means, **members, "missing": self.missing}


def make_plan(
    names: Sequence[str],
    data_dir: str | Path | None = None,
    skip_missing: bool = False,
    options: Options | None = None,
) -> Plan:
    """Resolve the values of --tasks (`catalogue.resolve`) and validate all their files before anything is encoded.

    Unknown names, damaged files and, unless `skip_missing`, missing ones are an `InputError`.
    """
    data_dir = default_data_dir() if data_dir is None else Path(data_dir)
    known = all_tasks(data_dir, options)
    prepared, missing = [], []
    for task in resolve(names, known):
        absent = task.missing_files(data_dir)
        if not absent and (not skip_missing or task.is_available(data_dir)):
            task.check(data_dir)
            prepared.append(PreparedTask(task, data_dir))
        elif skip_missing and (not absent or data_dir.is_dir()):
            missing.append(task.name)
        else:
            fix, needs = f"make it with: {preparation(names, data_dir)}", f"task {task.name} needs {absent[0]}"
            if not data_dir.is_dir():
                raise InputError(f"--data_dir {data_dir}: no such folder, and {needs}; {fix}, or set MIRROR_DATA_DIR")
            by_flag = absent[0] in (file.path for file in task.files if Path(file.path).is_absolute())
            fix = "check the flag that names it" if by_flag else f"{fix}, or skip the task with --skip_missing"
            raise InputError(f"{needs}, which is missing; {fix}")
    if missing:
        logger.warning("No data in %s for %s", data_dir, " ".join(missing))
    # A group requested by name is averaged over the members that have data, so results.json lists them. Other groups are
    # averaged only if all their members are scored.
    available, reported, lacking = {task.name for task in prepared}, {}, {}
    for group, members in all_groups(known).items():
        present = [name for name in members if name in available]
        absent = [name for name in members if name not in available]
        if present and (group in names or not absent):
            reported[group] = present
            if absent:
                lacking[group] = absent
    return Plan(prepared, missing, reported, lacking)


def make_task_scorer(
    names: Sequence[str] | None, data_dir: str | Path | None = None
) -> Callable[[Encoder], dict[str, float]] | None:
    """Return a function from an encoder to its main score on each task, or None if `names` is empty (see `make_plan`)."""
    if not names:
        return None
    tasks = make_plan(names, data_dir).tasks
    return lambda encoder: {task.name: task.score(encoder.by_role(), encoder)["main_score"] for task in tasks}

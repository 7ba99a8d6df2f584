"""Evaluation runs: all tasks by name, their data checked, each task scored, and the groups averaged.

The tasks are those that each family declares, those found in the data folder, and those of a user's own files.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mirror.common.errors import InputError, did_you_mean, one_line
from mirror.common.files import StoredWork
from mirror.data.files import ending_of
from mirror.evaluation.task import MTEB, TABLE_ENDINGS, Options, Task, preparation


if TYPE_CHECKING:
    from mirror.modeling.encoder import Encode, Encoder

logger = logging.getLogger(__name__)


def families() -> tuple[ModuleType, ...]:
    """Return the modules with `tasks(data_dir, options) -> list[Task]`. A new one needs nothing but its place here."""
    # Imported late: a training run without --eval_tasks needs neither them nor scikit-learn.
    from mirror.evaluation import amazon, bli, geometry, labeled_pairs, linking, retrieval, sts, transfer

    return sts, bli, linking, labeled_pairs, geometry, transfer, retrieval, amazon


def default_data_dir() -> Path:
    """Return the environment variable `MIRROR_DATA_DIR`, or `data` in the working directory."""
    return Path(os.environ.get("MIRROR_DATA_DIR", "data"))


def all_tasks(data_dir: Path, options: Options | None = None) -> dict[str, Task]:
    """Return every task by name, including tasks whose data is missing."""
    return {task.name: task for family in families() for task in family.tasks(data_dir, options or Options())}


def all_groups(tasks: dict[str, Task]) -> dict[str, list[str]]:
    """Return the members of each group, in the order of `tasks`."""
    groups: dict[str, list[str]] = {}
    for task in tasks.values():
        for group in task.groups:
            groups.setdefault(group, []).append(task.name)
    return groups


def resolve(names: Iterable[str], tasks: dict[str, Task]) -> list[Task]:
    """Turn the values of --tasks (names of tasks and groups, paths, `mteb:NAME`) into tasks, each once, in the requested order.

    An unknown name, a file that cannot be read and two tasks of one name are an `InputError`.
    """
    groups = all_groups(tasks)
    chosen: dict[str, Task] = {}
    for name in names:
        if name in tasks or name in groups:
            found = [tasks[member] for member in groups.get(name, [name])]
        elif is_own(name):
            found = [own_task(name)]
            if (own := found[0].name) in tasks or own in groups:
                raise InputError(f"--tasks {name}: '{own}' is the name of a built-in task or group; rename the file")
        else:
            meant = did_you_mean(name, [*tasks, *groups])
            raise InputError(f"unknown task '{name}'{meant}; run_eval.py --list_tasks prints all names")
        for task in found:
            if chosen.setdefault(task.name, task).files != task.files:
                raise InputError(f"--tasks {name}: another task is called '{task.name}' too; use two commands")
    return list(chosen.values())


def is_own(name: str) -> bool:
    """Return whether a value of --tasks is a path or `mteb:NAME`, and not the name of a built-in task."""
    exists = os.path.exists(name)  # pathlib raises for long names
    is_path = exists or "/" in name or ending_of(Path(name)) in TABLE_ENDINGS
    return is_path or name.startswith(MTEB) or os.path.isdir(name.rpartition(":")[0])


def own_task(name: str) -> Task:
    """Return the task of `FOLDER`, `FOLDER:SPLIT`, `FILE` or `mteb:NAME`. Raise an `InputError` where none fits."""
    from mirror.evaluation.benchmark_formats import folder_task, mteb_task
    from mirror.evaluation.own_tables import table_task

    if name.startswith(MTEB):
        return mteb_task(name)
    folder, _, split = name.rpartition(":")
    if os.path.isdir(name):
        return folder_task(Path(name))
    if not os.path.exists(name) and os.path.isdir(folder):
        return folder_task(Path(folder), split)
    if not os.path.isfile(name):
        raise InputError(f"{name}: no such file")
    if ending_of(Path(name)) not in TABLE_ENDINGS:
        raise InputError(f"{name}: unknown ending; one of {', '.join(TABLE_ENDINGS)}, each also as .gz")
    return table_task(Path(name))


def dataset_of(name: str) -> dict[str, str]:
    """Return the data set of a task as fields of `huggingface_hub.EvalResult`. An unknown task is its own data set."""
    task = all_tasks(default_data_dir()).get(name)
    return task.dataset_fields() if task else {"dataset_name": name, "dataset_type": name}


def listing(tasks: dict[str, Task], data_dir: Path) -> str:
    """Return the text of `--list_tasks`: the tasks of each group by protocol, those with data marked."""
    # Not `is_available`, which takes seconds to collect this machine's docstrings for two tasks.
    available = {name for name, task in tasks.items() if not task.missing_files(data_dir)}
    alone = [name for name, task in tasks.items() if not task.groups]
    lines = [f"x: data available in {data_dir}"]
    for group, members in (all_groups(tasks) | {"": alone}).items():
        found = f"{len(available.intersection(members))} of {len(members)} available"
        lines += ["", f"group {group}, {found}" if group else f"in no group, {found}"]
        by_protocol: dict[str, list[str]] = {}
        for name in members:
            # Tatoeba's protocol names the source language. With `*` for it, all languages share one heading.
            protocol = tasks[name].protocol.replace(f"{name.rpartition('_')[2]} -> ", "* -> ")
            by_protocol.setdefault(f"{tasks[name].metric}: {protocol}", []).append(name)
        for protocol, names in by_protocol.items():
            cells = [f"{'x' if name in available else ' '} {name}" for name in names]
            longest = max(map(len, cells)) + 2
            step = 100 // longest  # a line has about 100 characters
            rows = (cells[start : start + step] for start in range(0, len(cells), step))
            lines += [f"  {protocol}", *("    " + "".join(c.ljust(longest) for c in row).rstrip() for row in rows)]
    return "\n".join(lines)


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

    def __call__(self, encoder: Encoder) -> dict[str, float]:
        """Return the main score of an encoder, by the name of the task."""
        return {self.name: self.score(encoder.by_role(), encoder)["main_score"]}

    def score(self, encode: Encode, encoder: Encoder | None = None, second_encode: Encode | None = None) -> dict:
        """Score the task and return its entry of results.json: its fields, metric, protocol, data hash and seconds.

        Arguments and errors are those of `measure`.
        """
        start = time.perf_counter()
        fields = self.measure(encode, encoder, second_encode)
        fields.pop("samples", None)  # for mirror.tools.compare, in memory only
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

    def measure(self, encode: Encode, encoder: Encoder | None = None, second_encode: Encode | None = None) -> dict:
        """Compute the score, `main_score`, and the other fields of the task.

        `second_encode` is for the second language of tasks that take an encoder for each. Default: `encode`. A task that trains
        without `encoder`, and data without a score are an `InputError`.
        """
        if self.task.trains and encoder is None:
            raise InputError(f"task {self.name} trains a copy of the encoder; pass the encoder, not only `encode`")
        second = (second_encode or encode,) if self.task.takes_second_encode else ()
        try:
            fields = self.task.score(encoder if self.task.trains else encode, self.data_dir, *second)
        except ValueError as error:  # of scikit-learn or SciPy, for labels or scores that are all the same
            raise InputError(f"task {self.name}: {one_line(error)}") from error
        if not math.isfinite(found := fields["main_score"]):
            raise InputError(f"task {self.name}: the score is {found}, because its labels or scores are all the same")
        return fields


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
    names: list[str], data_dir: str | Path | None = None, skip_missing: bool = False, options: Options | None = None
) -> Plan:
    """Resolve the values of --tasks (`resolve`) and validate all their files before anything is encoded.

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
    # A group requested by name is averaged over its members that have data, any other only if all members are scored.
    available, reported, lacking = {task.name for task in prepared}, {}, {}
    for group, members in all_groups(known).items():
        present = [name for name in members if name in available]
        absent = [name for name in members if name not in available]
        if present and (group in names or not absent):
            reported[group] = present
            if absent:
                lacking[group] = absent
    return Plan(prepared, missing, reported, lacking)

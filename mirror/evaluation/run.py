"""Evaluation runs: resolve task names, check the data, score each task and average the groups.

Knows the function `encode`. Passes the encoder itself to tasks that train, and does not use it otherwise.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.errors import InputError, one_line
from mirror.evaluation.catalogue import Options, all_groups, all_tasks, resolve
from mirror.evaluation.progress import Progress
from mirror.evaluation.task import Task, preparation
from mirror.modeling.encoder import Encode


if TYPE_CHECKING:
    from mirror.modeling.encoder import Encoder


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedTask:
    """A task whose files have been validated, and the data folder that contains them."""

    task: Task
    data_dir: Path

    @property
    def name(self) -> str:
        return self.task.name

    def is_same_as(self, entry: dict | None) -> bool:
        """Whether `entry` of results.json was made by this task on these files."""
        if entry is None or entry["protocol"] != self.task.protocol or not self.task.files:
            return False
        return entry["data_sha256"] == self.task.data_sha256(self.data_dir)

    def score(self, encode: Encode, encoder: Encoder | None = None, second_encode: Encode | None = None) -> dict:
        """Score the task and return its entry of results.json.

        Args:
            encode: (list of N texts) -> (N, D) float32.
            encoder: required by tasks that train.
            second_encode: of the second language, for tasks that take an encoder for each; default: `encode`.

        Returns:
            The fields of the task, plus its metric, protocol, data hash and duration in seconds.

        Raises:
            InputError: the task trains and `encoder` is None, or no score can be computed from the data.
        """
        if self.task.trains and encoder is None:
            raise InputError(f"task {self.name} trains a copy of the encoder; pass the encoder, not only `encode`")
        second = (second_encode or encode,) if self.task.takes_second_encode else ()
        start = time.perf_counter()
        try:
            fields = self.task.score(encoder if self.task.trains else encode, self.data_dir, *second)
        except ValueError as error:  # of scikit-learn or SciPy, for labels or scores that are all the same
            raise InputError(f"task {self.name}: {one_line(error)}") from error
        if not math.isfinite(fields["main_score"]):
            raise InputError(
                f"task {self.name}: the score is {fields['main_score']}, because its labels or scores are all the same"
            )
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


def default_data_dir() -> Path:
    """The environment variable `MIRROR_DATA_DIR`, or `data` in the working directory."""
    return Path(os.environ.get("MIRROR_DATA_DIR", "data"))


@dataclass(frozen=True)
class Plan:
    """Validated tasks, ready to score any number of models."""

    tasks: list[PreparedTask]
    missing: list[str]  # tasks skipped because their data is missing
    groups: dict[str, list[str]]  # for each reported group, the members that are scored
    missing_members: dict[str, list[str]]  # for each reported group, the members without data

    def run(
        self,
        encode: Encode,
        encoder: Encoder | None = None,
        progress: Progress | None = None,
        second_encode: Encode | None = None,
    ) -> dict:
        """Score all tasks and return the score section of results.json.

        Args:
            encode: (list of N texts) -> (N, D) float32.
            encoder: required by tasks that train.
            progress: keeps every score at once, and has those of an earlier run that did not finish.
            second_encode: of the second language, for tasks that take an encoder for each; default: `encode`.
        """
        earlier = progress.tasks if progress else {}
        scored = {}
        for task in self.tasks:
            if task.is_same_as(earlier.get(task.name)):
                scored[task.name] = earlier[task.name]
                continue
            scored[task.name] = task.score(encode, encoder, second_encode)
            if progress:
                progress.add(task.name, scored[task.name])
        means = {
            group: sum(scored[name]["main_score"] for name in members) / len(members)
            for group, members in self.groups.items()
        }
        return {
            "tasks": scored,
            "groups": means,
            "group_members": self.groups,
            "group_members_missing": self.missing_members,
            "missing": self.missing,
        }


def make_plan(
    names: Sequence[str],
    data_dir: str | Path | None = None,
    skip_missing: bool = False,
    options: Options | None = None,
) -> Plan:
    """Resolve names of tasks and groups and validate all their files before anything is encoded.

    Args:
        names: names of tasks and groups.
        data_dir: default: see `default_data_dir`.
        skip_missing: skip tasks without data instead of raising an error. A damaged file is an error in any case.
        options: settings of the task families.

    Raises:
        InputError: an unknown name, or missing or damaged data.
    """
    data_dir = default_data_dir() if data_dir is None else Path(data_dir)
    known = all_tasks(data_dir, options)
    prepared, missing = [], []
    for task in resolve(names, known):
        absent = task.missing_files(data_dir)
        if skip_missing and not absent and not task.is_available(data_dir):
            missing.append(task.name)
        elif not absent:
            task.check(data_dir)
            prepared.append(PreparedTask(task, data_dir))
        elif skip_missing and data_dir.is_dir():
            missing.append(task.name)
        else:
            raise InputError(_missing_data_message(task, absent[0], data_dir, preparation(names, data_dir)))
    if missing:
        logger.warning("no data in %s for %s", data_dir, " ".join(missing))
    available = [task.name for task in prepared]
    groups = all_groups(known)
    reported = groups_to_report(names, available, groups)
    lacking = {group: [name for name in groups[group] if name not in available] for group in reported}
    return Plan(prepared, missing, reported, {group: members for group, members in lacking.items() if members})


def make_task_scorer(
    names: Sequence[str] | None, data_dir: str | Path | None = None
) -> Callable[[Encoder], dict[str, float]] | None:
    """Return a function that maps an encoder to its main score on each task, or None if `names` is empty.

    Raises:
        InputError: an unknown name, or missing or damaged data.
    """
    if not names:
        return None
    tasks = make_plan(names, data_dir).tasks
    return lambda encoder: {task.name: task.score(encoder.encode, encoder)["main_score"] for task in tasks}


def groups_to_report(names: Sequence[str], available: list[str], groups: dict[str, list[str]]) -> dict[str, list[str]]:
    """Select the groups to average: those requested by name, and those whose members are all available.

    A group requested by name is averaged over its available members, so results.json lists the members of each mean.

    Args:
        names: the requested names of tasks and groups.
        available: names of the tasks that have data.
        groups: all members of each group.

    Returns:
        For each reported group, its available members.
    """
    present = {group: [name for name in members if name in available] for group, members in groups.items()}
    return {
        group: members
        for group, members in present.items()
        if members and (group in names or len(members) == len(groups[group]))
    }


def _missing_data_message(task: Task, path: str, data_dir: Path, command: str) -> str:
    if not data_dir.is_dir():
        return (
            f"--data_dir {data_dir}: no such folder, and task {task.name} needs {path}; make it with: {command}, "
            "or set MIRROR_DATA_DIR"
        )
    if Path(path).is_absolute() and path in [file.path for file in task.files]:  # not of the data folder
        return f"task {task.name} needs {path}, which is missing; check the flag that names it"
    return f"task {task.name} needs {path}, which is missing; make it with: {command}, or skip the task with --skip_missing"

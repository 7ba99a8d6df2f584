"""From names of tasks to scores: resolve, check the data, score, average groups.

Knows `encode`; hands the encoder on to a task that trains and never looks into it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.errors import InputError
from mirror.evaluation.catalogue import Options, all_groups, all_tasks, resolve
from mirror.evaluation.task import Encode, Task


if TYPE_CHECKING:
    from mirror.encoder import Encoder


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedTask:
    """A task whose files were read and found sound, with the folder they are in."""

    task: Task
    data_dir: Path

    @property
    def name(self) -> str:
        return self.task.name

    def score(self, encode: Encode, encoder: Encoder | None = None) -> dict:
        """One entry of results.json: what the task returns, and what fixes the number beside it.

        Raises:
            InputError: the task trains, and there is no `encoder`.
        """
        if self.task.trains and encoder is None:
            raise InputError(f"task {self.name} trains a copy of the encoder; it cannot be scored by `encode` alone")
        start = time.perf_counter()
        fields = self.task.score(encoder if self.task.trains else encode, self.data_dir)
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
    """`MIRROR_DATA_DIR`, or the folder `data` where the command runs."""
    return Path(os.environ.get("MIRROR_DATA_DIR", "data"))


@dataclass(frozen=True)
class Plan:
    """The tasks behind a list of names, checked and ready for any number of models."""

    tasks: list[PreparedTask]
    missing: list[str]  # passed over for want of data
    groups: dict[str, list[str]]  # the members, scored here, of each group to report
    incomplete: dict[str, list[str]]  # the members that such a group lacks

    def run(self, encode: Encode, encoder: Encoder | None = None) -> dict:
        """The part of results.json that is about scores; a task that trains needs the `encoder`."""
        scored = {task.name: task.score(encode, encoder) for task in self.tasks}
        means = {
            group: sum(scored[name]["main_score"] for name in members) / len(members)
            for group, members in self.groups.items()
        }
        return {
            "tasks": scored,
            "groups": means,
            "group_members": self.groups,
            "group_members_missing": self.incomplete,
            "missing": self.missing,
        }


def make_plan(
    names: Sequence[str],
    data_dir: str | Path | None = None,
    skip_missing: bool = False,
    options: Options | None = None,
) -> Plan:
    """The tasks behind names of tasks and groups, all of their files read once.

    Args:
        data_dir: by default `MIRROR_DATA_DIR`.
        skip_missing: leave out tasks without data instead of stopping. A damaged file stops all the same.

    Raises:
        InputError: an unknown name, missing or damaged data; before hours of encoding rather than after.
    """
    data_dir = default_data_dir() if data_dir is None else Path(data_dir)
    known = all_tasks(data_dir, options)
    prepared, missing = [], []
    for task in resolve(names, known):
        absent = task.missing_files(data_dir)
        if not absent:
            task.check(data_dir)
            prepared.append(PreparedTask(task, data_dir))
        elif skip_missing and data_dir.is_dir():
            missing.append(task.name)
        else:
            raise InputError(_how_to_get(task, absent[0], data_dir))
    if missing:
        logger.warning("no data in %s for %s", data_dir, " ".join(missing))
    there = [task.name for task in prepared]
    groups = all_groups(known)
    reported = groups_to_report(names, there, groups)
    lacking = {group: [name for name in groups[group] if name not in there] for group in reported}
    return Plan(prepared, missing, reported, {group: members for group, members in lacking.items() if members})


def prepare_tasks(names: Sequence[str], data_dir: str | Path | None = None) -> list[PreparedTask]:
    """The tasks of `make_plan`, for a caller who averages nothing."""
    return make_plan(names, data_dir).tasks


def run_tasks(encode: Encode, names: Sequence[str], data_dir: str | Path | None = None, **options) -> dict:
    """Score `encode` on tasks and groups; arguments and errors are those of `make_plan`, the result that of `Plan.run`."""
    return make_plan(names, data_dir, **options).run(encode)


def groups_to_report(names: Sequence[str], there: list[str], groups: dict[str, list[str]]) -> dict[str, list[str]]:
    """The groups to average and over which tasks: those asked for by name, and those whose members are all there.

    The mean of a group that was asked for by name is over the members that have data, which is why the members are
    reported with it.
    """
    present = {group: [name for name in members if name in there] for group, members in groups.items()}
    return {group: of for group, of in present.items() if of and (group in names or len(of) == len(groups[group]))}


def _how_to_get(task: Task, path: str, data_dir: Path) -> str:
    if not data_dir.is_dir():
        return (
            f"--data_dir {data_dir}: no such folder, and task {task.name} needs {path}; "
            "data_scripts/prepare_eval_data.py builds one, MIRROR_DATA_DIR names it once and for all"
        )
    return (
        f"task {task.name} needs {path}, which is missing; data_scripts/prepare_eval_data.py --tasks {task.name} "
        "gets it or says how, --skip_missing goes on without"
    )

"""Every task and group by name: what each family declares, and what it finds in the data folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mirror.errors import InputError, nearest
from mirror.evaluation import (
    amazon,
    amazon_tuned,
    bli,
    docs_search,
    geometry,
    language_bias,
    linking,
    qnli,
    qqp,
    sts,
    tatoeba,
    transfer,
)
from mirror.evaluation.task import Task


@dataclass(frozen=True)
class Options:
    """What a user can set about the tasks themselves; each family's `tasks` says what its own do."""

    bli_vocabulary: str | None = None
    bli_self_learning: bool = False
    bel_add_mentions: bool = False
    isotropy_texts: str | None = None
    senteval_dir: str | None = None


def all_tasks(data_dir: Path, options: Options | None = None) -> dict[str, Task]:
    """Every task by name. Tasks whose data is missing are there too."""
    options = options or Options()
    families = [
        sts.tasks(data_dir),
        bli.tasks(data_dir, options.bli_vocabulary, options.bli_self_learning),
        linking.tasks(data_dir, options.bel_add_mentions),
        qnli.tasks(data_dir),
        qqp.tasks(data_dir),
        geometry.tasks(data_dir, options.isotropy_texts),
        transfer.tasks(data_dir, options.senteval_dir),
        tatoeba.tasks(data_dir),
        amazon.tasks(data_dir),
        amazon_tuned.tasks(data_dir),
        language_bias.tasks(data_dir),
        docs_search.tasks(data_dir),
    ]
    return {task.name: task for family in families for task in family}


def all_groups(tasks: dict[str, Task]) -> dict[str, list[str]]:
    """The names of each group's members, in the tasks' order."""
    groups: dict[str, list[str]] = {}
    for task in tasks.values():
        for group in task.groups:
            groups.setdefault(group, []).append(task.name)
    return groups


def resolve(names: Iterable[str], tasks: dict[str, Task]) -> list[Task]:
    """The tasks that `names` of tasks and groups stand for, each once, in the order asked.

    Raises:
        InputError: an unknown name; suggests the nearest.
    """
    groups = all_groups(tasks)
    chosen: dict[str, Task] = {}
    for name in names:
        if name not in tasks and name not in groups:
            raise InputError(f"unknown task '{name}'{nearest(name, [*tasks, *groups])}; --list_tasks prints them all")
        for member in groups.get(name, [name]):
            chosen[member] = tasks[member]
    return list(chosen.values())


def listing(tasks: dict[str, Task], data_dir: Path) -> str:
    """The text of `--list_tasks`: each task with its metric and whether its files are there, then each group."""
    lines = [f"tasks (x: its files are in {data_dir})"]
    for task in tasks.values():
        there = " " if task.missing_files(data_dir) else "x"
        lines.append(f"  {there} {task.name:<24} {task.metric:<18} {task.protocol}")
    lines.append("groups")
    lines += [f"    {name:<24} {' '.join(members)}" for name, members in all_groups(tasks).items()]
    return "\n".join(lines)

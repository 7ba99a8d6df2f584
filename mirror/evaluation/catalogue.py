"""All tasks by name: those that each family declares, those found in the data folder, and those of a user's own files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mirror.common.errors import InputError, did_you_mean
from mirror.data.files import ending_of
from mirror.evaluation import amazon, bli, geometry, labeled_pairs, linking, retrieval, sts, transfer
from mirror.evaluation.beir import folder_task
from mirror.evaluation.mteb_tasks import PREFIX, mteb_task
from mirror.evaluation.own_tables import table_task
from mirror.evaluation.tables import TABLE_ENDINGS
from mirror.evaluation.task import Options, Task


# A family is a module with `tasks(data_dir, options) -> list[Task]`. A new one needs nothing but its line here.
FAMILIES = (sts, bli, linking, labeled_pairs, geometry, transfer, retrieval, amazon)


def default_data_dir() -> Path:
    """Return the environment variable `MIRROR_DATA_DIR`, or `data` in the working directory."""
    return Path(os.environ.get("MIRROR_DATA_DIR", "data"))


def all_tasks(data_dir: Path, options: Options | None = None) -> dict[str, Task]:
    """Return every task by name, including tasks whose data is missing."""
    return {task.name: task for family in FAMILIES for task in family.tasks(data_dir, options or Options())}


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
            raise InputError(f"unknown task '{name}'{meant}; --list_tasks prints all names")
        for task in found:
            if chosen.setdefault(task.name, task).files != task.files:
                raise InputError(f"--tasks {name}: another task is called '{task.name}' too; rename one of them")
    return list(chosen.values())


def is_own(name: str) -> bool:
    """Return whether a value of --tasks is a path or `mteb:NAME`, and not the name of a built-in task."""
    exists = os.path.exists(name)  # pathlib raises for long names
    is_path = exists or "/" in name or ending_of(Path(name)) in TABLE_ENDINGS
    return is_path or name.startswith(PREFIX) or os.path.isdir(name.rpartition(":")[0])


def own_task(name: str) -> Task:
    """Return the task of `FOLDER`, `FOLDER:SPLIT`, `FILE` or `mteb:NAME`. Raise an `InputError` where none fits."""
    if name.startswith(PREFIX):
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

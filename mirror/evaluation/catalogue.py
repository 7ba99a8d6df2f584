"""All tasks and groups by name: those declared by each family and those found in the data folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mirror.common.errors import InputError, did_you_mean
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
    xeval,
)
from mirror.evaluation.task import Task


@dataclass(frozen=True)
class Options:
    """User settings of the task families; see the function `tasks` of each family."""

    second_model_name_or_path: str | None = None
    bli_vocabulary: str | None = None
    bli_self_learning: bool = False
    bel_add_mentions: bool = False
    isotropy_texts: str | None = None
    senteval_dir: str | None = None


def all_tasks(data_dir: Path, options: Options | None = None) -> dict[str, Task]:
    """Return every task by name, including tasks whose data is missing."""
    options = options or Options()
    families = [
        sts.tasks(data_dir),
        bli.tasks(
            data_dir, options.bli_vocabulary, options.bli_self_learning, bool(options.second_model_name_or_path)
        ),
        linking.tasks(data_dir, options.bel_add_mentions),
        qnli.tasks(data_dir),
        qqp.tasks(data_dir),
        geometry.tasks(data_dir, options.isotropy_texts),
        transfer.tasks(data_dir, options.senteval_dir),
        xeval.tasks(data_dir),
        tatoeba.tasks(data_dir),
        amazon.tasks(data_dir),
        amazon_tuned.tasks(data_dir),
        language_bias.tasks(data_dir),
        docs_search.tasks(data_dir),
    ]
    return {task.name: task for family in families for task in family}


def all_groups(tasks: dict[str, Task]) -> dict[str, list[str]]:
    """Return the members of each group, in the order of `tasks`."""
    groups: dict[str, list[str]] = {}
    for task in tasks.values():
        for group in task.groups:
            groups.setdefault(group, []).append(task.name)
    return groups


def resolve(names: Iterable[str], tasks: dict[str, Task]) -> list[Task]:
    """Expand names of tasks and groups to tasks, each once, in the requested order.

    Raises:
        InputError: an unknown name; the message suggests the most similar one.
    """
    groups = all_groups(tasks)
    chosen: dict[str, Task] = {}
    for name in names:
        if name not in tasks and name not in groups:
            raise InputError(
                f"unknown task '{name}'{did_you_mean(name, [*tasks, *groups])}; --list_tasks prints all names"
            )
        for member in groups.get(name, [name]):
            chosen[member] = tasks[member]
    return list(chosen.values())


def listing(tasks: dict[str, Task], data_dir: Path) -> str:
    """Return the text of `--list_tasks`: the tasks of each group by protocol, those with data marked."""
    # Not `is_available`, which takes seconds to collect this machine's docstrings for two tasks.
    available = {name for name, task in tasks.items() if not task.missing_files(data_dir)}
    alone = [name for name, task in tasks.items() if not task.groups]
    lines = [f"x: data available in {data_dir}"]
    for group, members in (all_groups(tasks) | {"": alone}).items():
        found = f"{len(available.intersection(members))} of {len(members)} available"
        lines += ["", f"group {group}, {found}" if group else f"in no group, {found}"]
        for protocol, names in _by_protocol(tasks, members).items():
            lines += [f"  {protocol}", *_in_columns([f"{'x' if name in available else ' '} {name}" for name in names])]
    return "\n".join(lines)


def _by_protocol(tasks: dict[str, Task], names: Iterable[str]) -> dict[str, list[str]]:
    """Names by metric and protocol; a source language is `*` in a protocol."""
    found: dict[str, list[str]] = {}
    for name in names:
        protocol = tasks[name].protocol.replace(f"{name.rpartition('_')[2]} -> ", "* -> ")
        found.setdefault(f"{tasks[name].metric}: {protocol}", []).append(name)
    return found


def _in_columns(cells: list[str], width: int = 100) -> list[str]:
    """Lines of at most `width` characters, the cells below each other."""
    longest = max(len(cell) for cell in cells) + 2
    rows = (cells[start : start + width // longest] for start in range(0, len(cells), width // longest))
    return ["    " + "".join(cell.ljust(longest) for cell in row).rstrip() for row in rows]

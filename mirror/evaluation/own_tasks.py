"""Tasks that a user brings: a folder of queries, a table, or a task of mteb, by the value of --tasks."""

from __future__ import annotations

import os
from pathlib import Path

from mirror.common.errors import InputError
from mirror.data.files import ending_of
from mirror.evaluation.beir import folder_task
from mirror.evaluation.mteb_tasks import PREFIX, mteb_task
from mirror.evaluation.own_tables import table_task
from mirror.evaluation.tables import TABLE_ENDINGS
from mirror.evaluation.task import Task


def is_own(name: str) -> bool:
    """Return whether a value of --tasks is a path or `mteb:NAME`, and not the name of a built-in task."""
    looks_like_path = (
        "/" in name or ending_of(Path(name)) in TABLE_ENDINGS or os.path.exists(name)
    )  # pathlib raises for long names
    return name.startswith(PREFIX) or looks_like_path or _folder_of_split(name) is not None


def own_task(name: str) -> Task:
    """Return the task of `FOLDER`, `FOLDER:SPLIT`, `FILE` or `mteb:NAME`.

    Raises:
        InputError: There is no such file, or it is wrong.
    """
    if name.startswith(PREFIX):
        return mteb_task(name)
    path, split = Path(name), None
    if not os.path.exists(name) and (found := _folder_of_split(name)):
        path, split = found
    if os.path.isdir(path):
        return folder_task(path, split)
    if not os.path.isfile(path):
        raise InputError(f"{name}: no such file")
    if ending_of(path) not in TABLE_ENDINGS:
        raise InputError(f"{name}: unknown ending; one of {', '.join(TABLE_ENDINGS)}, each also as .gz")
    return table_task(path)


def _folder_of_split(name: str) -> tuple[Path, str] | None:
    """Return folder and split of `FOLDER:SPLIT`, None if it is not one."""
    folder, colon, split = name.rpartition(":")
    return (Path(folder), split) if colon and os.path.isdir(folder) else None

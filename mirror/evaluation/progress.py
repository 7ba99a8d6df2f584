"""Scores of a run that has not finished: kept on disk, so that a task that fails later does not lose them."""

from __future__ import annotations

import json
from pathlib import Path

from mirror.common.atomic_files import atomic_write_text
from mirror.evaluation.results import to_python_scalar


class Progress:
    """The entries of results.json of the tasks scored so far, in `path` until `finish`.

    Args:
        path: the file; entries in it are used again if they were made with the same `key`.
        key: everything that scores depend on besides the task: model, pooling, length, precision, ...
        writes: whether this process writes; all processes of a run read.
    """

    def __init__(self, path: Path, key: dict, writes: bool = True):
        self.path, self.key, self.writes = path, json.loads(json.dumps(key, default=str)), writes
        self.tasks: dict[str, dict] = {}
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            self.tasks = stored["tasks"] if stored["key"] == self.key else {}
        except (OSError, ValueError, KeyError, TypeError):
            return  # nothing was kept, or it is damaged

    def add(self, name: str, entry: dict) -> None:
        self.tasks[name] = entry
        if self.writes:
            content = {"key": self.key, "tasks": self.tasks}
            atomic_write_text(self.path, json.dumps(content, indent=2, default=to_python_scalar) + "\n")

    def finish(self) -> None:
        """Remove the file: results.json has the scores now."""
        if self.writes:
            self.path.unlink(missing_ok=True)

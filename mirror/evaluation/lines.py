"""Text files without a header, as data files of a task: word lists, sentences, other people's `a||b||c` formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirror.errors import InputError
from mirror.evaluation.task import Columns, DataFile


@dataclass(frozen=True)
class LineFile(DataFile):
    """One entry a line, UTF-8, no header. `path` may be absolute; blank lines are passed over."""

    separator: str | None = None  # None: the whole line is the one column

    def read(self, data_dir: Path) -> Columns:
        """The file as columns of stripped strings.

        Raises:
            InputError: missing, not UTF-8, empty, or a line with another number of fields than `columns`.
        """
        path = data_dir / self.path
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path} as UTF-8 text: {error}") from error
        rows = []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                fields = line.split(self.separator) if self.separator else [line]
                if len(fields) != len(self.columns):
                    raise InputError(f"{path}, line {number}: {len(fields)} fields, expected {len(self.columns)}")
                rows.append([field.strip() for field in fields])
        self._check_size(path, len(rows))
        return {name: list(values) for name, values in zip(self.columns, zip(*rows, strict=True), strict=True)}

"""Text files without a header as data files of a task: word lists, sentences, `a||b||c` formats of other projects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirror.common.errors import InputError
from mirror.evaluation.task import Columns, DataFile


@dataclass(frozen=True)
class LineFile(DataFile):
    """A UTF-8 file with one entry per line and no header. `path` may be absolute; blank lines are skipped."""

    separator: str | None = None  # None: the whole line is the only column

    def read(self, data_dir: Path) -> Columns:
        """Read and validate the file; return its columns as lists of stripped strings.

        Raises:
            InputError: the file is missing, not UTF-8 or empty, or a line has the wrong number of fields.
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


class WordList(LineFile):
    """A file with one word per line, in which every line is a word and no word is repeated."""

    def read(self, data_dir: Path) -> Columns:
        """Read and validate the file; return its column of stripped words.

        Raises:
            InputError: the file is missing, not UTF-8 or empty, or a line is blank or repeats an earlier one.
        """
        columns = super().read(data_dir)
        path, seen = data_dir / self.path, {}
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
        for number, word in enumerate(map(str.strip, lines), start=1):
            if not word:
                raise InputError(f"{path}, line {number} is blank; give one word per line")
            if word in seen:
                raise InputError(f"{path}, line {number} repeats '{word}' of line {seen[word]}; remove repeated words")
            seen[word] = number
        return columns

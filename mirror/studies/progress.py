"""What a study says and writes while its cells run: one line and the table as it stands after each cell."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.studies.cells import Study
from mirror.studies.execution import LOG, estimated_seconds, finished, summary
from mirror.studies.plan import Job
from mirror.studies.report import write_figure, write_table
from mirror.studies.setup import Setup
from mirror.studies.shared_cells import give


logger = logging.getLogger("run_study")


@dataclass
class Progress:
    """The cells of a study that are done and those that this run has left.

    Args:
        records: name of each cell -> its record, or None if the cell is not finished.
        left: the cells to run now.
        left_out: lines that explain which cells are not part of the study.
        command: the command line, shown in table.md.
        cache: folder that finished cells are copied to.
    """

    study: Study
    setup: Setup
    records: dict[str, dict | None]
    left: list[Job]
    left_out: Sequence[str]
    command: str
    num_processes: int
    cache: Path | None

    def __post_init__(self):
        self.total = len(self.left)

    @property
    def done(self) -> list[dict]:
        return [record for record in self.records.values() if record]

    def ended(self, job: Job, reason: str) -> None:
        """Report a cell that has ended, and write the table anew.

        Args:
            reason: why it failed; empty: it did not.
        """
        self.left.remove(job)
        self.records[job.name] = record = finished(job)
        result = f" FAILED: {reason} (full log: {job.folder / LOG})" if reason else f": {summary(record)}"
        seconds, _ = estimated_seconds(self.left, self.done, self.num_processes)
        rest = f"; about {format_duration(seconds)} left" if self.left else ""
        logger.info("[%d/%d] %s%s%s", self.total - len(self.left), self.total, job.name, result, rest)
        if not reason:
            self.write_table()
            if self.cache:
                give(job, self.cache)

    def write_table(self) -> str:
        """Write table.md and results.csv, and return the table."""
        return write_table(self.study, self.setup, self.records, self.left_out, self.command)

    def write_figure(self) -> None:
        """Draw the figure."""
        write_figure(self.study, self.setup, self.records)


def format_duration(seconds: float) -> str:
    """Format a duration in minutes, or in hours from 1.5 hours."""
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"

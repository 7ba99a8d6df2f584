"""Execution of the stages of CMLM's studies: each is run once, resumed where it stopped, and shared by the cells that need it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

from mirror.common.atomic_files import atomic_write_text
from mirror.studies.chains import StageRun, is_finished
from mirror.studies.setup import Flags
from mirror.training.resumable import last_complete_checkpoint


def finish_stages(stages: Sequence[StageRun], run_script: Callable[[str, Flags], None]) -> None:
    """Run the stages of a chain that are not finished, one after the other.

    Two processes never run the same stage: the second waits, and finds it finished.

    Args:
        run_script: called with the name of a script and its flags.
    """
    for run in stages:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{run.folder}.lock"):
            if not is_finished(run):
                _finish(run, run_script)


def remove_stages(folder: Path) -> None:
    """Delete the models of all stages in `folder`, and then their records: a stage without a record would be refused."""
    for stage in filter(Path.is_dir, folder.glob("*")):
        shutil.rmtree(stage, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _finish(run: StageRun, run_script: Callable[[str, Flags], None]) -> None:
    checkpoint = last_complete_checkpoint(run.folder)
    if not checkpoint:
        shutil.rmtree(run.folder, ignore_errors=True)  # left by a run that was interrupted before its first checkpoint
    atomic_write_text(run.record, json.dumps(run.identity, indent=2, ensure_ascii=False) + "\n")
    run_script("run_cmlm.py", run.flags | ({"resume_from_checkpoint": ["true"]} if checkpoint else {}))

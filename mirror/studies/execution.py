"""Execution of a study's cells: run_mirror.py, run_cmlm.py and run_eval.py in processes of their own, resumable.

A cell is finished if its folder contains `cell.json`, which is written last and atomically.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mirror.common.atomic_files import atomic_write_text
from mirror.common.errors import InputError
from mirror.studies import processes
from mirror.studies.agreement import agreement
from mirror.studies.chains import ChainJob, different_settings
from mirror.studies.own_text import own_text_of
from mirror.studies.plan import Flags, Job, as_arguments
from mirror.studies.stage_runs import finish_stages
from mirror.training.choices import CRITERIA
from mirror.training.run_record import RunRecord


RESULT, LOG = "cell.json", "log.txt"
PACKAGES = ("python", "torch", "transformers", "sentence-transformers")  # their versions are reported below the table
ASSUMED_TEXTS_PER_SECOND = 200  # until a cell of the study has been measured
ASSUMED_SECONDS_TO_SCORE = 60


class CellError(InputError):
    """A command of a cell failed; the message contains the last error line of its log."""


def finished(job: Job) -> dict | None:
    """Return the record of a finished cell, or None if the cell is not finished.

    Raises:
        InputError: the folder contains a cell that was run with other flags, another model or other corpora.
    """
    path = job.folder / RESULT
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    if different := different_settings(record["identity"], job.identity):
        raise InputError(
            f"{path} was created with another {', '.join(different)}; give another --output_dir or delete {job.folder}"
        )
    return record


def run_jobs(
    jobs: Sequence[Job], num_processes: int, keep_models: bool, ended: Callable[[Job, str], None]
) -> dict[str, str]:
    """Run `jobs`, `num_processes` at a time.

    Args:
        keep_models: keep the weights of each trained model.
        ended: called with each job that ends and an empty string, or the reason why it failed.

    Returns:
        Name of each failed job -> reason. A failed job does not stop the others.

    Raises:
        SystemExit: after SIGTERM or Ctrl-C; the processes have ended, and finished cells are kept.
    """
    failures: dict[str, str] = {}

    def note(index: int, status: int) -> None:
        job = jobs[index]
        if status:
            failures[job.name] = _reason(job, status)
        ended(job, failures.get(job.name, ""))

    calls = [partial(run_job, job, keep_models) for job in jobs]
    processes.run_in_processes(calls, [job.folder / LOG for job in jobs], num_processes, note)
    return failures


def run_job(job: Job, keep_models: bool) -> None:
    """Train the encoder or both encoders of a job if it has corpora, score them, and write the record, `cell.json`.

    Raises:
        CellError: a script failed.
    """
    model = job.folder / "model"
    _remove_models(job)  # left by an interrupted run
    start = time.perf_counter()
    for flags in (job.train, job.train_second):
        if flags:
            _run_script(job, "run_mirror.py", flags)
    if isinstance(job, ChainJob):
        finish_stages(job.stages, partial(_run_script, job))
    trained = time.perf_counter()
    _run_script(job, "run_eval.py", job.evaluate)
    tasks = json.loads((job.folder / "scores" / "results.json").read_text(encoding="utf-8"))["tasks"]
    if "select_by" in job.cell.flags:
        state = json.loads((model / "trainer_state.json").read_text(encoding="utf-8"))
        dev = job.train["eval_tasks"][0]
        tasks |= {f"selection_{name}": agreement(state["log_history"], name, dev) for name in CRITERIA}
    if job.train and (own_text := own_text_of(RunRecord.load(model))):
        tasks["own_text"] = own_text
    record = {
        "row": job.cell.row,
        "part": job.cell.part,
        "seed": job.seed,
        "texts": job.texts,
        "seconds_training": round(trained - start, 1),
        "seconds_scoring": round(time.perf_counter() - trained, 1),
        "run_on": _run_on(job),
        "identity": job.identity,
        "tasks": tasks,
    }
    if not keep_models:
        _remove_models(job)
    atomic_write_text(job.folder / RESULT, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def estimated_seconds(jobs: Sequence[Job], done: Sequence[dict], num_processes: int) -> tuple[float, str]:
    """Estimate the duration of `jobs` from the speed of finished cells or from assumed speeds.

    Args:
        done: records of finished cells.

    Returns:
        Seconds, and a text that explains the estimate.
    """
    trained = [record for record in done if record["texts"]]
    texts, seconds = (sum(record[key] for record in trained) for key in ("texts", "seconds_training"))
    pace = texts / seconds if seconds else ASSUMED_TEXTS_PER_SECOND
    scoring = sum(record["seconds_scoring"] for record in done) / len(done) if done else ASSUMED_SECONDS_TO_SCORE
    basis = f"{pace:.0f} texts/s in training and {scoring:.0f} s to score a cell"
    measured = f"measured on {len(done)} finished cell{'s' * (len(done) > 1)}"
    basis += f", {measured}" if seconds else ", assumed" if not done else ", training speed assumed"
    each = [job.texts / pace + scoring for job in jobs]
    return max([sum(each) / num_processes, *each]), basis


def _remove_models(job: Job) -> None:
    for folder in (job.folder / name for name in ("model", "second_model")):
        if folder.exists():
            shutil.rmtree(folder)


def _run_script(job: Job, script: str, flags: Flags) -> None:
    arguments = as_arguments(flags)
    sys.stdout.write(f"$ {script} {' '.join(arguments)}\n")
    if status := processes.run_script(script, arguments):
        raise CellError(f"{script} exited with {status}: {_last_line(job.folder / LOG)}")


def _run_on(job: Job) -> str | None:
    """Return the hardware and versions recorded by the last script that trained, or None if nothing was trained."""
    stages = job.stages if isinstance(job, ChainJob) else ()
    if not job.train and not stages:
        return None
    record = RunRecord.load(stages[-1].folder if stages else job.folder / "model")
    return ", ".join([record.hardware, *(f"{package} {record.versions[package]}" for package in PACKAGES)])


def _reason(job: Job, status: int) -> str:
    """Return why the process of a job failed."""
    killed = f"ended by {signal.Signals(-status).name}: " if status < 0 else ""
    return killed + _last_line(job.folder / LOG)


def _last_line(path: Path) -> str:
    """Return the last error line of a log, or its last line if there is none."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [
        "nothing is in its log; is the disk full?"
    ]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines)[-1][:300]


def summary(record: dict) -> str:
    """Return the scores of a finished cell and its duration in one line."""
    scores = [f"{name} {task['main_score']:.4f}" for name, task in record["tasks"].items()]
    return f"{', '.join(scores)} ({record['seconds_training'] + record['seconds_scoring']:.0f} s)"

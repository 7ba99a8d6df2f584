"""Execution of a study's cells: subprocesses of run_mirror.py and run_eval.py, several in parallel, resumable.

A cell is finished if its folder contains `cell.json`, which is written last and atomically.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import torch

from mirror.common.atomic_files import atomic_write_text
from mirror.common.errors import InputError
from mirror.studies.agreement import agreement
from mirror.studies.chains import ChainJob, different_settings
from mirror.studies.own_text import own_text_of
from mirror.studies.plan import Flags, Job, as_arguments
from mirror.studies.stage_runs import finish_stages
from mirror.training.run_record import RunRecord


ROOT = Path(__file__).resolve().parents[2]
RESULT = "cell.json"
PACKAGES = ("python", "torch", "transformers", "sentence-transformers")  # their versions are reported below the table
ASSUMED_TEXTS_PER_SECOND = 200  # until a cell of the study has been measured
ASSUMED_SECONDS_TO_SCORE = 60


class CellError(Exception):
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
    jobs: Sequence[Job], num_processes: int, keep_models: bool, report: Callable[[str], None]
) -> dict[str, str]:
    """Run `jobs`, `num_processes` at a time.

    Args:
        keep_models: keep the weights of each trained model.
        report: called with one line when a job ends.

    Returns:
        Name of each failed job -> error message. A failed job does not stop the others.
    """
    slots: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for environment in environments(num_processes):
        slots.put(environment)

    def run_in_slot(job: Job) -> dict:
        environment = slots.get()
        try:
            return run_job(job, keep_models, environment)
        finally:
            slots.put(environment)

    failures: dict[str, str] = {}
    executor = ThreadPoolExecutor(num_processes)
    try:
        running = {executor.submit(run_in_slot, job): job for job in jobs}
        for number, future in enumerate(as_completed(running), start=1):
            job, progress = running[future], f"[{number}/{len(jobs)}]"
            try:
                report(f"{progress} {job.name}: {_summary(future.result())}")
            except (CellError, InputError, OSError) as error:
                failures[job.name] = str(error)
                report(f"{progress} {job.name} FAILED: {error} (full log: {job.folder / 'log.txt'})")
    finally:
        executor.shutdown(cancel_futures=True)  # otherwise an interrupt would start the next cell
    return failures


def run_job(job: Job, keep_models: bool, environment: dict[str, str]) -> dict:
    """Train the encoder or both encoders of a job if it has corpora, score them, and write the record.

    Returns:
        The record, the content of `cell.json`.

    Raises:
        CellError: a command failed.
    """
    model = job.folder / "model"
    _remove_models(job)  # left by an interrupted run
    job.folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with (job.folder / "log.txt").open("w", encoding="utf-8") as log:
        for flags in (job.train, job.train_second):
            if flags:
                _run_script("run_mirror.py", flags, log, environment)
        if isinstance(job, ChainJob):
            finish_stages(job.stages, partial(_run_script, log=log, environment=environment))
        trained = time.perf_counter()
        _run_script("run_eval.py", job.evaluate, log, environment)
    tasks = json.loads((job.folder / "scores" / "results.json").read_text(encoding="utf-8"))["tasks"]
    if "select_by" in job.train:
        state = json.loads((model / "trainer_state.json").read_text(encoding="utf-8"))
        tasks["selection"] = agreement(state["log_history"], job.train["eval_tasks"][0])
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
    atomic_write_text(job.folder / RESULT, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    if not keep_models:
        _remove_models(job)
    return record


def environments(num_processes: int) -> list[dict[str, str]]:
    """Return the environment of each process: its share of the CPU cores, and one GPU if there are any."""
    threads = str(max(1, (os.cpu_count() or 1) // num_processes))
    common = {"OMP_NUM_THREADS": threads} | os.environ
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = asked.split(",") if asked else [str(number) for number in range(torch.cuda.device_count())]
    chosen = [{"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {} for number in range(num_processes)]
    return [common | gpu for gpu in chosen]


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
    total = sum(job.texts / pace + scoring for job in jobs)
    return total / num_processes, basis


def _remove_models(job: Job) -> None:
    for name in ("model", "second_model"):
        shutil.rmtree(job.folder / name, ignore_errors=True)


def _run_script(script: str, flags: Flags, log, environment: dict[str, str]) -> None:
    log.write(f"$ {script} {' '.join(as_arguments(flags))}\n")
    log.flush()
    command = [sys.executable, str(ROOT / script), *as_arguments(flags)]
    done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    if done.returncode:
        raise CellError(f"{script} exited with {done.returncode}: {_last_line(Path(log.name))}")


def _run_on(job: Job) -> str | None:
    """Return the hardware and versions recorded by the last script that trained, or None if nothing was trained."""
    stages = job.stages if isinstance(job, ChainJob) else ()
    if not job.train and not stages:
        return None
    record = RunRecord.load(stages[-1].folder if stages else job.folder / "model")
    return ", ".join([record.hardware, *(f"{package} {record.versions[package]}" for package in PACKAGES)])


def _last_line(path: Path) -> str:
    """Return the last error line of a log, or its last line if there is none."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines)[-1][:300]


def _summary(record: dict) -> str:
    scores = [f"{name} {task['main_score']:.4f}" for name, task in record["tasks"].items()]
    return f"{', '.join(scores)} ({record['seconds_training'] + record['seconds_scoring']:.0f} s)"

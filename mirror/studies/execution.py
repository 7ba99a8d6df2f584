"""Running the cells of a study: each in a subprocess of run_mirror.py and one of run_eval.py, several at once, resumable.

A finished cell is a folder with `cell.json`, which is written last and whole.
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
from pathlib import Path

import torch

from mirror.errors import InputError
from mirror.files import write_whole
from mirror.studies.agreement import agreement
from mirror.studies.plan import Flags, Job, as_arguments


ROOT = Path(__file__).resolve().parents[2]
RESULT = "cell.json"
PACKAGES = ("python", "torch", "transformers", "sentence-transformers")  # whose versions stand under a table
ASSUMED_TEXTS_PER_SECOND = 200  # until a cell of the study has said better
ASSUMED_SECONDS_TO_SCORE = 60


class CellError(Exception):
    """A command of a cell failed; the message is its own last line."""


def finished(job: Job) -> dict | None:
    """The record of a finished cell, None if there is none.

    Raises:
        InputError: its folder holds a cell that was run with other flags, models or corpora.
    """
    path = job.folder / RESULT
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    if different := _differences(record["identity"], job.identity):
        raise InputError(
            f"{path} was made with another {', '.join(different)}; give another --output_dir, or delete {job.folder}"
        )
    return record


def run_jobs(
    jobs: Sequence[Job], num_processes: int, keep_models: bool, report: Callable[[str], None]
) -> dict[str, str]:
    """Run `jobs`, `num_processes` at a time, and report each in one line as it ends.

    Returns:
        Name of each failed job and why; the others go on.
    """
    slots: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for environment in environments(num_processes):
        slots.put(environment)

    def in_a_slot(job: Job) -> dict:
        environment = slots.get()
        try:
            return run_job(job, keep_models, environment)
        finally:
            slots.put(environment)

    failures: dict[str, str] = {}
    executor = ThreadPoolExecutor(num_processes)
    try:
        running = {executor.submit(in_a_slot, job): job for job in jobs}
        for number, future in enumerate(as_completed(running), start=1):
            job, place = running[future], f"[{number}/{len(jobs)}]"
            try:
                report(f"{place} {job.name}: {_summary(future.result())}")
            except (CellError, InputError, OSError) as error:
                failures[job.name] = str(error)
                report(f"{place} {job.name} FAILED: {error} (all of it: {job.folder / 'log.txt'})")
    finally:
        executor.shutdown(cancel_futures=True)  # or an interrupt would start the next cell
    return failures


def run_job(job: Job, keep_models: bool, environment: dict[str, str]) -> dict:
    """Train if there is something to train, score, and write the record.

    Raises:
        CellError
    """
    model = job.folder / "model"
    shutil.rmtree(model, ignore_errors=True)  # of an interrupted run
    job.folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with (job.folder / "log.txt").open("w", encoding="utf-8") as log:
        if job.train:
            _command("run_mirror.py", job.train, log, environment)
        trained = time.perf_counter()
        _command("run_eval.py", job.evaluate, log, environment)
    tasks = json.loads((job.folder / "scores" / "results.json").read_text(encoding="utf-8"))["tasks"]
    if "select_by" in job.train:
        state = json.loads((model / "trainer_state.json").read_text(encoding="utf-8"))
        tasks["selection"] = agreement(state["log_history"], job.train["eval_tasks"][0])
    record = {
        "row": job.cell.row,
        "part": job.cell.part,
        "seed": job.seed,
        "texts": job.texts,
        "seconds_training": round(trained - start, 1),
        "seconds_scoring": round(time.perf_counter() - trained, 1),
        "run_on": _run_on(model) if job.train else None,
        "identity": job.identity,
        "tasks": tasks,
    }
    write_whole(job.folder / RESULT, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    if not keep_models:
        shutil.rmtree(model, ignore_errors=True)
    return record


def environments(num_processes: int) -> list[dict[str, str]]:
    """One for each process: its share of the cores, and one GPU where there are any."""
    threads = str(max(1, (os.cpu_count() or 1) // num_processes))
    common = {"OMP_NUM_THREADS": threads} | os.environ
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = asked.split(",") if asked else [str(number) for number in range(torch.cuda.device_count())]
    chosen = [{"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {} for number in range(num_processes)]
    return [common | gpu for gpu in chosen]


def estimated_seconds(jobs: Sequence[Job], done: Sequence[dict], num_processes: int) -> tuple[float, str]:
    """How long `jobs` take, and what that rests on: the pace of the cells already done, or an assumption."""
    trained = [record for record in done if record["texts"]]
    texts, seconds = (sum(record[key] for record in trained) for key in ("texts", "seconds_training"))
    pace = texts / seconds if seconds else ASSUMED_TEXTS_PER_SECOND
    scoring = sum(record["seconds_scoring"] for record in done) / len(done) if done else ASSUMED_SECONDS_TO_SCORE
    basis = f"{pace:.0f} texts/s in training and {scoring:.0f} s to score a cell"
    basis += f", measured on {len(done)} done" if seconds else ", assumed" if not done else ", the pace assumed"
    total = sum(job.texts / pace + scoring for job in jobs)
    return total / num_processes, basis


def _command(script: str, flags: Flags, log, environment: dict[str, str]) -> None:
    log.write(f"$ {script} {' '.join(as_arguments(flags))}\n")
    log.flush()
    command = [sys.executable, str(ROOT / script), *as_arguments(flags)]
    done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    if done.returncode:
        raise CellError(f"{script} exited with {done.returncode}: {_last_line(Path(log.name))}")


def _run_on(model: Path) -> str:
    """Hardware and versions, as run_mirror.py noted them."""
    facts = json.loads((model / "train_results.json").read_text(encoding="utf-8"))
    return ", ".join([facts["hardware"], *(f"{package} {facts['versions'][package]}" for package in PACKAGES)])


def _last_line(path: Path) -> str:
    """What the script said was wrong, or whatever it said last."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines)[-1][:300]


def _summary(record: dict) -> str:
    scores = [f"{name} {task['main_score']:.4f}" for name, task in record["tasks"].items()]
    return f"{', '.join(scores)} ({record['seconds_training'] + record['seconds_scoring']:.0f} s)"


def _differences(one: dict, other: dict) -> list[str]:
    """What two identities do not share, as flags and names of corpora."""
    return [
        f"--{key}" if script.endswith(".py") else key
        for script in other
        for key in sorted({*one[script], *other[script]})
        if one[script].get(key) != other[script].get(key)
    ]

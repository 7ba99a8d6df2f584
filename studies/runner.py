"""Execution of a study: its cells in processes of their own, what other studies have done already, progress and table."""

from __future__ import annotations

import csv
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.assets import EMBEDDED_MODEL
from mirror.common.files import StoredWork, atomic_write_text, digest
from studies.cell import LOG
from studies.jobs import Job, as_arguments
from studies.pages import FACTS, format_report
from studies.scores import Base, format_csv, published_beside
from studies.setup import Setup, model_type
from studies.study import Study


logger = logging.getLogger("run_study")

RUN_STUDY = Path(__file__).resolve().parents[1] / "run_study.py"
STOPS = (signal.SIGTERM, signal.SIGINT)
POLL_SECONDS = 0.05
# Where these are not the published settings.
DEFAULTS = "sentences of BERT by a mean without padding, no repeated texts"
NAMED = 6  # unfinished cells in the notes below the table


@dataclass
class StudyRun:
    """A study with its jobs. Refuses an output folder that contains cells with other settings."""

    study: Study
    setup: Setup
    jobs: Sequence[Job]
    left_out: Sequence[str]  # lines that explain which cells are not part of the study
    command: str  # the command line, shown in table.md
    num_processes: int = 1
    cache: Path | None = None  # folder of finished cells that studies share

    def __post_init__(self):
        # Name of each cell -> its content, or None if it is not finished.
        self.records: dict[str, dict | None] = {job.name: job.finished() for job in self.jobs}

    @property
    def done(self) -> list[dict]:
        return [record for record in self.records.values() if record]

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if self.records[job.name] is None]

    def take_from_cache(self, jobs: Sequence[Job]) -> None:
        """Copy the cells that another study has finished to this study's folder."""
        for job in jobs:
            if job.is_shareable and (content := self._shared(job).content()):
                job.work.save(content | {"row": job.cell.row, "part": job.cell.part})
                self.records[job.name] = job.finished()

    def run(self, jobs: Sequence[Job], keep_models: bool = False) -> list[str]:
        """Run each job in a process of its own, `num_processes` at a time, and write the table anew after each.

        Return the names of the cells that failed. SIGTERM, Ctrl-C (`SystemExit` with 128 + the signal's number) and a log
        that cannot be written (`OSError`) end the processes; finished cells are kept.
        """
        free, left, failed = environments(self.num_processes), list(jobs), []
        running: list[tuple[subprocess.Popen, Job, dict[str, str]]] = []
        # Only noted, not raised: between the start of a process and its entry, an exception would leave one that nobody ends.
        signals: list[int] = []
        handlers = {each: signal.signal(each, lambda number, _: signals.append(number)) for each in STOPS}
        try:
            waiting = iter(jobs)
            while left or signals:
                while free and not signals and (job := next(waiting, None)):
                    environment = free.pop(0)
                    running.append((start_cell(job.write(keep_models), environment), job, environment))
                if signals:
                    cells = f"{len(self.done)} of {len(self.jobs)} cells"
                    logger.warning("stopped; %s are done; run the same command again for the rest", cells)
                    sys.exit(128 + signals[0])
                ended = [each for each in running if each[0].poll() is not None]
                for process, job, environment in ended:
                    running.remove((process, job, environment))
                    free.append(environment)
                    left.remove(job)
                    if not self._finish(job, process.returncode, f"[{len(jobs) - len(left)}/{len(jobs)}]", left):
                        failed.append(job.name)
                if not ended:
                    time.sleep(POLL_SECONDS)
        finally:
            for process, *_ in running:
                process.terminate()
            for process, *_ in running:
                process.wait()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return failed

    def _finish(self, job: Job, status: int, place: str, left: Sequence[Job]) -> bool:
        """Log how a job ended, and store what it did. Return whether it succeeded."""
        self.records[job.name] = record = job.finished() if status == 0 else None
        if record:
            scores = [f"{name} {task['main_score']:.4f}" for name, task in record["tasks"].items()]
            result = f": {', '.join(scores)} ({record['seconds_training'] + record['seconds_scoring']:.0f} s)"
        else:
            path = job.folder / LOG
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            killed = f"ended by {signal.Signals(-status).name}: " if status < 0 else ""
            reason = killed + (errors or lines or ["nothing is in its log; is the disk full?"])[-1][:300]
            memory = "; SIGKILL often means that memory ran out" if status == -signal.SIGKILL else ""
            result = f" FAILED: {reason} (full log: {path}{memory})"
        logger.info("%s %s%s%s", place, job.name, result, f"; {self.estimate(left)} left" if left else "")
        if record:
            self.write_table()
            if self.cache and job.is_shareable:
                self._shared(job).save(record)
        return bool(record)

    def write_table(self) -> Base:
        """Write table.md, results.csv and study.json in the output folder, and return what a figure needs."""
        study, setup = self.study, self.setup
        facts = {
            "study": study.name,
            "model": setup.model,
            "model_type": model_type(setup.model),
            "command": self.command,
        }
        if study.ranks:
            facts["ranks"] = words_in_corpora(study, setup)
        base = Base(study, self.done, facts | {"published": published_beside(study, setup.models_of)})
        seeds = " ".join(map(str, setup.seeds))
        several = len(setup.seeds) > 1
        aggregation = f"mean ± sample standard deviation over seeds {seeds}" if several else f"seed {seeds}"
        notes = [f"{setup.model}; {aggregation}; scores are fractions."]
        for part, model in setup.language_models.items():
            notes.append(f"{part}: {EMBEDDED_MODEL.name if Path(model) == EMBEDDED_MODEL else model}")
        notes += settings_of(study, setup)
        if setup.max_train_samples:
            notes.append(f"Reduced: every cell was trained on at most {setup.max_train_samples:,} texts.")
        chosen_on = {row: scores[study.choose_on] for row, scores in base.scores.items() if study.choose_on in scores}
        if chosen_on:
            best = max(chosen_on, key=lambda row: chosen_on[row].mean)
            notes.append(f"Selected on {study.choose_on}: {best}.")
        notes += [study.note] if study.note else []
        if self.waiting:
            more = f" and {len(self.waiting) - NAMED:,} more" if len(self.waiting) > NAMED else ""
            notes.append(f"Not done: {', '.join(job.name for job in self.waiting[:NAMED])}{more}.")
        run_on = dict.fromkeys(record["run_on"] for record in self.done if record.get("run_on"))
        notes += [line[:1].upper() + line[1:] for line in (*run_on, *self.left_out)]
        base.facts["notes"] = "".join(f"- {note}\n" for note in notes)
        page = f"# {study.title}\n\n    {self.command}\n\n{format_report(base)}\n{base.facts['notes']}"
        atomic_write_text(setup.output_dir / "table.md", page)
        atomic_write_text(setup.output_dir / "results.csv", format_csv(study, self.done))
        atomic_write_text(setup.output_dir / FACTS, json.dumps(base.facts, indent=2, ensure_ascii=False) + "\n")
        return base

    def estimate(self, jobs: Sequence[Job]) -> str:
        """Return how long `jobs` will take, from the mean duration of the cells that are done."""
        seconds = [record["seconds_training"] + record["seconds_scoring"] for record in self.done]
        if not seconds:
            return "an unknown time until the first cell is done"
        left = sum(seconds) / len(seconds) * -(-len(jobs) // self.num_processes)
        return f"about {left / 3600:.1f} hours" if left >= 5400 else f"about {max(1, round(left / 60))} min"

    def _shared(self, job: Job) -> StoredWork:
        return StoredWork(self.cache / f"{digest(job.identity)}.json", job.identity)


def words_in_corpora(study: Study, setup: Setup) -> dict[str, int]:
    """Count the distinct words of a task that are in the corpus of each row (Mirror-BERT Figure 8, blue)."""
    with (setup.data_dir / study.ranks).open(encoding="utf-8", newline="") as lines:
        pairs = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        words = {row[column].strip().lower() for row in pairs for column in ("word1", "word2")}
    paths = {cell.row: setup.corpus(cell.corpora[0]) for cell in study.cells}
    texts = {row: path.read_text(encoding="utf-8") for row, path in paths.items() if path.is_file()}
    return {row: len(words & {line.strip().lower() for line in text.split("\n")}) for row, text in texts.items()}


def settings_of(study: Study, setup: Setup) -> list[str]:
    """Return what the cells were trained with: the published recipes, or this project's defaults."""
    if setup.modern:
        return [f"Settings: this project's defaults (--modern; {DEFAULTS}), not the published recipes."]
    if study.is_cmlm:
        recipes = dict.fromkeys(f"mirror/recipes/{stage.recipe}.yaml" for cell in study.cells for stage in cell.chain)
        return [f"Settings as published: {', '.join(recipes)}; flags after -- come on top."]
    notes, recipes, lacking = [], {}, {}  # dicts as ordered sets
    for cell in study.cells:
        for model in setup.models_of(cell) if cell.corpora else ():
            if recipe := setup.recipe_of(cell, model):
                recipes[f"mirror/recipes/{recipe}.yaml"] = None
            else:
                lacking[f"{model} ({cell.level}{', drophead' * cell.drophead})"] = None
    changed = f", then {' '.join(as_arguments(setup.extra))}" if setup.extra else ""
    if recipes:
        notes.append(f"Settings as published: {', '.join(recipes)}{changed}.")
    if lacking:
        names = ", ".join(lacking)
        why = f"because there is no recipe for {names}"
        notes.append(f"Settings: this project's defaults ({DEFAULTS}){changed}, {why}.")
    return notes


def environments(num_processes: int) -> list[dict[str, str]]:
    """Return what each process has of its own: its share of the cores, and one GPU if there are any."""
    import torch

    # Slurm or taskset may give a process fewer cores than the machine has.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // num_processes))
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = asked.split(",") if asked else [str(number) for number in range(torch.cuda.device_count())]
    own = [{"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {} for number in range(num_processes)]
    return [{"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"} | each for each in own]


def start_cell(job_file: Path, environment: dict[str, str]) -> subprocess.Popen:
    """Start the process of a cell, with its output in the log beside `job_file`."""
    with (job_file.parent / LOG).open("w", encoding="utf-8") as log:
        command = [sys.executable, str(RUN_STUDY), "--cell", str(job_file)]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})

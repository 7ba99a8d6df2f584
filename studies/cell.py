"""One cell of a study, in a process of its own: train, score, write `cell.json`.

`run_study.py --cell JOB` runs it. The scripts run one after the other in this process, so a cell imports torch once.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mirror.common.errors import InputError
from mirror.common.files import StoredWork, acquire_lock, is_complete, lock_output_dir
from mirror.training.options import OWN_TEXT
from mirror.training.record import RunRecord


JOB, RESULT, LOG = "job.json", "cell.json", "log.txt"
PACKAGES = ("python", "torch", "transformers", "sentence-transformers")  # their versions are reported below the table


def run_cell(path: Path) -> None:
    """Run the cell that `path`, a job.json written by `studies.jobs.Job.write`, describes."""
    job, folder = json.loads(path.read_text(encoding="utf-8")), path.parent
    lock_output_dir(folder)  # a cell outlives a run_study.py that was killed
    models, own_models = [], []
    start = time.perf_counter()
    for run in job["runs"]:
        models.append(model := Path(run["folder"]))
        if run["is_stage"]:
            finish_stage(model, run["identity"], run["command"])
        else:
            own_models.append(model)
            shutil.rmtree(model, ignore_errors=True)  # left by an interrupted run
            run_script(run["command"])
    trained = time.perf_counter()
    run_script(job["evaluate"])
    tasks = json.loads((folder / "scores" / "results.json").read_text(encoding="utf-8"))["tasks"]
    record = RunRecord.load(models[-1]) if models else None
    if own_models:
        if job["dev_task"]:
            history = json.loads((models[0] / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
            tasks["selection_own_text"] = agreement(history, job["dev_task"])
        if own_text := own_text_of(RunRecord.load(models[0])):
            tasks["own_text"] = own_text
    content = {key: job[key] for key in ("row", "part", "seed")} | {"seconds_training": round(trained - start, 1)}
    content["seconds_scoring"] = round(time.perf_counter() - trained, 1)
    content["run_on"] = record and ", ".join(
        [record.hardware, *(f"{name} {record.versions[name]}" for name in PACKAGES)]
    )
    content["tasks"] = tasks
    for model in own_models if not job["keep_models"] else ():
        shutil.rmtree(model, ignore_errors=True)
    StoredWork(folder / RESULT, job["identity"]).save(content)


def run_script(command: Sequence[str]) -> None:
    """Run a script with its arguments in this process, and undo what it changed of the process."""
    print(f"$ {Path(command[0]).name} {' '.join(command[1:])}", flush=True)  # noqa: T201
    before = dict(os.environ)
    sys.argv = list(command)
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    # TrainingArguments hands its precision on to later ones by an environment variable.
    os.environ.clear()
    os.environ.update(before)
    gc.collect()  # a Trainer is a cycle, which would keep its weights
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)  # set by training, not by run_eval.py


def finish_stage(folder: Path, identity: dict, command: Sequence[str]) -> None:
    """Run a stage of a chain, or resume it where it stopped. A second process that needs it waits, and finds it finished."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with acquire_lock(f"{folder}.lock"):
        record = check_stage(folder, identity)
        if is_complete(folder):
            return
        from mirror.training.checkpoints import last_complete_checkpoint

        checkpoint = last_complete_checkpoint(folder)
        if not checkpoint:
            shutil.rmtree(folder, ignore_errors=True)  # left by a run that was interrupted before its first checkpoint
        record.save({})
        run_script([*command, *(("--resume_from_checkpoint", "true") if checkpoint else ())])


def check_stage(folder: Path, identity: dict) -> StoredWork:
    """Return the record beside the folder of a stage. Refuse a folder with another identity, or that is not a stage's."""
    record = StoredWork(folder.with_name(f"{folder.name}.json"), identity)
    if record.stored() is None and folder.exists():
        raise InputError(f"{folder} was not made by run_study.py; give another --stages_dir")
    same_content(record, f"--stages_dir or --output_dir, or delete {folder} and that file")
    return record


def same_content(work: StoredWork, fix: str) -> dict | None:
    """Return what was stored under the identity of `work`, or None if nothing was. Refuse what has another identity."""
    content = work.content()
    if content is None and work.stored() is not None:
        raise InputError(f"{work.path} was created with another {', '.join(work.differences())}; give another {fix}")
    return content


def remove_stages(folder: Path) -> None:
    """Delete the models of all stages in `folder`, and then their records: a stage without a record would be refused."""
    for path in (*(path for path in folder.glob("*") if path.is_dir()), folder):
        shutil.rmtree(path, ignore_errors=True)


# ---- Results that run_eval.py does not have --------------------------------------------------------------------------


def agreement(log_history: Sequence[dict], task: str) -> dict:
    """Compute Spearman's rho over a run's checkpoints between the test on held-out texts and a dev task.

    Returns the fields of a result. Fewer than three checkpoints in `log_history`, of trainer_state.json, are an `InputError`.
    """
    from scipy.stats import spearmanr  # not every cell needs it

    names = {f"eval_{OWN_TEXT}", f"eval_{task}"}
    points = [row for row in log_history if row.get("step") != 0 and names <= row.keys()]  # 0: the base model
    if len(points) < 3:
        needed = "at least 3 are needed; train longer or lower --eval_steps"
        raise InputError(f"{len(points)} checkpoints were scored, {needed}")
    values, dev = ([row[f"eval_{name}"] for row in points] for name in (OWN_TEXT, task))
    return {
        "main_score": float(spearmanr(values, dev).statistic),
        "num_examples": len(points),
        "dev_of_chosen": dev[values.index(max(values))],
        "dev_of_best": max(dev),
        "dev_of_last": dev[-1],
        "steps": [row["step"] for row in points],
        "criterion": values,
        "dev": dev,
    }


def own_text_of(record: RunRecord) -> dict | None:
    """Return what a run measured on its held-out texts, as a result in results.json, or None if it held out none.

    `main_score` is what `--select_by own_text` takes. `before` is that of the base model.
    """
    if not record.own_text:
        return None
    from scipy.stats import gmean

    return {
        "main_score": float(gmean([test["mrr_after"] for test in record.own_text])),
        "before": float(gmean([test["mrr_before"] for test in record.own_text])),
        "num_examples": record.own_text[0]["texts"],
        "tests": {test["test"]: test["mrr_after"] for test in record.own_text},
    }

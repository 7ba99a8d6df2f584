"""Scores on a model card, before and after training; stored in a checkpoint as `scores.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult

from mirror.common.atomic_files import atomic_write_text
from mirror.common.errors import InputError
from mirror.evaluation.dataset_names import dataset_of


if TYPE_CHECKING:
    from transformers import TrainerState


SCORES_FILE = "scores.json"
FIGURE = "cosines.png"
HISTOGRAM_TASKS = ("qqp_cosine", "docs_search")  # their results contain a histogram; the first one scored is drawn
EVAL_SETTINGS = ("pooling", "max_seq_length", "dtype", "prompt", "truncate_dim", "remove_components")


def scores_of_run(state: TrainerState, loads_best: bool, data_dir: str | None) -> dict:
    """Scores of `--eval_tasks` at the saved step and, with `--eval_on_start`, before training.

    Args:
        loads_best: whether the best checkpoint was loaded at the end of training.

    Returns:
        The content of `scores.json`; empty if the saved step was not evaluated.
    """
    saved = state.best_global_step if loads_best and state.best_global_step else state.global_step
    by_step = {entry["step"]: entry for entry in state.log_history if any(key.startswith("eval_") for key in entry)}
    if saved not in by_step:
        return {}
    from mirror.evaluation.catalogue import all_tasks
    from mirror.evaluation.run import default_data_dir

    tasks = all_tasks(Path(data_dir) if data_dir else default_data_dir())

    def read(step: int) -> dict:
        found = {key.removeprefix("eval_"): value for key, value in by_step.get(step, {}).items()}
        return {name: {"score": value, "metric": tasks[name].metric} for name, value in found.items() if name in tasks}

    steps = {"before": 0, "after": saved} if 0 in by_step else {"after": saved}
    scores: dict = {label: read(step) for label, step in steps.items()}
    return scores | {"how": dict.fromkeys(steps, "the settings of the run")} if scores["after"] else {}


def scores_of_results(paths: Sequence[str], folder: Path) -> dict:
    """Scores from `results.json` files of run_eval.py; also draws the cosine histogram of a task into `folder`.

    Args:
        paths: the results of the checkpoint, or those of its base model and of the checkpoint.

    Returns:
        The content of `scores.json`.

    Raises:
        InputError: a file was not written by run_eval.py, the files have no task in common, a task was scored on
            different data, or the pooling is not the checkpoint's.
    """
    records = [_read_results(path) for path in paths]
    _check_same_checkpoint(records[-1], paths[-1], folder)
    shared = [name for name in records[-1]["tasks"] if all(name in record["tasks"] for record in records)]
    if not shared:
        raise InputError(f"--results: {' and '.join(paths)} have no task in common")
    for name in shared:
        if len({record["tasks"][name].get("data_sha256") for record in records}) > 1:
            raise InputError(f"--results: {name} was scored on different data in {' and '.join(paths)}")
    labels = ("before", "after")[-len(records) :]
    scores: dict = {
        label: {
            name: {"score": record["tasks"][name]["main_score"], "metric": record["tasks"][name]["metric"]}
            for name in shared
        }
        for label, record in zip(labels, records, strict=True)
    }
    scores["how"] = {label: _how_scored(record) for label, record in zip(labels, records, strict=True)}
    for name in shared:
        if name in HISTOGRAM_TASKS:
            histograms = {
                label: record["tasks"][name]["histogram"] for label, record in zip(labels, records, strict=True)
            }
            return scores | {"picture": _draw_histograms(folder, histograms, name)}
    return scores


def write_scores(folder: str | Path, scores: dict) -> None:
    """Write `scores.json`; empty `scores` delete the files of an earlier run in the same folder."""
    folder = Path(folder)
    if "picture" not in scores:
        (folder / FIGURE).unlink(missing_ok=True)
    if not scores:
        (folder / SCORES_FILE).unlink(missing_ok=True)
        return
    atomic_write_text(folder / SCORES_FILE, json.dumps(scores, indent=2) + "\n")


def read_scores(folder: str | Path) -> dict:
    """The content of `scores.json`; empty if there is no such file."""
    path = Path(folder) / SCORES_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def score_table(scores: dict) -> dict:
    """`scores` as the card template needs them; empty if there are none."""
    if not scores:
        return {}
    before = scores.get("before", {})
    rows = [
        {
            "task": name,
            "metric": result["metric"],
            "before": f"{before[name]['score']:.4f}" if name in before else "",
            "after": f"{result['score']:.4f}",
        }
        for name, result in scores["after"].items()
    ]
    how = scores["how"]
    return {
        "rows": rows,
        "before": bool(before),
        "how": how["after"] if how.get("before", how["after"]) == how["after"] else None,
        "how_before": how.get("before"),
        "how_after": how["after"],
        "picture": scores.get("picture"),
    }


def eval_results(scores: dict) -> list[EvalResult]:
    """The scores of the checkpoint in the format of the Hub's `model-index`."""
    return [
        EvalResult(
            task_type="sentence-similarity",
            metric_type=result["metric"],
            metric_value=round(result["score"], 6),
            **dataset_of(task),
        )
        for task, result in scores.get("after", {}).items()
    ]


def _how_scored(record: dict) -> str:
    """The settings of a scoring run that its scores depend on."""
    used = {key: json.dumps(record[key]) if key == "prompt" else record[key] for key in EVAL_SETTINGS if key in record}
    return ", ".join(f"{key} {value}" for key, value in used.items())


def _read_results(path: str) -> dict:
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        for task in record["tasks"].values():
            float(task["main_score"]), str(task["metric"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"--results {path}: not a results.json of run_eval.py ({type(error).__name__})") from error
    return record


def _check_same_checkpoint(record: dict, path: str, folder: Path) -> None:
    from mirror.modeling.checkpoint import stored_pooling  # imported late to keep --help fast

    pooling = stored_pooling(folder)
    if record.get("pooling") != pooling:
        raise InputError(
            f"--results {path}: scored with pooling '{record.get('pooling')}', but {folder} uses "
            f"'{pooling}'; score the checkpoint without --pooling"
        )


def _draw_histograms(folder: Path, histograms: dict[str, dict], title: str) -> str:
    from mirror.evaluation.plots import cosine_histograms

    cosine_histograms(folder / FIGURE, histograms, title)
    return FIGURE

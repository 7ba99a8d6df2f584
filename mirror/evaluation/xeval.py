"""`xeval_ar` ...: SentEval in the fifteen languages of CMLM's XEVAL (Tables 2 and 3), one task per language.

XEVAL is SentEval translated by machine and was not released: a user fills `xeval/<language>/` of the data folder with SentEval's
files in that language. English is SentEval itself, from its own place.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from mirror.evaluation import transfer
from mirror.evaluation.task import Task
from mirror.modeling.encoder import Encode


LANGUAGES = "ar bg de el en es fr hi ru sw th tr ur vi zh".split()


def tasks(data_dir: Path) -> list[Task]:
    """Return one task per language."""
    return [_task(language) for language in LANGUAGES]


def score(members: list[Task], encode: Encode, data_dir: Path) -> dict:
    """Score the nine tasks of SentEval in one language; the main score is their mean."""
    results = {task.name.removeprefix("transfer_"): task.score(encode, data_dir) for task in members}
    return {
        "main_score": float(np.mean([result["main_score"] for result in results.values()])),
        "num_examples": sum(result["num_examples"] for result in results.values()),
        "scores": {name: result["main_score"] for name, result in results.items()},
    }


def _task(language: str) -> Task:
    folders = ("senteval", "sts") if language == "en" else (f"xeval/{language}",) * 2
    members = transfer.tasks_in(*folders, any_rows=language != "en")
    return Task(
        name=f"xeval_{language}",
        metric="accuracy",
        protocol=f"mean of SentEval's nine tasks in '{language}': accuracy, and Pearson's r for SICK-R; as the tasks transfer_*",
        files=tuple(dict.fromkeys(file for task in members for file in task.files)),
        score=partial(score, members),
        groups=("xeval",),
        published="CMLM Tables 2 and 3",
    )

"""Tasks of mteb, `mteb:NAME`: mteb loads the data and computes the score, this project's encoder gives the vectors."""

from __future__ import annotations

import hashlib
import importlib.util
from functools import partial
from pathlib import Path

import numpy as np

from mirror.common.errors import InputError, library_errors, one_line
from mirror.evaluation.task import Task
from mirror.modeling.encoder import Encode


PREFIX = "mteb:"


def mteb_task(name: str) -> Task:
    """Return a task of mteb by `mteb:NAME`. Without mteb, or if it has no such task, raise an `InputError`."""
    if importlib.util.find_spec("mteb") is None:
        raise InputError(f"--tasks {name} needs mteb: pip install 'mirror-encoders[mteb]'")
    import mteb

    try:
        found = mteb.get_task(name.removeprefix(PREFIX))
    except KeyError as error:
        raise InputError(f"--tasks {name}: {one_line(error.args[0]).removeprefix('KeyError: ')}") from error
    data = found.metadata
    splits = " and ".join(data.eval_splits)
    protocol = f"mteb {mteb.__version__}, {data.type}, its main score, mean of its subsets on {splits}"
    hub = (str(data.dataset.get("path", "")), "default", data.eval_splits[0])
    return Task(name, data.main_score, protocol, (), partial(score_mteb, found), dataset=data.name, hub=hub)


def score_mteb(task, encode: Encode, data_dir: Path) -> dict:
    """Score a task object of mteb. An `InputError` names the task if its data cannot be loaded."""
    import mteb

    with library_errors(f"{PREFIX}{task.metadata.name}"):
        (result,) = mteb.evaluate(mteb_model(encode), task, cache=None, show_progress_bar=False).task_results
        score = float(result.get_score())
    version = f"{result.task_name} {result.dataset_revision}"
    subsets = {split: {row["hf_subset"]: row["main_score"] for row in rows} for split, rows in result.scores.items()}
    return {
        "main_score": score,
        "num_examples": sum(len(rows) for rows in subsets.values()),
        "subsets": subsets,
        "dataset_revision": result.dataset_revision,
        "data_sha256": hashlib.sha256(version.encode()).hexdigest(),  # mteb identifies data by revision
    }


def mteb_model(encode: Encode):
    """Return an encoder as mteb calls one, with cosine similarity. Queries and documents get their prompts."""
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta

    encoders = {role: getattr(encode, role, encode) for role in ("query", "document")} | {None: encode}

    class Model(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty()

        def encode(self, inputs, *, prompt_type=None, **options) -> np.ndarray:
            texts = [text for batch in inputs for text in batch["text"]]
            return encoders[getattr(prompt_type, "value", prompt_type)](texts)

    return Model()

"""`--keep`: a second score that a training must not lose; a run that loses too much of it stops and goes back."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import IntervalStrategy

from mirror.common.errors import InputError
from mirror.common.nearest_neighbors import unit_length
from mirror.data.corpus import load_corpus
from mirror.evaluation.run import make_plan
from mirror.evaluation.sts import score_pairs
from mirror.evaluation.task import DataFile
from mirror.modeling.encoder import Encode, Encoder
from mirror.training.checkpoint_selection import Scorer
from mirror.training.choices import KEEP
from mirror.training.resumable import RunIsComplete


MAX_TEXTS = 500  # 124,750 pairs
MIN_TEXTS = 20
KEY = f"eval_{KEEP}"


class CosinesOfBase:
    """How far an encoder orders the pairs of some texts as the base model does.

    The score is Spearman's rho between the cosines of all pairs of texts under the base model and under the encoder; 1 for
    the base model. To compare the vector of each text with its vector under the base model would be simpler, but it punishes
    a rotation of the space, and cosines that are all lower, with which every ranking and every search stays the same.

    Args:
        texts: N distinct texts.
    """

    def __init__(self, texts: Sequence[str]):
        self.texts, self.of_base = texts, None

    def remember(self, encode: Encode) -> None:
        """Take `encode` as the base model."""
        self.of_base = self._cosines(encode)

    def __call__(self, encoder: Encoder) -> dict[str, float]:
        return {KEEP: float(spearmanr(self.of_base, self._cosines(encoder.encode)).statistic)}

    def _cosines(self, encode: Encode) -> np.ndarray:
        """(N (N - 1) / 2,), one for each pair."""
        vectors = unit_length(encode(self.texts))
        return (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]


def make_kept_score(keep: str, data_dir: str | None) -> Scorer:
    """A function of an encoder: the score `keep` that `--keep` names, higher is better.

    Args:
        keep: a .tsv with a column `score` and two columns of texts, any other file of texts, or a task of run_eval.py.

    Raises:
        InputError: neither a file nor a task, a damaged file, or too few texts.
    """
    path = Path(keep)
    if path.is_file():
        return _score_of_pairs(path) if path.suffix == ".tsv" else CosinesOfBase(_some_texts(keep))
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"--keep {keep}: no such file")
    tasks = make_plan([keep], data_dir).tasks
    if len(tasks) > 1:
        raise InputError(
            f"--keep {keep} is a group of {len(tasks)} tasks; name one of them, for example {tasks[0].name}"
        )
    return lambda encoder: {KEEP: tasks[0].score(encoder.encode, encoder)["main_score"]}


def _score_of_pairs(path: Path) -> Scorer:
    """Spearman's rho between the cosines of the pairs of a file and its column `score`."""
    file = DataFile(path.name, ("score",), score_range=(-inf, inf))
    texts = [column for column in file.read(path.parent) if column != "score"][:2]
    if len(texts) < 2:
        raise InputError(f"--keep {path}: two columns of texts are needed beside the column 'score'")
    columns = (texts[0], texts[1])
    return lambda encoder: {KEEP: score_pairs((file,), columns, encoder.encode, path.parent)["main_score"]}


def _some_texts(keep: str) -> list[str]:
    """At most `MAX_TEXTS`, evenly spread over a file."""
    texts = load_corpus(keep).rows["text"][:]
    if len(texts) < MIN_TEXTS:
        raise InputError(f"--keep {keep}: {len(texts)} distinct texts, at least {MIN_TEXTS} are needed")
    rows = np.linspace(0, len(texts) - 1, min(MAX_TEXTS, len(texts)), dtype=int)
    return [texts[row] for row in rows]


def kept_scores(state: TrainerState) -> dict[int, float]:
    """The score at each step that was evaluated; step 0 is the base model."""
    return {entry["step"]: entry[KEY] for entry in state.log_history if KEY in entry}


def is_within(state: TrainerState, allowed_loss: float) -> bool:
    """Whether the last evaluation lost no more than is allowed."""
    scores = kept_scores(state)
    return not scores or scores[max(scores)] >= scores[0] - allowed_loss


class StopWhereLost(TrainerCallback):
    """Stops a run after the first evaluation that lost more than is allowed, also one that is resumed there.

    Raises:
        InputError: the run is too short to be evaluated.
    """

    def __init__(self, allowed_loss: float):
        self.allowed_loss = allowed_loss

    def on_train_begin(self, args, state, control, **kwargs):
        if args.eval_strategy == IntervalStrategy.STEPS and state.eval_steps > state.max_steps:
            raise InputError(
                f"--keep {args.keep}: --eval_steps {state.eval_steps} is more than the {state.max_steps} steps of the run"
            )
        if not is_within(state, self.allowed_loss):
            raise RunIsComplete

    def on_evaluate(self, args, state, control, **kwargs):
        if not is_within(state, self.allowed_loss):
            control.should_training_stop = True


def outcome(state: TrainerState, keep: str, allowed_loss: float, learning_rate: float) -> dict:
    """What became of the score, for the record and the card.

    Returns:
        `score`: what `--keep` names. `before`, `after`: of the base model and of the step that is kept. `allowed_loss`.
        `step`: the step that is kept. `lost_at`, `lost`: the step at which the run stopped and its score; None if it did not.

    Raises:
        InputError: no step is within the bound, so there is nothing to go back to.
    """
    scores, kept = kept_scores(state), state.best_global_step
    last, lost = max(scores), not is_within(state, allowed_loss)
    if not kept:
        raise InputError(
            f"--keep {keep}: {scores[0]:.3f} -> {scores[last]:.3f} at step {last}, the first that was evaluated, and a loss of "
            f"{allowed_loss:g} is allowed; no encoder is saved: try --learning_rate {learning_rate / 4:g}, or a higher "
            "--keep_within"
        )
    return {
        "score": Path(keep).name,
        "before": scores[0],
        "after": scores[kept],
        "allowed_loss": allowed_loss,
        "step": kept,
        "lost_at": last if lost else None,
        "lost": scores[last] if lost else None,
    }


def describe_outcome(kept: dict) -> str:
    """`kept: stsb_dev .824 -> .819 (a loss of .01 is allowed)`, and where the run stopped."""
    line = f"kept: {kept['score']} {kept['before']:.3f} -> {kept['after']:.3f} (a loss of {kept['allowed_loss']:g} is allowed)"
    if kept["lost_at"] is None:
        return line
    return f"{line}; the run stopped at step {kept['lost_at']} with {kept['lost']:.3f} and went back to step {kept['step']}"

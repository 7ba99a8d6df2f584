"""Scores that select a checkpoint or an average: tests without labels on held-out texts, and the score of `--keep`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import IntervalStrategy

from mirror.common.errors import InputError
from mirror.common.vectors import unit_length
from mirror.data.cleaning import even_places
from mirror.data.corpus import load_texts
from mirror.data.source import CorpusSource
from mirror.evaluation.own_text import OwnTextTest, combined_score, compare_all, make_row_tests
from mirror.evaluation.run import is_own, make_plan
from mirror.evaluation.task import is_task
from mirror.modeling.encoder import Encode, Encoder
from mirror.training.options import KEEP, OWN_TEXT
from mirror.training.resumable import NothingToSave, RunIsComplete


if TYPE_CHECKING:
    from mirror.training.config import MirrorConfig

logger = logging.getLogger(__name__)

Scorer = Callable[[Encoder], dict[str, float]]
MAX_KEPT_TEXTS = 500  # 124,750 pairs
MIN_KEPT_TEXTS = 20
KEPT_KEY = f"eval_{KEEP}"
WEIGHTS = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the trained weights, which `--merge auto` tries


def combine_scorers(*scorers: Scorer | None) -> Scorer | None:
    """Return one function that returns the scores of all `scorers`, all finite. None if there are none."""
    present = [scorer for scorer in scorers if scorer]
    if not present:
        return None

    def score(encoder: Encoder) -> dict[str, float]:
        scores = {name: value for scorer in present for name, value in scorer(encoder).items()}
        for name, value in scores.items():
            if not math.isfinite(value):
                raise InputError(f"the score {name} is {value}, with which no checkpoint can be chosen")
        return scores

    return score


class HeldOutScores:
    """Tests on the texts held out of a run: before, during and after training.

    `tests` are those that fit the texts. None fits: a line in the log, or an `InputError` for `--select_by own_text`.
    """

    def __init__(self, rows: Dataset, args: MirrorConfig):
        self.tests: list[OwnTextTest] = []
        try:
            self.tests = make_row_tests(rows)
        except InputError as error:
            if args.select_by == OWN_TEXT:
                raise InputError(f"--select_by {OWN_TEXT}: {error}") from error
            logger.info("on your text: %s. --keep and --eval_tasks are other measures", error)

    def score(self, encoder: Encoder) -> dict[str, float]:
        """Return the tests' score for an evaluation."""
        return {OWN_TEXT: combined_score(self.ranks(encoder))}

    def ranks(self, encoder: Encoder) -> list[np.ndarray]:
        """Return for each test the rank of each text, (N,)."""
        return [test.ranks(encoder.by_role()) for test in self.tests]

    def compare(self, before: Sequence[np.ndarray], encoder: Encoder) -> dict:
        """Return what the record says of the held-out texts, from the ranks of the base model and the trained encoder."""
        return compare_all(self.tests, before, self.ranks(encoder))


class CosinesOfBase:
    """Score how far an encoder orders the pairs of N distinct texts as the base model does.

    The score is Spearman's rho between the cosines of all pairs of texts under the base model and under the encoder. To
    compare each vector with that of the base model would be simpler, but it punishes a rotation of the space and cosines
    that are all lower, neither of which changes a ranking.
    """

    def __init__(self, texts: Sequence[str]):
        self.texts, self.of_base = texts, None

    def remember(self, encode: Encode) -> None:
        """Take `encode` as the base model."""
        self.of_base = self._cosines(encode)

    def __call__(self, encoder: Encoder) -> dict[str, float]:
        from scipy.stats import spearmanr  # slow to import

        return {KEEP: float(spearmanr(self.of_base, self._cosines(encoder.encode)).statistic)}

    def _cosines(self, encode: Encode) -> np.ndarray:
        """Return the cosine of each pair, (N (N - 1) / 2,)."""
        vectors = unit_length(encode(self.texts))
        return (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]


def make_kept_score(keep: str, data_dir: str | None) -> Scorer:
    """Return a function that scores an encoder by what `--keep` names. Higher is better.

    That is a task of run_eval.py, a file or folder that makes one (`mirror.evaluation.run.own_task`), or any other file of
    texts. An `InputError` for neither a file nor a task, a damaged file, or too few texts.
    """
    path = Path(keep)
    if path.is_file() and not is_task(path):
        texts = load_texts(CorpusSource(train_file=[keep]))
        if len(texts) < MIN_KEPT_TEXTS:
            raise InputError(f"--keep {keep}: {len(texts)} distinct texts, at least {MIN_KEPT_TEXTS} are needed")
        return CosinesOfBase([texts[place] for place in even_places(len(texts), MAX_KEPT_TEXTS)])
    if (path.suffix or len(path.parts) > 1) and not is_own(keep):
        raise InputError(f"--keep {keep}: no such file")
    tasks = make_plan([keep], data_dir).tasks
    if len(tasks) > 1:
        group = f"--keep {keep} is a group of {len(tasks)} tasks"
        raise InputError(f"{group}; name one of them, for example {tasks[0].name}")
    return lambda encoder: {KEEP: tasks[0](encoder)[tasks[0].name]}


def kept_scores(state: TrainerState) -> dict[int, float]:
    """Return the score of `--keep` at each step that was evaluated. Step 0 is the base model, where it was scored."""
    return {entry["step"]: entry[KEPT_KEY] for entry in state.log_history if KEPT_KEY in entry}


def is_within(state: TrainerState, allowed_loss: float) -> bool:
    """Return whether the last evaluation lost no more than is allowed."""
    scores = kept_scores(state)
    return not scores or scores[max(scores)] >= scores[min(scores)] - allowed_loss


class StopWhereLost(TrainerCallback):
    """Stop a run after the first evaluation that lost more than is allowed, also a run that is resumed there."""

    def __init__(self, allowed_loss: float):
        self.allowed_loss = allowed_loss

    def on_train_begin(self, args, state, control, **kwargs):
        if args.eval_strategy == IntervalStrategy.STEPS and state.eval_steps > state.max_steps:
            steps = f"--eval_steps {state.eval_steps} is more than the {state.max_steps} steps of the run"
            raise InputError(f"--keep {args.keep}: {steps}")
        if not is_within(state, self.allowed_loss):
            raise RunIsComplete

    def on_evaluate(self, args, state, control, **kwargs):
        if not is_within(state, self.allowed_loss):
            control.should_training_stop = True


def outcome(state: TrainerState, args: MirrorConfig) -> dict:
    """Return what became of the score of `--keep`, for the record and the card.

    Returns:
        `score`: its name. `before`, `after`: of the base model and of the saved step. `allowed_loss`. `step`: the
        saved step. `lost_at`, `lost`: the step at which the run stopped and its score, None if it did not stop.

    Raises:
        NothingToSave: no step is within the limit, so there is nothing to go back to.
    """
    scores, kept = kept_scores(state), state.best_global_step
    first, last, lost = min(scores), max(scores), not is_within(state, args.keep_within)
    if not kept:
        raise NothingToSave(
            f"--keep {args.keep}: {scores[first]:.3f} -> {scores[last]:.3f} at step {last}, the first that was evaluated, and a "
            f"loss of {args.keep_within:g} is allowed; no encoder is saved: try --learning_rate {args.learning_rate / 4:g}, "
            "or a higher --keep_within"
        )
    return {
        "score": Path(args.keep).name,
        "before": scores[first],
        "after": scores[kept],
        "allowed_loss": args.keep_within,
        "step": kept,
        "lost_at": last if lost else None,
        "lost": scores[last] if lost else None,
    }


class Merge:
    """Averages of the weights of a model after training with those before it, in place (Wortsman et al. 2022, WiSE-FT)."""

    def __init__(self, model: nn.Module):
        self.model, self.base = model, _copy_of(model)

    def choose(self, choice: str, score: Callable[[], dict[str, float]], least: float) -> dict:
        """Set the average that `--merge` asks for. Return the `weight` of the trained weights and what `auto` measured.

        `auto` takes the weight with the best test on held-out texts among those whose score of `--keep` is at least `least`,
        or the smallest.
        """
        trained, curve = _copy_of(self.model), []
        for weight in WEIGHTS if choice == "auto" else ():
            self._average(trained, weight)
            curve.append({"weight": weight} | score())
        within = [each for each in curve if each.get(KEEP, least) >= least] or curve[:1]
        weight = max(within, key=lambda each: each[OWN_TEXT])["weight"] if within else float(choice)
        self._average(trained, weight)
        return {"weight": weight, "curve": curve}

    @torch.no_grad()
    def _average(self, trained: dict[str, Tensor], weight: float) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(torch.lerp(self.base[name], trained[name], weight))


def _copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}


def describe_outcome(kept: dict) -> str:
    """Return `kept: stsb_dev .824 -> .819 (a loss of .01 is allowed)`, and where the run stopped."""
    line = f"kept: {kept['score']} {kept['before']:.3f} -> {kept['after']:.3f} (a loss of {kept['allowed_loss']:g} is allowed)"
    if kept["lost_at"] is None:
        return line
    return f"{line}; the run stopped at step {kept['lost_at']} with {kept['lost']:.3f} and went back to step {kept['step']}"

"""What a run measures on its held-out texts: the tests of `mirror.evaluation.own_text`, and the closeness of two noisy views."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy

from mirror.common.errors import InputError
from mirror.data.augmentation import DEFAULT_RATES
from mirror.data.two_view_dataset import TwoViewDataset, ViewSettings
from mirror.evaluation.own_text import OwnTextTest, compare_together, make_tests
from mirror.modeling.encoder import Encoder
from mirror.training.checkpoint_selection import Scorer, alignment_uniformity_scorer, own_text_scorer
from mirror.training.choices import OWN_TEXT
from mirror.training.manifest import is_complete


if TYPE_CHECKING:
    from mirror.training.config import MirrorConfig

logger = logging.getLogger(__name__)


class HeldOutScores:
    """What is measured on the texts held out of a run: before, during and after its training.

    Args:
        rows: the held-out texts.
        views: how the training makes its views.
        evaluated: whether the encoder is scored during the training too.
        tests_required: `--select_by own_text` needs a test.

    Attributes:
        criteria: what is measured at every evaluation: alignment and uniformity, and the tests.
        tests: those that fit the texts; none, and a line in the log, where none does.

    Raises:
        InputError: a test is required, and too few of the texts can be used.
    """

    def __init__(
        self,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        views: ViewSettings,
        evaluated: bool,
        tests_required: bool,
    ):
        self.tests: list[OwnTextTest] = []
        try:
            self.tests = make_tests(*(rows[column][:] for column in rows.column_names))
        except InputError as error:
            if tests_required:
                raise InputError(f"--select_by {OWN_TEXT}: {error}") from error
            logger.info("on your text: %s", error)
        if tests_required and self.tests[0].kind == "spellings":
            logger.warning(
                "--select_by %s: of names and words the best at misspellings is kept, which need not be the best at "
                "synonyms or similarity; --pair_columns or --eval_tasks know more",
                OWN_TEXT,
            )
        self.criteria: list[Scorer] = []
        if evaluated:
            self.criteria.append(alignment_uniformity_scorer(TwoViewDataset(rows, tokenizer, views)))
            self.criteria += [own_text_scorer(self.tests)] if self.tests else []
        self.views = comparable_views_scorer(rows, tokenizer, views)

    def ranks(self, encoder: Encoder) -> list[np.ndarray]:
        """For each test the rank of each text, (N,)."""
        return [test.ranks(encoder.encode) for test in self.tests]

    def compare(
        self, before: Sequence[np.ndarray], after: Sequence[np.ndarray]
    ) -> tuple[list[dict] | None, dict | None]:
        """`OwnTextTest.compare` of each test, None without tests; and `compare_together`, None with fewer than two."""
        scores = [test.compare(*ranks) for test, *ranks in zip(self.tests, before, after, strict=True)]
        return scores or None, compare_together(before, after) if len(scores) > 1 else None


def make_held_out_scores(
    rows: Dataset | None, tokenizer: PreTrainedTokenizerBase, views: ViewSettings, args: MirrorConfig
) -> HeldOutScores | None:
    """None, and a line in the log, where no texts are held out.

    Raises:
        InputError: `--select_by` needs some.
    """
    if rows is not None:
        evaluated = args.eval_strategy != IntervalStrategy.NO
        return HeldOutScores(rows, tokenizer, views, evaluated, tests_required=args.select_by == OWN_TEXT)
    if args.select_by:
        raise InputError(f"--select_by {args.select_by}: the corpus is small; name a number of --validation_samples")
    small = "the corpus is small; --validation_samples 50 holds out 50"
    reason = "--validation_samples 0" if args.validation_samples == 0 else small
    logger.info("on your text: no texts are held out to test on (%s)", reason)
    return None


def comparable_views_scorer(rows: Dataset, tokenizer: PreTrainedTokenizerBase, views: ViewSettings) -> Scorer:
    """Alignment and uniformity of held-out rows with the same noise in every run, whatever noise the run trains with.

    The noise is a tenth of the words left out, which needs no mask token, and the dropout of training.
    """
    same = replace(views, augmentation="delete", rate=DEFAULT_RATES["delete"], span_mask_length=0, both_views=False)
    return alignment_uniformity_scorer(TwoViewDataset(rows, tokenizer, same))


def has_nothing_left(checkpoint: str | None, output_dir: str) -> bool:
    """Whether a checkpoint to resume from is that of the last step, and the run's encoder is saved too."""
    if not checkpoint or not is_complete(output_dir):
        return False
    state = TrainerState.load_from_json(f"{checkpoint}/{TRAINER_STATE_NAME}")
    return 0 < state.max_steps <= state.global_step

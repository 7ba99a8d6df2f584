"""What a run measures on its held-out texts: the tests of `mirror.evaluation.own_text`, and the closeness of two noisy views."""

from __future__ import annotations

import logging
from dataclasses import replace

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from mirror.common.errors import InputError
from mirror.data.augmentation import DEFAULT_RATES
from mirror.data.two_view_dataset import TwoViewDataset, ViewSettings
from mirror.evaluation.own_text import OwnTextTest, make_tests
from mirror.training.checkpoint_selection import Scorer, alignment_uniformity_scorer
from mirror.training.choices import OWN_TEXT
from mirror.training.manifest import is_complete


logger = logging.getLogger(__name__)


def make_own_text_tests(held_out: Dataset | None, asked: int | None, required: bool = False) -> list[OwnTextTest]:
    """The tests that fit the held-out rows; none, and a line in the log, where there can be none.

    Args:
        asked: `--validation_samples`.
        required: `--select_by own_text` needs one.

    Raises:
        InputError: one is required, and there can be none.
    """
    try:
        if held_out is None:
            reason = (
                "--validation_samples 0" if asked == 0 else "the corpus is small; --validation_samples 50 holds out 50"
            )
            raise InputError(f"no texts are held out to test on ({reason})")
        return make_tests(*(held_out[column][:] for column in held_out.column_names))
    except InputError as error:
        if required:
            raise InputError(f"--select_by {OWN_TEXT}: {error}") from error
        logger.info("on your text: %s", error)
        return []


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

"""What a user can set about a Mirror-BERT run: `MirrorConfig`."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from mirror.common.errors import InputError
from mirror.data.two_view_dataset import ViewSettings
from mirror.training.base_config import BaseConfig
from mirror.training.choices import CRITERIA, KEEP_STEP
from mirror.training.levels import LEVELS, default_learning_rate, default_pooling, encoder_settings
from mirror.training.lora import check_lora
from mirror.training.options import MirrorOptions


logger = logging.getLogger(__name__)


@dataclass
class MirrorConfig(MirrorOptions, BaseConfig):
    """Everything that can be set about turning a masked LM into an encoder with Mirror-BERT.

    >>> config = MirrorConfig(level="sentence", output_dir="out")

    Model:
        pooling: how token vectors become one (`mirror.modeling.pooling.pool`). Default: `cls` for words, phrases and
            RoBERTa, `mean` for other sentence encoders.
        max_seq_length: tokens per text, special ones included; default of the level: 25, 25, 50.
        prompt, prompt_name: text before every text, and so the default prompt of the checkpoint. Default: the base model's.
        pad_to: pad every row to this length; only `mean_padded` depends on it.
        packing: train without padding: "auto", "on" or "off".
        lora_rank: train low-rank updates of this rank instead of all weights.
        dropout_rate, drophead_rate, controlled_dropout: the noise inside the model (Mirror-BERT, sections 2.2 and 4.4).

    Views:
        level: "word", "phrase" or "sentence": the preset that fills in what is not given.
        span_mask_length, span_mask_min_chars, mask_token: the span mask of the second view (section 2).
        augmentation, augmentation_rate, augment_both_views: other noise on the text. Default: the span mask; for sentences
            and a base model that is an encoder already, `mirror.training.levels.ENCODER_SETTINGS`.

    Training:
        loss, temperature, learnable_temperature: what pulls the two views together (section 2, Eq. 1).
        mini_batch_size: texts in memory at once (gradient caching).
        gather_negatives: compare with the texts of all processes.
        projection_head, negative_queue, queue_momentum, noise_negatives, false_negative_weighting, hardness, batching,
            matryoshka_dims: later ideas (docs/methods.md).
        eval_tasks, data_dir: tasks to score while training.
        validation_samples: texts held out of training, for the test on your own text (`mirror.evaluation.own_text`).
        select_by: the criterion on these texts that chooses the checkpoint.
        keep, keep_within: a second score that must not be lost (`mirror.training.keep`), and how much of it may be.

    Note:
        Where the paper is silent, the defaults follow the released code, and differ from `TrainingArguments`: batch 200,
        learning rate 2e-5 (1e-4 for the embedded model) held constant, no gradient clipping, weight decay 0.01 on all
        weights (biases and norms too), one epoch for sentences and two for words and phrases, and what `BaseConfig` lists.

    Raises:
        InputError: a value outside its range, or two that contradict each other; names the flag.
    """

    def __post_init__(self) -> None:
        MirrorOptions.__post_init__(self)
        if self.batching == "length":
            if self.train_sampling_strategy not in ("random", "group_by_length"):
                raise InputError(
                    f"--batching length and --train_sampling_strategy {self.train_sampling_strategy} exclude each other; "
                    "leave out one of the two"
                )
            self.train_sampling_strategy = "group_by_length"
        BaseConfig.__post_init__(self)
        self._set_evaluation_defaults()
        check_lora(self.lora_rank, self)

    def resolve_for(
        self, model_name_or_path: str, model_type: str, pooling: str | None = None, pairs: bool = False
    ) -> dict[str, object]:
        """Fill in what depends on the base model: pooling, learning rate, and the settings for training an encoder further.

        Args:
            pooling: of a base model that is an encoder already; with another pooling it is not one.
            pairs: the second text of a row is its second view; the settings for encoders were measured without.

        Returns:
            The settings that differ from the level's because the base is an encoder already, by the names of their flags.
        """
        self.pooling = self.pooling or pooling or LEVELS[self.level].get("pooling") or default_pooling(model_type)
        changed = encoder_settings(self.level, self.given) if self.pooling == pooling and not pairs else {}
        for name, value in changed.items():
            setattr(self, name, value)
        if self.learning_rate is None:
            self.learning_rate = default_learning_rate(model_name_or_path)
        return changed

    def at_most_one_pass(self, texts: int) -> None:
        """Let the steps that `resolve_for` set for an encoder end with the texts: to repeat a few of them harms (docs/results.md)."""
        texts_per_step = self.train_batch_size * self.world_size * self.gradient_accumulation_steps
        if "max_steps" not in self.given and self.max_steps * texts_per_step > texts:
            logger.info("length: one pass over the texts, which is less than --max_steps %d", self.max_steps)
            self.max_steps = -1

    def view_settings(self, tokenizer: PreTrainedTokenizerBase, prompt: str = "") -> ViewSettings:
        """How the views are made with this tokenizer, and the text before every text.

        Raises:
            InputError: something is to be masked and the tokenizer has no mask token.
        """
        masks = self.augmentation in ("token", "whole_word") or self.masks_spans
        if masks and not self.mask_token and tokenizer.mask_token_id is None:
            raise InputError(
                f"the tokenizer of {tokenizer.name_or_path} has no mask token; use "
                f"{'--span_mask_length 0' if self.masks_spans else '--augmentation delete'}, "
                "or --mask_token with a literal"
            )
        return ViewSettings(
            span_mask_length=self.span_mask_length if self.augmentation == "span" else 0,
            span_mask_min_chars=self.span_mask_min_chars,
            mask_token=None if self.mask_token == tokenizer.mask_token else self.mask_token,
            max_seq_length=self.max_seq_length,
            seed=self.seed,
            augmentation=self.augmentation,
            rate=self.augmentation_rate or 0.0,
            both_views=self.augment_both_views,
            prompt=prompt,
        )

    def _set_evaluation_defaults(self) -> None:
        """Evaluate where there is something to score, and let the scores choose the checkpoint."""
        loads_best = self.load_best_model_at_end
        if self.select_by or self.keep:
            if self.eval_strategy == IntervalStrategy.NO:
                self.eval_strategy, self.eval_steps = IntervalStrategy.STEPS, self.eval_steps or 0.1  # of the run
            self.save_strategy = SaveStrategy(self.eval_strategy.value)
            self.save_steps = self.eval_steps or self.save_steps
            self.save_total_limit = self.save_total_limit or 1  # beside the last one
            self.load_best_model_at_end = True
        if self.select_by:
            self.metric_for_best_model = self.select_by
        criterion = (self.metric_for_best_model or "").removeprefix("eval_")
        if criterion in CRITERIA:
            self.greater_is_better = CRITERIA[criterion] == "higher"
        if self.eval_tasks:
            self.eval_on_start = True
            if self.eval_strategy == IntervalStrategy.NO:
                self.eval_strategy = IntervalStrategy.EPOCH
            if self.metric_for_best_model in (None, "loss"):
                self.metric_for_best_model, self.greater_is_better = self.eval_tasks[0], True
        if self.keep:
            self.eval_on_start = True
            if not (self.select_by or loads_best):
                self.metric_for_best_model, self.greater_is_better = KEEP_STEP, True

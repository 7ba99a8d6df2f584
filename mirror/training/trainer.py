"""Mirror-BERT on the Hugging Face `Trainer`: one forward pass over both views of a batch, pool, compare."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import IntervalStrategy, TrainOutput

from mirror.assets import EMBEDDED_MODEL
from mirror.common.alignment_uniformity import alignment, uniformity
from mirror.common.errors import InputError
from mirror.data.batching import LikeLengthSampler
from mirror.data.collators import MiniBatchCollator, PackedCollator, TwoViewCollator
from mirror.data.corpus import Corpus, as_corpus, has_pairs, source_name, source_settings
from mirror.data.corpus_report import corpus_report, format_report, near_duplicates_of, row_tokens
from mirror.data.files import reading
from mirror.data.held_out import hold_out
from mirror.data.two_view_dataset import TwoViewDataset, two_view_dataset
from mirror.evaluation.run import make_task_scorer
from mirror.modeling.backbone import (
    check_length,
    check_texts_are_known,
    check_vocabulary,
    load_backbone,
    load_tokenizer,
    position_limit,
)
from mirror.modeling.checkpoint import save_encoder
from mirror.modeling.checkpoint_settings import checkpoint_settings, choose_prompt
from mirror.modeling.encoder import Encoder
from mirror.modeling.packing import configure_noise_and_packing, first_position, packed_forward
from mirror.modeling.pooling import pool
from mirror.training.auxiliary import parameter_groups, resume
from mirror.training.base_encoder import describe_base, keep_modules, prompts_to_save
from mirror.training.checkpoint_selection import Scorer, alignment_uniformity_scorer, combine_scorers, own_text_scorer
from mirror.training.choices import KEEP_STEP, OWN_TEXT
from mirror.training.config import MirrorConfig
from mirror.training.encoder_trainer import EncoderTrainer
from mirror.training.gradient_cache import backward_through_cache
from mirror.training.held_out_scores import comparable_views_scorer, has_nothing_left, make_own_text_tests
from mirror.training.keep import CosinesOfBase, StopWhereLost, is_within, make_kept_score, outcome
from mirror.training.lora import add_lora, merged
from mirror.training.objective import KINDS, Objective, check_dimensions
from mirror.training.preflight import check_batch_fits
from mirror.training.run_record import collect_settings
from mirror.training.step_summary import queue_bytes, step_bytes, step_summary


logger = logging.getLogger(__name__)

MONITORED_ROWS = 256  # alignment and uniformity are computed on at most this many rows of a step


class MirrorTrainer(EncoderTrainer):
    """Turns a masked language model into an encoder: loads it, makes two views of every text, and trains on both.

    >>> trainer = MirrorTrainer(
    ...     model="bert-base-uncased", args=MirrorConfig(level="sentence", output_dir="out"), train_dataset=texts
    ... )
    >>> trainer.train()
    >>> trainer.save_model()  # loads in transformers, sentence-transformers and `Encoder.from_pretrained`

    Args:
        model: a Hub id, a folder, or a loaded encoder without a head. Default: the small model of this package.
        args: everything that can be set.
        train_dataset: a list of texts, a dataset with the column `text` (and `text_pair` for pairs), a stream of such rows,
            or a `Corpus`. Blank and repeated texts are dropped; a `Corpus` is used as it is.
        processing_class: the tokenizer, if it is not beside the model.
        score: what to measure at every evaluation, beside `eval_tasks`: a function of an `Encoder` that returns numbers by
            name. The best checkpoint can be chosen by one of them (`metric_for_best_model`).
        callbacks, optimizers: as in `Trainer`.

    Raises:
        InputError: a model, tokenizer, corpus or combination of settings that cannot be trained, before anything is.
    """

    method = "mirror"

    def __init__(
        self,
        model: str | PreTrainedModel = str(EMBEDDED_MODEL),
        args: MirrorConfig | None = None,
        train_dataset: Corpus | Sequence[str] | Dataset | IterableDataset = (),
        processing_class: PreTrainedTokenizerBase | None = None,
        score: Scorer | None = None,
        **kwargs,
    ):
        args = args or MirrorConfig()
        set_seed(args.seed)
        name = model if isinstance(model, str) else model.name_or_path
        score_tasks = make_task_scorer(args.eval_tasks, args.data_dir)
        self._score_kept = make_kept_score(args.keep, args.data_dir) if args.keep else None

        # ---- Model: backbone, noise, packing -----------------------------------------------------------------------
        base = checkpoint_settings(name) if name else {}
        tokenizer = processing_class
        if isinstance(model, str):  # with the pooling of the base, which may need its pooler
            model, own_tokenizer = load_backbone(model, args.pooling or base.get("pooling") or "mean")
            tokenizer = tokenizer or own_tokenizer
        tokenizer = tokenizer or load_tokenizer(name, model.config)
        check_vocabulary(tokenizer, model.config, name)
        changed = args.resolve_for(name, model.config.model_type, base.get("pooling"), has_pairs(train_dataset))
        self.head, self.prompts = keep_modules(base, args.pooling, name), prompts_to_save(base, args)
        logger.info(describe_base(name, base.get("pooling"), self.head, args, changed))
        self.truncate_dim = base.get("truncate_dim")
        self.saved_length = min(max(args.max_seq_length, base.get("max_seq_length") or 0), position_limit(model))
        check_length(model, args.max_seq_length)
        encoder = Encoder(model, tokenizer, args.pooling, args.max_seq_length, [*self.head])
        if len(self.head):
            encoder.check(name)
        check_dimensions(args.matryoshka_dims, encoder.dimension)
        if args.train_batch_size * (args.world_size if args.gather_negatives else 1) < 2:
            raise InputError(
                "--per_device_train_batch_size 1: a text without other texts has no negatives; use 2 or more"
            )
        packed = configure_noise_and_packing(
            model,
            args.pooling,
            args.packing,
            args.dropout_rate,
            args.drophead_rate,
            args.controlled_dropout,
            args.attention,
        )
        if args.lora_rank:
            add_lora(model, args.lora_rank)

        # ---- Data: texts, views, collator --------------------------------------------------------------------------
        self.prompt = choose_prompt(name, base, args.prompt, args.prompt_name)
        views = args.view_settings(tokenizer, self.prompt)
        with args.main_process_first(desc="two views of each text"):
            corpus, score_views = as_corpus(train_dataset), None
            if not args.force:
                check_texts_are_known(corpus.sample_texts(200), tokenizer)
            with reading(source_name(corpus.source)):
                corpus, held_out = hold_out(corpus, args.validation_samples)
                check_batch_fits(corpus.rows, args)
            if held_out is None and args.select_by:
                raise InputError(
                    f"--select_by {args.select_by}: the corpus is small; name a number of --validation_samples"
                )
            if held_out is not None and args.eval_strategy != IntervalStrategy.NO:
                score_views = alignment_uniformity_scorer(TwoViewDataset(held_out, tokenizer, views))
            # Here, because the first process of a machine writes the cache of the views.
            self._score_held_out = (
                comparable_views_scorer(held_out, tokenizer, views) if held_out is not None else None
            )
            step_rows = args.train_batch_size * args.world_size
            dataset = two_view_dataset(corpus.rows, tokenizer, views, step_rows, args.preprocessing_num_workers)
        near_duplicates = near_duplicates_of(corpus)
        report = corpus_report(corpus, dataset, args.train_batch_size, near_duplicates)
        logger.info("corpus\n%s", format_report(report, near_duplicates))
        if isinstance(corpus.rows, IterableDataset):
            if args.batching:
                raise InputError(f"--batching {args.batching} needs all texts at once; leave out --streaming or it")
            # Otherwise accelerate would split batches among the processes, and a packed row cannot be split.
            args.accelerator_config.dispatch_batches = False

        self.own_text = make_own_text_tests(held_out, args.validation_samples, args.select_by == OWN_TEXT)
        score_own_text = own_text_scorer(self.own_text) if self.own_text and score_views else None
        self.score = combine_scorers(score_views, score_own_text, score_tasks, score, self._score_kept)
        super().__init__(
            model=model,
            args=args,
            train_dataset=dataset,
            eval_dataset=dataset if self.score else None,  # Trainer wants one; `score` is what is evaluated
            data_collator=make_collator(args, model, tokenizer, packed),
            processing_class=tokenizer,
            base_model=name,
            settings=collect_settings(args, model_name_or_path=name, **source_settings(corpus.source)),
            corpus_report=report,
            dataset_name=corpus.source.dataset_name,
            **kwargs,
        )
        self.corpus = corpus
        self.own_text_scores: list[dict] | None = None
        self.held_out_views: dict[str, float] | None = None
        self.kept: dict | None = None
        if args.keep:
            self.add_callback(StopWhereLost(args.keep_within))
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            self.own_text, self._score_held_out = [], None  # the weights are spread over the processes
        if self.is_fsdp_enabled and args.lora_rank:
            raise InputError("--lora_rank does not work with FSDP; leave it out, or train without FSDP")
        self.can_return_loss, self.label_names = True, []  # or there is no eval_loss without labels
        self.objective = Objective(args, self.model, encoder.dimension)
        self.learned, self.auxiliaries = self.objective.learned, self.objective.auxiliaries
        for each in self.auxiliaries:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise InputError(f"{each.flag} does not work with FSDP or DeepSpeed; leave it out")
            self.add_callback(each)
        row_length = row_tokens(report, packed, args.max_seq_length)
        self.summary = step_summary(args, step_bytes(model, args, row_length), queue_bytes(model, args))
        logger.info("batch: %s", self.summary)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        """As in transformers; then measures what the training changed.

        `own_text_scores` says how much better the encoder finds texts of the corpus, `held_out_views` how close two noisy views
        of them are, and `kept` what became of the score of `--keep`.
        """
        resume_from_checkpoint = self.find_checkpoint(resume_from_checkpoint)
        if not self.args.force and has_nothing_left(resume_from_checkpoint, self.args.output_dir):
            return super().train(resume_from_checkpoint, **kwargs)
        before = self._own_text_ranks()
        if isinstance(self._score_kept, CosinesOfBase):
            self._score_kept.remember(self.encoder(training=False).encode)
        output = super().train(resume_from_checkpoint, **kwargs)
        if self.args.keep:
            self.kept = outcome(self.state, self.args.keep, self.args.keep_within, self.args.learning_rate)
        after = self._own_text_ranks()
        scores = [test.compare(*ranks) for test, *ranks in zip(self.own_text, before, after, strict=True)]
        self.own_text_scores = scores or None
        if self._score_held_out:
            self.held_out_views = self._score_held_out(self.encoder(training=False))
        return output

    def _own_text_ranks(self) -> list[np.ndarray]:
        return [test.ranks(self.encoder(training=False).encode) for test in self.own_text]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        first, second = self.embed(model, inputs).chunk(2)  # (B, D) each
        loss = self.contrast(first, second)
        if model.training:
            self._after_loss(first.detach(), second.detach(), [inputs])
        return (loss, {"first": first, "second": second}) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        if "mini_batches" not in inputs:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        mini_batches = self._prepare_inputs(inputs)["mini_batches"]
        loss, first, second = backward_through_cache(
            mini_batches=mini_batches,
            embed=partial(self.embed, model),
            contrast=self.contrast,
            backward=lambda loss: self.accelerator.backward(loss / self.current_gradient_accumulation_steps),
            synchronised=lambda last: nullcontext() if last else self.accelerator.no_sync(model),
        )
        self._after_loss(first, second, mini_batches)
        return loss / self.current_gradient_accumulation_steps

    def embed(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Vectors of all 2B rows of a batch, (2B, D), in one forward pass."""
        if "lengths" in inputs:  # packed
            output, mask = packed_forward(model, inputs, self.args.pooling)
        else:
            output = model(**inputs, output_hidden_states=self.args.pooling == "first_last_mean")
            mask = inputs["attention_mask"]
        vectors = pool(output, mask, self.args.pooling)
        if not len(self.head):
            return vectors
        return self.head.to(vectors.device)({"sentence_embedding": vectors.float()})["sentence_embedding"]

    def contrast(self, first: Tensor, second: Tensor) -> Tensor:
        """The loss of this process's rows against its own or, with `gather_negatives`, those of all processes.

        Args:
            first, second: (B, D), the two views.

        Raises:
            InputError: the loss is not finite.
        """
        loss = self.objective(first, second, self.state.global_step, self.monitor)
        return self.check_finite(loss, "a lower --learning_rate or a higher --temperature")

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Scores of `eval_tasks` as `eval_<task>`; every process scores, so that all agree on the best checkpoint."""
        if self.score is None:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        scores = self.score(self.encoder())
        if self.args.keep:
            scores |= {KEEP_STEP: self.state.global_step}
        metrics = {f"{metric_key_prefix}_{task}": score for task, score in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        """Only a step that kept enough of `--keep` can be the best."""
        if self.args.keep and not is_within(self.state, self.args.keep_within):
            return False
        return super()._determine_best_metric(metrics, trial)

    def encoder(self, training: bool = True) -> Encoder:
        """The model as it is now, ready to encode; leaves it in eval mode, which the next step undoes.

        Args:
            training: keep the autocast that further steps need. Without it the vectors are those of the saved weights, as
                other readers compute them.
        """
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=training, keep_torch_compile=False)
        return Encoder(
            model.eval(),
            self.processing_class,
            self.args.pooling,
            self.saved_length,
            [*self.head],
            self.prompt,
            self.truncate_dim,
        )

    def training_rows(self) -> list[Dataset | IterableDataset]:
        return [self.corpus.rows]

    def sample_texts(self) -> list[str]:
        """A few texts to compare readers on."""
        return self.corpus.sample_texts()

    def _get_train_sampler(self, train_dataset=None):
        """`group_by_length` by our own lengths: batches of similar length, which changes the negatives of a text."""
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        step_rows = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return LikeLengthSampler(self.train_dataset, step_rows, self.args.seed)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """All of them, biases and norms too, as in the released code."""
        return [name for name, _ in model.named_parameters()]

    def _get_grad_norm(self, model, grad_norm=None):
        """Only where it is logged: without clipping, Trainer would read and rewrite all gradients at every step for it."""
        due = (self.state.global_step + 1) % self.state.logging_steps == 0
        return super()._get_grad_norm(model, grad_norm) if due else grad_norm

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        for group in parameter_groups(self.auxiliaries) if is_new else ():
            optimizer.add_param_group(group)
        return optimizer

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        for each in self.auxiliaries if self.args.should_save else ():
            each.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint:
            resume(self.auxiliaries, KINDS, checkpoint)
        super()._load_optimizer_and_scheduler(checkpoint)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.learned:
            logs["temperature"] = round(self.learned.value().item(), 6)
        super().log(logs, start_time)

    def _after_loss(self, first: Tensor, second: Tensor, batches: list[dict[str, Tensor]]) -> None:
        """Of a training step: what the log shows of its views, (B, D) each, and what is queued of its batches."""
        if self.objective.queue:
            with self.accelerator.autocast():
                self.objective.queue.push(self.embed, batches)
        first, second = first[:MONITORED_ROWS], second[:MONITORED_ROWS]
        self.monitor("alignment", alignment(first, second))
        self.monitor("uniformity", uniformity(first))

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        """Weights and every description of the pooling; no pickled arguments beside them."""
        if self.args.should_save:
            model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
            if self.args.lora_rank:
                model = merged(model)
            save_encoder(
                folder=output_dir or self.args.output_dir,
                model=model,
                tokenizer=self.processing_class,
                pooling=self.args.pooling,
                max_seq_length=self.saved_length,
                settings=self.settings,
                head=[*self.head],
                prompts=self.prompts,
                state_dict=state_dict if self.is_fsdp_enabled else None,
            )


def make_collator(
    args: MirrorConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, packed: bool
) -> TwoViewCollator | PackedCollator | MiniBatchCollator:
    """How the rows of a step become its batch, or its mini-batches."""
    pad_to = args.pad_to or (args.max_seq_length if args.pooling == "mean_padded" else None)
    if packed:
        collator = PackedCollator(first_position(model), tokenizer.pad_token_id)
    else:
        collator = TwoViewCollator(tokenizer, pad_to)
    return MiniBatchCollator(collator, args.mini_batch_size) if args.mini_batch_size else collator

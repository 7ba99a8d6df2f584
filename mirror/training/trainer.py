"""Mirror-BERT on the Hugging Face `Trainer`: one forward pass over both views of a batch, pool, compare."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
from datasets import Dataset, IterableDataset
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import TrainOutput

from mirror.assets import EMBEDDED_MODEL
from mirror.common.alignment_uniformity import alignment, uniformity
from mirror.common.errors import InputError
from mirror.data.batching import LikeLengthSampler
from mirror.data.collators import MiniBatchCollator, PackedCollator, TwoViewCollator
from mirror.data.corpus import Corpus, has_pairs, source_settings
from mirror.data.corpus_report import row_tokens
from mirror.evaluation.run import make_task_scorer
from mirror.modeling.checkpoint import save_encoder
from mirror.modeling.encoder import Encoder
from mirror.modeling.packing import configure_noise_and_packing, first_position, packed_forward
from mirror.modeling.pooling import pool
from mirror.training.auxiliary import parameter_groups, resume
from mirror.training.base_encoder import load_base
from mirror.training.checkpoint_selection import Scorer, combine_scorers
from mirror.training.choices import KEEP_STEP
from mirror.training.config import MirrorConfig
from mirror.training.encoder_trainer import EncoderTrainer
from mirror.training.gradient_cache import backward_through_cache
from mirror.training.held_out_scores import has_nothing_left
from mirror.training.keep import CosinesOfBase, StopWhereLost, is_within, make_kept_score, outcome
from mirror.training.lora import add_lora, merged
from mirror.training.objective import KINDS, Objective, check_dimensions
from mirror.training.run_record import collect_settings
from mirror.training.step_summary import queue_bytes, step_bytes, step_summary
from mirror.training.training_texts import prepare_texts


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
        score_tasks = make_task_scorer(args.eval_tasks, args.data_dir)
        self._score_kept = make_kept_score(args.keep, args.data_dir) if args.keep else None
        self.base = load_base(model, processing_class, args, has_pairs(train_dataset))
        model, tokenizer = self.base.model, self.base.tokenizer
        check_dimensions(args.matryoshka_dims, self.base.dimension)
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
        texts = prepare_texts(train_dataset, tokenizer, self.base.prompt, args)
        if isinstance(texts.corpus.rows, IterableDataset):
            # Otherwise accelerate would split batches among the processes, and a packed row cannot be split.
            args.accelerator_config.dispatch_batches = False
        self.corpus, self.held_out = texts.corpus, texts.held_out
        label_free = self.held_out.criteria if self.held_out else []
        self.score = combine_scorers(*label_free, score_tasks, score, self._score_kept)
        super().__init__(
            model=model,
            args=args,
            train_dataset=texts.dataset,
            eval_dataset=texts.dataset if self.score else None,  # Trainer wants one; `score` is what is evaluated
            data_collator=make_collator(args, model, tokenizer, packed),
            processing_class=tokenizer,
            base_model=self.base.name,
            settings=collect_settings(args, model_name_or_path=self.base.name, **source_settings(texts.corpus.source)),
            corpus_report=texts.report,
            dataset_name=texts.corpus.source.dataset_name,
            **kwargs,
        )
        self.own_text_scores: list[dict] | None = None
        self.own_text_together: dict[str, float] | None = None
        self.held_out_views: dict[str, float] | None = None
        self.kept: dict | None = None
        if args.keep:
            self.add_callback(StopWhereLost(args.keep_within))
        self.can_return_loss, self.label_names = True, []  # or there is no eval_loss without labels
        self.objective = Objective(args, self.model, self.base.dimension)
        self.learned, self.auxiliaries = self.objective.learned, self.objective.auxiliaries
        for each in self.auxiliaries:
            self.add_callback(each)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            self._check_sharding()
            self.held_out = None  # no process has all weights, so that none can encode
        row_length = row_tokens(texts.report, packed, args.max_seq_length)
        self.summary = step_summary(args, step_bytes(model, args, row_length), queue_bytes(model, args))
        logger.info("batch: %s", self.summary)

    def _check_sharding(self) -> None:
        """
        Raises:
            InputError: a setting that does not work where the weights are spread over the processes.
        """
        if self.auxiliaries:
            raise InputError(f"{self.auxiliaries[0].flag} does not work with FSDP or DeepSpeed; leave it out")
        if self.args.lora_rank and self.is_fsdp_enabled:
            raise InputError("--lora_rank does not work with FSDP; leave it out, or train without FSDP")

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        """As in transformers; then measures what the training changed.

        `own_text_scores` says how much better the encoder finds texts of the corpus by each test, and `own_text_together` by
        all; `held_out_views` how close two noisy views of them are; `kept` what became of the score of `--keep`.
        """
        resume_from_checkpoint = self.find_checkpoint(resume_from_checkpoint)
        if not self.args.force and has_nothing_left(resume_from_checkpoint, self.args.output_dir):
            return super().train(resume_from_checkpoint, **kwargs)
        before = self.held_out.ranks(self.encoder(training=False)) if self.held_out else None
        if isinstance(self._score_kept, CosinesOfBase):
            self._score_kept.remember(self.encoder(training=False).encode)
        output = super().train(resume_from_checkpoint, **kwargs)
        if self.args.keep:
            self.kept = outcome(self.state, self.args.keep, self.args.keep_within, self.args.learning_rate)
        if self.held_out:
            encoder = self.encoder(training=False)
            self.own_text_scores, self.own_text_together = self.held_out.compare(before, self.held_out.ranks(encoder))
            self.held_out_views = self.held_out.views(encoder)
        return output

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
        head = self.base.head
        if not len(head):
            return vectors
        return head.to(vectors.device)({"sentence_embedding": vectors.float()})["sentence_embedding"]

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
        return self.encoder_of(model.eval())

    def encoder_of(self, model: PreTrainedModel) -> Encoder:
        """`model` with everything else of the encoder that is trained and saved."""
        base = self.base
        return Encoder(
            model,
            base.tokenizer,
            self.args.pooling,
            base.max_seq_length,
            [*base.head],
            base.prompt,
            base.truncate_dim,
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
                max_seq_length=self.base.max_seq_length,
                settings=self.settings,
                head=[*self.base.head],
                prompts=self.base.prompts,
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

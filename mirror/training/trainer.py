"""Mirror-BERT on the Hugging Face `Trainer`: encode both views of a batch in one forward pass, pool, compare."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence, Sized
from contextlib import nullcontext, suppress
from copy import copy
from functools import partial
from math import inf
from pathlib import Path

import datasets
import torch
from datasets import Dataset, IterableDataset
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy

from mirror.assets import EMBEDDED_MODEL
from mirror.common.distributed import gather_with_gradient, rank
from mirror.common.errors import InputError
from mirror.common.files import is_complete, plain
from mirror.common.vectors import alignment, uniformity
from mirror.data.batches import FalseNegatives, MiniBatchCollator, PackedCollator, TwoViewCollator
from mirror.data.cache import content_of
from mirror.data.cleaning import Corpus, even_places
from mirror.data.corpus import as_corpus, load_corpus
from mirror.data.document_corpus import title_pairs
from mirror.data.source import source_settings
from mirror.evaluation.encoding import EmbeddingCache, fingerprint
from mirror.evaluation.run import make_plan
from mirror.modeling.encoder import Encoder
from mirror.modeling.packing import configure_noise_and_packing, first_position, packed_forward
from mirror.modeling.pooling import pool, without_first
from mirror.modeling.read_checkpoint import ROLES
from mirror.modeling.save_checkpoint import save_encoder
from mirror.training import selection
from mirror.training.base_encoder import add_lora, load_base, merged, passages_for, settings_of
from mirror.training.checkpoints import IDENTITY
from mirror.training.config import MirrorConfig
from mirror.training.encoder_trainer import LENGTHS, EncoderTrainer, refuse_arguments
from mirror.training.gradient_cache import backward_through_cache, texts_in_memory
from mirror.training.losses import LossFunction, describe_loss, make_loss, name_of_loss, takes_false_negatives
from mirror.training.options import KEEP_STEP
from mirror.training.record import collect_settings
from mirror.training.resumable import ADAPTERS
from mirror.training.run_setup import prepare_texts
from mirror.training.selection import CosinesOfBase, Scorer


logger = logging.getLogger(__name__)

SAMPLED_ROWS = 16  # whose memory is measured, for batches of more than so many tokens
FEW_TOKENS = 8192
MONITORED_ROWS = 256  # alignment and uniformity are computed on at most this many rows of a step


class MirrorTrainer(EncoderTrainer):
    """Turn a masked language model, or an encoder, into a better encoder, by two views of every text.

    >>> trainer = MirrorTrainer(
    ...     model="bert-base-uncased", args=MirrorConfig(level="sentence", output_dir="out"), train_dataset=texts
    ... )
    >>> trainer.train()
    >>> trainer.finish()  # out/ loads in transformers, sentence-transformers and `Encoder.from_pretrained`

    Args:
        model: Hub id, folder, or loaded encoder without a head. Default: the small model of this package.
        args: the configuration.
        train_dataset: a list of texts, a dataset with the column `text` (and `text_pair` for pairs), a stream of such
            rows, or a `Corpus`, which is clean. Blank and repeated texts are dropped, titles become pairs (`title_pairs`).
        processing_class: the tokenizer, if it is not beside the model.
        loss: a function or module of the two views (`mirror.training.losses`), instead of `args.loss`. Projection
            head and Matryoshka dimensions of `args` wrap it.
        score: scores to compute at every evaluation, beside `eval_tasks`: a function of an `Encoder` that returns
            numbers by name. The best checkpoint can be chosen by one of them (`metric_for_best_model`).
        kwargs: callbacks, optimizers, optimizer_cls_and_kwargs as in `Trainer`. Others have no meaning here.
    """

    method = "mirror"

    def __init__(
        self,
        model: str | PreTrainedModel = str(EMBEDDED_MODEL),
        args: MirrorConfig | None = None,
        train_dataset: Corpus | Sequence[str] | Dataset | IterableDataset = (),
        processing_class: PreTrainedTokenizerBase | None = None,
        loss: LossFunction | None = None,
        score: Scorer | None = None,
        **kwargs,
    ):
        refuse_arguments(kwargs)
        if not isinstance(args, MirrorConfig | None):
            raise InputError(f"args: pass a MirrorConfig, which has the fields of TrainingArguments, not {type(args)}")
        args = copy(args) if args else MirrorConfig()  # of which a second trainer can be made
        set_seed(args.seed)
        if isinstance(train_dataset, str | Path):
            train_dataset = load_corpus(train_dataset, **passages_for(model, args, processing_class))
        tasks = make_plan(args.eval_tasks, args.data_dir).tasks if args.eval_tasks else []
        if tasks and args.metric_for_best_model == args.eval_tasks[0]:  # which can be a path or a group
            args.metric_for_best_model = tasks[0].name
        self._score_kept = selection.make_kept_score(args.keep, args.data_dir) if args.keep else None
        known = settings_of(model)
        with args.main_process_first(desc="texts"):
            train_dataset = as_corpus(train_dataset)
            if args.finds_titles(known.get("pooling")):
                train_dataset = title_pairs(train_dataset)
        self.base = load_base(model, known, processing_class, args, train_dataset)
        model, tokenizer = self.base.model, self.base.tokenizer
        shortest = args.max_seq_length if args.pooling == "mean_padded" else None
        if args.pad_to is not None and args.pad_to < (shortest or inf):  # before the texts are tokenized
            raise InputError(f"--pad_to {args.pad_to} is for --pooling mean_padded, at least its --max_seq_length")
        objective = make_loss(args, self.base.dimension, loss)
        noise = args.dropout_rate, args.drophead_rate, args.controlled_dropout
        packed = configure_noise_and_packing(model, args.pooling, args.packing, *noise)
        if args.lora_rank:
            add_lora(model, args.lora_rank)
        texts = train_dataset, tokenizer, self.base.view_prompts
        self.corpus, dataset, self.held_out, report = prepare_texts(*texts, args)
        rows, source = self.corpus.rows, self.corpus.source
        if isinstance(rows, IterableDataset):
            # Otherwise accelerate would split batches among the processes, and a packed row cannot be split.
            args.accelerator_config.dispatch_batches = False
        self._own_text = self.held_out.score if self.held_out and self.held_out.tests else None
        own_text = self._own_text if args.eval_strategy != IntervalStrategy.NO else None
        self.score = selection.combine_scorers(own_text, *tasks, score, self._score_kept)
        if self.score is None and args.eval_strategy != IntervalStrategy.NO:
            what = f"--eval_strategy {args.eval_strategy.value}: no test fits the texts that are held out"
            raise InputError(f"{what}; leave it out, or name tasks in --eval_tasks or a score in --keep")
        if args.merge == "auto" and self._own_text is None:
            raise InputError("--merge auto: no test fits the texts that are held out; give a weight, such as 0.5")
        if args.merge != "none" and args.lora_rank:
            raise InputError("--merge does not work with --lora_rank; leave out one of the two")
        if packed:
            collator = PackedCollator(first_position(model), tokenizer.pad_token_id)
        else:
            collator = TwoViewCollator(tokenizer, args.pad_to or shortest)
        if args.mini_batch_size:
            collator = MiniBatchCollator(collator, args.mini_batch_size)
        settings = collect_settings(args, model_name_or_path=self.base.name, **source_settings(source))
        if loss is not None:
            settings |= {"loss": name_of_loss(loss), "loss_description": describe_loss(objective)}
            settings.pop("temperature", None)  # of the level, which the loss does not use
            if not isinstance(loss, nn.Module):
                with suppress(Exception):  # of dill, as below
                    settings["loss_digest"] = content_of(loss)
        if callable(args.augmentation):  # a resume with another function is refused
            with suppress(Exception):  # of dill, which cannot pickle every function
                settings["augmentation_digest"] = content_of(args.augmentation)
        if args.train_sampling_strategy == "group_by_length":
            args.train_sampling_strategy = "sequential"  # the rows are in this order already (`LengthGroupedRows`)
        super().__init__(
            model=model,
            args=args,
            train_dataset=dataset,
            eval_dataset=dataset if self.score else None,  # Trainer requires one; `score` is what is evaluated
            data_collator=collator,
            processing_class=tokenizer,
            loss=objective,
            base_model=self.base.name,
            settings=settings,
            corpus_report=report,
            dataset_name=source.dataset_name,
            **kwargs,
        )
        self._ranks_before = None
        self._false_negatives: FalseNegatives | None = None
        pairs_at_once = isinstance(rows, Dataset) and self.corpus.has_pairs
        self._has_false_negatives = pairs_at_once and takes_false_negatives(objective)
        if args.guide and not self._has_false_negatives:
            needs = "pairs, all at once, and a loss that takes false_negatives"
            raise InputError(f"--guide needs {needs}; leave it out, or see --pairs")
        if args.keep:
            self.add_callback(selection.StopWhereLost(args.keep_within))
        self.can_return_loss, self.label_names = True, []  # or there is no eval_loss without labels
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            if self._loss_parameters:
                named = f"a loss with parameters ({name_of_loss(objective)})"
                what = "--projection_head" if args.projection_head else named
                raise InputError(f"{what} does not work with FSDP or DeepSpeed; leave it out")
            if args.lora_rank and self.is_fsdp_enabled:
                raise InputError("--lora_rank does not work with FSDP; leave it out, or train without FSDP")
            if args.merge != "none":
                raise InputError("--merge does not work with FSDP or DeepSpeed; leave it out")
            self.held_out = None  # no process has all weights, so none can encode
            if args.guide == "base":
                raise InputError("--guide base does not work with FSDP or DeepSpeed; name the model instead")
        batch, world = args.train_batch_size * args.world_size, args.world_size
        compared = batch if args.gather_negatives else args.train_batch_size
        precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
        self.summary = (
            f"{batch:,} texts per step on {world} process(es), each compared with {compared:,} by {settings['loss']}, "
            f"{precision} ({args.precision_reason})"
        )
        logger.info("batch: %s", self.summary)

    def before_training(self, checkpoint: str | None) -> None:
        super().before_training(checkpoint)
        self.measured = {}
        self._merge = selection.Merge(self.model) if self.args.merge != "none" else None
        if checkpoint and not self.args.force and is_complete(self.args.output_dir):
            state = TrainerState.load_from_json(f"{checkpoint}/{TRAINER_STATE_NAME}")
            earlier = json.loads((Path(checkpoint) / IDENTITY).read_text(encoding="utf-8"))["settings"]
            is_longer = any(earlier.get(name) != plain(self.settings.get(name)) for name in LENGTHS)
            if 0 < state.max_steps <= state.global_step and not is_longer:  # nothing is left to train, or to measure
                return
        is_whole = not isinstance(self.data_collator, MiniBatchCollator)
        if is_whole and self.args.device.type == "cpu" and isinstance(self.train_dataset, Sized):
            self._fit_into_memory()
        self._false_negatives = self._find_false_negatives()
        self._ranks_before = self.held_out.ranks(self.encoder(training=False)) if self.held_out else None
        if isinstance(self._score_kept, CosinesOfBase):
            self._score_kept.remember(self.encoder(training=False).encode)

    def _fit_into_memory(self) -> None:
        """Split batches of long texts into mini-batches if the machine has not enough memory."""
        places = even_places(len(self.train_dataset), SAMPLED_ROWS)
        rows = self.data_collator(self.train_dataset.__getitems__(places))
        rows.pop("rows", None)
        if rows["attention_mask"].sum() * self.args.train_batch_size > FEW_TOKENS * len(places):
            with self.accelerator.autocast():
                forward = partial(self.embed, self.model.train(), rows)
                size = texts_in_memory(forward, self.model.parameters(), len(places), self.args.train_batch_size)
            self.data_collator = MiniBatchCollator(self.data_collator, size) if size else self.data_collator

    def _find_false_negatives(self) -> FalseNegatives | None:
        """Return what finds the false negatives of pairs in memory. A guide encodes all their texts."""
        if not (self._has_false_negatives and self.args.guide):
            return FalseNegatives(self.corpus.rows) if self._has_false_negatives else None
        with self.args.main_process_first(desc="vectors of the guide"):  # the others read them from the cache
            guide = self.encoder(training=False)
            if self.args.guide != "base":
                guide = Encoder.from_pretrained(self.args.guide, device=self.args.device)
            folder = Path(datasets.config.HF_DATASETS_CACHE) / "mirror-guide" / fingerprint(guide)[:16]
            return FalseNegatives(self.corpus.rows, EmbeddingCache(folder, guide.encode))

    def after_training(self) -> None:
        """Measure how much better the encoder finds held-out texts, and what became of the score of `--keep`."""
        super().after_training()
        if self.args.keep:
            self.measured["kept"] = selection.outcome(self.state, self.args)
        if self._merge:
            self._merge_with_base()
        if self._ranks_before is not None:
            self.measured |= self.held_out.compare(self._ranks_before, self.encoder(training=False))

    def _merge_with_base(self) -> None:
        """Set the average of `--merge`, and score it in place of the step that would be saved."""
        score, kept = selection.combine_scorers(self._own_text, self._score_kept), self.measured.get("kept")
        low = kept["before"] - self.args.keep_within if kept else -inf
        self.measured["merged"] = self._merge.choose(self.args.merge, lambda: score(self.encoder(training=False)), low)
        if self.score:
            scores = self.score(self.encoder(training=False))
            step = (self.args.load_best_model_at_end and self.state.best_global_step) or self.state.global_step
            self.state.log_history.append({f"eval_{name}": value for name, value in scores.items()} | {"step": step})
            if kept:
                kept["after"] = scores[selection.KEEP]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        rows = inputs.pop("rows", None)
        first, second = self.embed(model, inputs).chunk(2)  # (B, D) each
        loss = self.contrast(first, second, rows)
        if model.training:
            self._monitor_views(first.detach(), second.detach())
        return (loss, {"first": first, "second": second}) if return_outputs else loss

    def train_mini_batches(self, model: nn.Module, mini_batches: list[dict]) -> Tensor:
        rows = [batch.pop("rows") for batch in mini_batches if "rows" in batch]
        loss, first, second = backward_through_cache(
            mini_batches=mini_batches,
            embed=partial(self.embed, model),
            contrast=partial(self.contrast, rows=torch.cat(rows) if rows else None),
            backward=lambda loss: self.accelerator.backward(loss / self.current_gradient_accumulation_steps),
            synchronised=lambda last: nullcontext() if last else self.accelerator.no_sync(model),
        )
        self._monitor_views(first, second)
        return loss

    def embed(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Encode all 2B rows of a batch in one forward pass, (2B, D)."""
        mask, skipped = inputs["attention_mask"], self.base.skipped
        if skipped is not None:  # tokens of each row's prompt, (2B,)
            skipped = torch.tensor(skipped, device=mask.device).repeat_interleave(len(mask) // 2)
        if "lengths" in inputs:  # packed
            output, mask = packed_forward(model, inputs, self.args.pooling, skipped)
        else:
            output = model(**inputs, output_hidden_states=self.args.pooling == "first_last_mean")
            if skipped is not None:
                output, mask = without_first(output, mask, skipped)
        vectors, head = pool(output, mask, self.args.pooling), self.base.head
        if not len(head):
            return vectors
        return head.to(vectors.device)({"sentence_embedding": vectors.float()})["sentence_embedding"]

    def contrast(self, first: Tensor, second: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute the loss of this process's pairs, (B, D) each, with `gather_negatives` against those of all processes.

        `rows`, (B,), are the numbers of their rows, of pairs. A loss that is not finite is an `InputError`.
        """
        gathered = {}
        if self.args.gather_negatives:
            gathered = {"all_first": gather_with_gradient(first), "all_second": gather_with_gradient(second)}
            gathered["offset"] = rank() * len(first)
        if rows is not None and self._false_negatives:
            all_rows = self.accelerator.gather(rows) if self.args.gather_negatives else rows
            gathered["false_negatives"] = self._false_negatives(rows, all_rows)
        loss = self.loss(first, second, **gathered)
        return self.check_finite(loss, "a lower --learning_rate or a higher --temperature")

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Return the scores as `eval_<task>`. Every process scores, so that all choose the same best checkpoint."""
        if self.score is None:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        scores = self.score(self.encoder())
        scores |= {KEEP_STEP: self.state.global_step} if self.args.keep else {}
        metrics = {f"{metric_key_prefix}_{task}": score for task, score in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self.args.keep and not selection.is_within(self.state, self.args.keep_within):
            # Trainer must not choose a step that lost too much of --keep. The log above has its true scores.
            chosen_by = f"{metric_key_prefix}_{self.args.metric_for_best_model.removeprefix('eval_')}"
            metrics = metrics | {chosen_by: -inf if self.args.greater_is_better else inf}
        return metrics

    def encoder(self, training: bool = True) -> Encoder:
        """Return the current model as an encoder. Switches to eval mode; the next training step switches back.

        `training` keeps the autocast that further steps need. Without it the vectors are those of the saved weights.
        """
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=training, keep_torch_compile=False).eval()
        base = self.base
        return Encoder(
            *(model, base.tokenizer, self.args.pooling, base.max_seq_length, [*base.head], base.prompt),
            truncate_dim=base.prompts.get("truncate_dim"),
            role_prompts={role: base.prompts.get("prompts", {}).get(role, "") for role in ROLES},
            include_prompt=base.prompts.get("include_prompt", True),
        )

    def training_rows(self) -> list[Dataset | IterableDataset]:
        return [self.corpus.rows]

    def sample_texts(self) -> list[str]:
        """Return a few texts on which the saved encoder is verified."""
        return self.corpus.sample_texts()

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return all of them, biases and norms too, as in the released code."""
        return [name for name, _ in model.named_parameters()]

    # Overrides a private method: without clipping, `Trainer` reads and rewrites all gradients at every step to compute
    # a norm that only the log shows, and no flag turns that off.
    def _get_grad_norm(self, model, grad_norm=None):
        """Return the norm of the gradient at steps that are logged."""
        due = (self.state.global_step + 1) % self.state.logging_steps == 0
        return super()._get_grad_norm(model, grad_norm) if due else grad_norm

    def _monitor_views(self, first: Tensor, second: Tensor) -> None:
        first, second = first[:MONITORED_ROWS], second[:MONITORED_ROWS]
        self.monitor("alignment", alignment(first, second))
        self.monitor("uniformity", uniformity(first))

    def describe_checkpoint(self, folder: Path) -> None:
        super().describe_checkpoint(folder)
        if (adapters := self._adapters()) and self.args.should_save:
            save_file({name: weight.detach().contiguous() for name, weight in adapters.items()}, folder / ADAPTERS)

    # Overrides two private methods: `Trainer` would look for the adapters among the merged weights, and find none.
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not self.args.lora_rank:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        adapters, path = self._adapters(), Path(resume_from_checkpoint) / ADAPTERS
        stored = load_file(path) if path.is_file() else {}
        if stored.keys() != adapters.keys():
            lost = f"{resume_from_checkpoint} has no {ADAPTERS} with the adapters of this run"
            raise InputError(f"{lost}; train from the start")
        with torch.no_grad():
            for name, weight in stored.items():
                adapters[name].copy_(weight)

    def _adapters(self) -> dict[str, Tensor]:
        """Return the weights that LoRA trains, by name. Empty without it."""
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        return {name: each for name, each in model.named_parameters() if self.args.lora_rank and each.requires_grad}

    def _load_best_model(self) -> None:
        if self.args.lora_rank:
            self._load_from_checkpoint(self.state.best_model_checkpoint)
        else:
            super()._load_best_model()

    def save_encoder(self, folder: str, state_dict: dict[str, Tensor] | None) -> None:
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        save_encoder(
            *(folder, merged(model) if self.args.lora_rank else model, self.processing_class, self.args.pooling),
            *(self.base.max_seq_length, self.settings),
            head=[*self.base.head],
            prompts=self.base.prompts,
            state_dict=state_dict,
        )

"""`Trainer` for the stages of CMLM: one forward call per step gives what the losses of the stage need."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from datasets import Dataset
from datasets import IterableDataset as StreamedRows
from pytorch_optimizer import Lamb
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Sampler, SequentialSampler
from transformers import set_seed

from mirror.assets import EMBEDDED_MODEL
from mirror.cmlm.checkpoint import load_cmlm, load_weights, mean_projection, parts_of, save_cmlm
from mirror.cmlm.config import CMLMConfig
from mirror.cmlm.data import StageCollator
from mirror.cmlm.losses import additive_margin_softmax
from mirror.cmlm.model import IGNORED, CMLMModel
from mirror.cmlm.stages import Parts, dataset_report, length_that_fits, sample_of, stage_dataset
from mirror.common.distributed import gather_with_gradient, rank, world_size
from mirror.common.errors import InputError
from mirror.data.collators import MiniBatchCollator
from mirror.data.endless_stream import EndlessStream
from mirror.data.files import reading
from mirror.modeling.backbone import check_texts_are_known
from mirror.modeling.encoder import Encoder
from mirror.training.encoder_trainer import EncoderTrainer, name_of_rows
from mirror.training.gradient_cache import backward_through_cache
from mirror.training.run_record import collect_settings


logger = logging.getLogger(__name__)


class CMLMTrainer(EncoderTrainer):
    """Trains a sentence encoder by conditional masked language modelling, or by one of its later stages.

    >>> trainer = CMLMTrainer(
    ...     model="bert-base-uncased", args=CMLMConfig(stage="cmlm", output_dir="out"), train_dataset=documents
    ... )
    >>> trainer.train()
    >>> trainer.save_model()

    Args:
        model: a Hub id or a folder: a masked LM, or what an earlier stage saved. Default: the small model of this package.
        args: everything that can be set.
        train_dataset: what the stage learns from. `cmlm`, `cmlm_bitext` and `quickthought`: documents, as a list of texts or
            a dataset with the column `text`; `bitext`: a dataset of `text` and `text_pair`; `nli`: the same with `label` (0 entailment,
            1 neutral, 2 contradiction). A list of datasets keeps languages apart.
        bitext_dataset: translations (`text`, `text_pair`), for the stage `cmlm_bitext`.
        data_settings: where the data comes from, kept in the checkpoint.
        callbacks, optimizers: as in `Trainer`.

    Raises:
        InputError: a model or data that the stage cannot be trained with, before anything is.
    """

    method = "cmlm"

    def __init__(
        self,
        model: str = str(EMBEDDED_MODEL),
        args: CMLMConfig | None = None,
        train_dataset: Sequence[str] | Dataset | StreamedRows | Parts = (),
        bitext_dataset: Dataset | Sequence[Dataset] | None = None,
        data_settings: dict | None = None,
        **kwargs,
    ):
        args = args or CMLMConfig()
        set_seed(args.seed)
        name = model
        model, tokenizer = load_cmlm(name, args.num_projections, args.skip_connection, args.pooling, args.from_scratch)
        args.max_seq_length = length_that_fits(model, args.max_seq_length, args.stage)
        parts = as_parts(train_dataset)
        if not parts:
            raise InputError(f"train_dataset: no rows for the stage {args.stage}")
        with args.main_process_first(desc="pairs"), reading(name_of_rows(data_settings or {})):
            if not args.force:
                check_texts_are_known([row["text"] for part in parts for row in part.take(100)], tokenizer)
            dataset = stage_dataset(tokenizer, args, parts, as_parts(bitext_dataset or ()))
        report = dataset_report(dataset)
        logger.info("rows: %s", ", ".join(f"{count:,} of {kind}" for kind, count in report.items()) or "streamed")
        collator = StageCollator(tokenizer)
        freeze_idle_parts(model, args.stage)
        super().__init__(
            model=model,
            args=args,
            train_dataset=dataset,
            data_collator=MiniBatchCollator(collator, args.mini_batch_size) if args.mini_batch_size else collator,
            processing_class=tokenizer,
            optimizer_cls_and_kwargs=_lamb(args),
            base_model=name,
            settings=collect_settings(args, model_name_or_path=name, **(data_settings or {})),
            corpus_report=report,
            dataset_name=(data_settings or {}).get("dataset_name"),
            **kwargs,
        )
        if self.is_fsdp_enabled:
            raise InputError("CMLM is not trained with FSDP; use accelerate_configs/multi_gpu_bf16.yaml")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        losses = []
        if "cmlm" in inputs:
            count = count_of_all(outputs["num_masked"])
            losses.append(self.monitor("loss_cmlm", world_size() * outputs["token_loss"] / count))
        if "pairs" in inputs:
            losses.append(self._pair_weight() * self.retrieve(*outputs["pair_vectors"].chunk(2)))
        if "nli" in inputs:
            losses.append(
                self.monitor("loss_nli", F.cross_entropy(outputs["nli_logits"].float(), inputs["nli"]["labels"]))
            )
        loss = self.check_finite(sum(losses), "or a lower --learning_rate")
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        if "mini_batches" not in inputs:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        pieces = self._prepare_inputs(inputs)["mini_batches"]
        both = "cmlm" in pieces[0] and "pairs" in pieces[0]
        loss = torch.zeros((), device=self.args.device)
        # The pairs first: they use part of the weights that the masked LM uses, and processes exchange gradients last.
        if "pairs" in pieces[0]:
            loss = loss + self._cached_pair_step(model, [piece["pairs"] for piece in pieces], exchange=not both)
        if "cmlm" in pieces[0]:
            loss = loss + self._split_cmlm_step(model, [piece["cmlm"] for piece in pieces])
        return self.check_finite(loss, "or a lower --learning_rate") / self.current_gradient_accumulation_steps

    def _cached_pair_step(self, model: nn.Module, pieces: Sequence[dict[str, Tensor]], exchange: bool) -> Tensor:
        """The gradient of the retrieval loss over all mini-batches as one batch; returns the loss, detached."""
        loss, _, _ = backward_through_cache(
            mini_batches=list(pieces),
            embed=lambda texts: model(pairs=texts)["pair_vectors"],
            contrast=lambda first, second: self._pair_weight() * self.retrieve(first, second),
            backward=self._backward,
            synchronised=lambda last: self._exchanging(model, last and exchange),
        )
        return loss

    def _split_cmlm_step(self, model: nn.Module, pieces: Sequence[dict]) -> Tensor:
        """The gradient of the CMLM loss, a mean over the masked tokens of all mini-batches; returns the loss, detached."""
        count = count_of_all(torch.stack([(piece["labels"] != IGNORED).sum() for piece in pieces]).sum())
        total = torch.zeros((), device=self.args.device)
        for number, piece in enumerate(pieces, start=1):
            with self._exchanging(model, number == len(pieces)):
                loss = world_size() * model(cmlm=piece)["token_loss"] / count
                self._backward(loss)
            total += loss.detach()
        return self.monitor("loss_cmlm", total)

    def _backward(self, loss: Tensor) -> None:
        self.accelerator.backward(loss / self.current_gradient_accumulation_steps)

    def _exchanging(self, model: nn.Module, exchange: bool):
        return nullcontext() if exchange else self.accelerator.no_sync(model)

    def _pair_weight(self) -> float:
        return self.args.bitext_weight if self.args.stage == "cmlm_bitext" else 1.0

    def retrieve(self, sources: Tensor, targets: Tensor) -> Tensor:
        """The loss of this process's pairs, translations or neighbours, against the texts of all processes.

        QuickThought compares by plain inner products (Logeswaran & Lee 2018).
        """
        args, plain = self.args, self.args.stage == "quickthought"
        loss = additive_margin_softmax(
            sources,
            targets,
            margin=0.0 if plain else args.margin,
            scale=1.0 if plain else args.scale,
            normalize=not plain and args.normalize_embeddings,
            all_sources=gather_with_gradient(sources),
            all_targets=gather_with_gradient(targets),
            offset=rank() * len(sources),
        )
        return self.monitor("loss_quickthought" if plain else "loss_bitext", loss)

    def _get_train_sampler(self, train_dataset=None) -> Sampler | None:
        """In order: the dataset itself draws the order of an epoch."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return None if isinstance(dataset, IterableDataset) else SequentialSampler(dataset)

    def encoder(self, training: bool = True) -> Encoder:
        """The encoder as it is now; leaves the model in eval mode, which the next step undoes.

        Args:
            training: as in `MirrorTrainer.encoder`; here it makes no difference, for autocast wraps the whole CMLM model.
        """
        model = self._bare_model().eval()
        head = mean_projection(model.projection) if self.args.sentence_vector == "proj" else ()
        return Encoder(model.encoder, self.processing_class, model.config.pooling, self.args.max_seq_length, head)

    def training_rows(self) -> Parts:
        dataset = self.train_dataset
        main = dataset.stream if isinstance(dataset, EndlessStream) else dataset.rows.rows
        return [main] + ([dataset.bitext.pairs.rows] if dataset.bitext else [])

    def sample_texts(self) -> list[str]:
        """A few texts to compare readers on."""
        return sample_of(self.train_dataset, self.processing_class)

    def _bare_model(self) -> CMLMModel:
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        if self.args.should_save:
            save_cmlm(
                folder=output_dir or self.args.output_dir,
                model=self._bare_model(),
                tokenizer=self.processing_class,
                max_seq_length=self.args.max_seq_length,
                sentence_vector=self.args.sentence_vector,
                settings=self.settings,
            )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_weights(self._bare_model() if model is None else model, resume_from_checkpoint)


def as_parts(rows: Sequence[str] | Dataset | StreamedRows | Sequence[Dataset]) -> Parts:
    """A list of datasets, whatever was given."""
    if isinstance(rows, (Dataset, StreamedRows)):
        return [rows]
    rows = list(rows)
    return [Dataset.from_dict({"text": rows})] if rows and isinstance(rows[0], str) else rows


def freeze_idle_parts(model: CMLMModel, stage: str) -> None:
    """Only what a stage uses gets a gradient: DDP waits for the gradient of every other weight."""
    for name, parameter in parts_of(model).items():
        of_classifier = name.startswith("nli.")
        parameter.requires_grad_(of_classifier if stage == "nli" else "cmlm" in stage and not of_classifier)


def count_of_all(count: Tensor) -> Tensor:
    """Sum of a number over all processes, so that every masked token weighs the same wherever it is."""
    total = count.clone().float()
    if world_size() > 1:
        dist.all_reduce(total)
    return total


def _lamb(args: CMLMConfig) -> tuple[type, dict] | None:
    """LAMB as its paper prints it: the decay is inside the update that the trust ratio scales."""
    if args.optimizer != "lamb":
        return None
    betas = (args.adam_beta1, args.adam_beta2)
    return Lamb, {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon, "weight_decouple": False}

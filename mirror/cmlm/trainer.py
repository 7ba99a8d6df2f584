"""`Trainer` for the stages of CMLM: one forward call per step gives what the losses of the stage need."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from datasets import Dataset, IterableDataset, interleave_datasets
from pytorch_optimizer import Lamb
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, set_seed

from mirror.assets import EMBEDDED_MODEL
from mirror.cmlm import data
from mirror.cmlm.model import (
    IGNORED,
    CMLMModel,
    additive_margin_softmax,
    load_cmlm,
    load_mlm,
    load_parts,
    mean_projection,
    parts_of,
    save_cmlm,
)
from mirror.cmlm.options import DOCUMENT_STAGES, PAPER_LENGTH, CMLMOptions
from mirror.cmlm.reading import Parts, segment_documents
from mirror.common.distributed import gather_with_gradient, mean_over_processes, rank
from mirror.common.errors import InputError
from mirror.data.batches import MiniBatchCollator
from mirror.data.corpus import as_corpus
from mirror.data.files import reading
from mirror.data.source import CorpusSource
from mirror.data.tables import check_columns
from mirror.data.views import EndlessStream, special_tokens_around
from mirror.modeling.backbone import check_texts_are_known, position_limit
from mirror.modeling.encoder import Encoder
from mirror.training.config import BaseConfig
from mirror.training.encoder_trainer import EncoderTrainer, name_of_rows, refuse_arguments
from mirror.training.gradient_cache import backward_through_cache
from mirror.training.record import collect_settings
from mirror.training.run_setup import check_batch_fits


STAGE_COLUMNS = {"bitext": ["text", "text_pair"], "nli": ["text", "text_pair", "label"]}  # the others: text
logger = logging.getLogger(__name__)


@dataclass
class CMLMConfig(CMLMOptions, BaseConfig):
    """Settings of CMLM (sections 2 to 4), explained in `mirror.cmlm.options`: `CMLMConfig(stage="cmlm")`."""

    def __post_init__(self) -> None:
        CMLMOptions.__post_init__(self)
        BaseConfig.__post_init__(self)
        self.train_sampling_strategy = "sequential"  # the dataset draws the order of an epoch from (seed, epoch)
        if self.eval_strategy != "no":
            raise InputError("--eval_strategy: CMLM has nothing to evaluate; score its checkpoints with run_eval.py")


class PaperLamb(Lamb):
    """LAMB as its paper prints it (You et al. 2020, Algorithm 2, phi(z) = z): each tensor moves by the rate times its norm.

    The library's class caps the norm of the weights at 10, so a step of BERT's word embeddings is a tenth of what the rate
    says, and divides the step that the trust ratio has scaled by 1 - beta1^t, so the first one is ten times too long. The
    moments are not bias-corrected, as in Google's own code (google-research/albert, lamb_optimizer.py). Unlike in that code
    biases and layer norms have a trust ratio too. `Trainer` gives them no weight decay.
    """

    clamp = float("inf")

    def __init__(self, params, **flags):
        super().__init__(params, weight_decouple=False, adam_debias=True, **flags)


class CMLMTrainer(EncoderTrainer):
    """Train a sentence encoder by conditional masked language modeling, or by one of its later stages.

    >>> trainer = CMLMTrainer(
    ...     model="bert-base-uncased", args=CMLMConfig(stage="cmlm", output_dir="out"), train_dataset=documents
    ... )
    >>> trainer.train()
    >>> trainer.finish()  # out/ loads in transformers, sentence-transformers and `Encoder.from_pretrained`

    Args:
        model: Hub id or path of a masked LM, or of what an earlier stage saved. Default: the small model of this package.
        train_dataset: the data of the stage: documents, as a list of texts or a dataset with the column `text`; for
            `bitext` a dataset of `text` and `text_pair`; for `nli` the same with `label` (0 entailment, 1 neutral, 2
            contradiction). A list of datasets keeps languages apart.
        bitext_dataset: translations (`text`, `text_pair`), for the stage `cmlm_bitext`.
        data_settings: where the data comes from, for the checkpoint.
        kwargs: callbacks, optimizers as in `Trainer`.
    """

    method = "cmlm"

    def __init__(
        self,
        model: str = str(EMBEDDED_MODEL),
        args: CMLMConfig | None = None,
        train_dataset: Sequence[str] | Dataset | IterableDataset | Parts = (),
        bitext_dataset: Dataset | Sequence[Dataset] | None = None,
        data_settings: dict | None = None,
        **kwargs,
    ):
        refuse_arguments(kwargs)
        args, data_settings, name = copy(args or CMLMConfig()), data_settings or {}, model
        set_seed(args.seed)
        model, tokenizer = load_cmlm(name, args.num_projections, args.skip_connection, args.pooling, args.from_scratch)
        args.max_seq_length = length_that_fits(model, args.max_seq_length, args.stage)
        args.pooling = model.config.pooling
        parts = as_parts(train_dataset, STAGE_COLUMNS.get(args.stage, ["text"]))
        if not parts:
            raise InputError(f"train_dataset: no rows for the stage {args.stage}")
        with args.main_process_first(desc="pairs"), reading(name_of_rows(data_settings)):
            if not args.force:
                check_texts_are_known([row["text"] for part in parts for row in islice(part, 100)], tokenizer)
            dataset = stage_dataset(tokenizer, args, parts, as_parts(bitext_dataset or (), STAGE_COLUMNS["bitext"]))
        report = {} if isinstance(dataset, EndlessStream) else {dataset.kind: len(dataset.rows)}
        report |= {"pairs": len(dataset.bitext.pairs)} if dataset.bitext else {}
        rows = ", ".join(f"{count:,} of {kind}" for kind, count in report.items())
        logger.info("Training rows: %s", rows or "streamed")
        collator = data.StageCollator(tokenizer)
        for name_of_part, parameter in parts_of(model).items():  # DDP waits for the gradient of every weight
            parameter.requires_grad_(args.stage == "nli" if name_of_part.startswith("nli.") else "cmlm" in args.stage)
        lamb = None
        if args.optimizer == "lamb":  # section 3
            flags = {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
            lamb = PaperLamb, {"lr": args.learning_rate, **flags}
        settings = collect_settings(args, model_name_or_path=name, **data_settings)
        settings.pop("train_sampling_strategy", None)  # always the same; without it, runs of earlier versions resume
        super().__init__(
            model=model,
            args=args,
            train_dataset=dataset,
            data_collator=MiniBatchCollator(collator, args.mini_batch_size) if args.mini_batch_size else collator,
            processing_class=tokenizer,
            optimizer_cls_and_kwargs=lamb,
            base_model=name,
            settings=settings,
            corpus_report=report,
            dataset_name=data_settings.get("dataset_name"),
            **kwargs,
        )
        if self.is_fsdp_enabled:
            raise InputError("CMLM is not trained with FSDP; use accelerate_configs/multi_gpu_bf16.yaml")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        losses = []
        if "cmlm" in inputs:
            # DDP averages over the processes, so the mean count gives every masked token the same weight on any of them.
            count = mean_over_processes(outputs["num_masked"].float())
            losses.append(self.monitor("loss_cmlm", outputs["token_loss"] / count))
        if "pairs" in inputs:
            losses.append(self.retrieve(*outputs["pair_vectors"].chunk(2)))
        if "nli" in inputs:
            loss = F.cross_entropy(outputs["nli_logits"].float(), inputs["nli"]["labels"])
            losses.append(self.monitor("loss_nli", loss))
        loss = self.check_finite(sum(losses), "or a lower --learning_rate")
        return (loss, outputs) if return_outputs else loss

    def retrieve(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted loss of this process's pairs, translations or neighbors, against the texts of all."""
        args, plain = self.args, self.args.stage == "quickthought"  # inner products (Logeswaran & Lee 2018)
        form = (0.0, 1.0, False) if plain else (args.margin, args.scale, args.normalize_embeddings)
        everywhere = gather_with_gradient(sources), gather_with_gradient(targets)
        loss = additive_margin_softmax(sources, targets, *form, *everywhere, offset=rank() * len(sources))
        self.monitor("loss_quickthought" if plain else "loss_bitext", loss)
        return (args.bitext_weight if args.stage == "cmlm_bitext" else 1.0) * loss

    def train_mini_batches(self, model: nn.Module, pieces: list[dict]) -> Tensor:
        def backward(loss: Tensor) -> None:
            self.accelerator.backward(loss / self.current_gradient_accumulation_steps)

        def exchanging(exchange: bool) -> AbstractContextManager:
            return nullcontext() if exchange else self.accelerator.no_sync(model)

        loss = torch.zeros((), device=self.args.device)
        # The pairs first: they use part of the weights that the masked LM uses, and processes exchange gradients last.
        if "pairs" in pieces[0]:
            pair_loss, _, _ = backward_through_cache(
                mini_batches=[piece["pairs"] for piece in pieces],
                embed=lambda texts: model(pairs=texts)["pair_vectors"],
                contrast=self.retrieve,
                backward=backward,
                synchronised=lambda last: exchanging(last and "cmlm" not in pieces[0]),
            )
            loss = loss + pair_loss
        if "cmlm" in pieces[0]:  # a mean over the masked tokens of all mini-batches needs no cache
            masked = torch.stack([(piece["cmlm"]["labels"] != IGNORED).sum() for piece in pieces])
            count, total = mean_over_processes(masked.sum().float()), torch.zeros_like(loss)
            for piece in pieces:
                with exchanging(piece is pieces[-1]):
                    part = model(cmlm=piece["cmlm"])["token_loss"] / count
                    backward(part)
                total += part.detach()
            loss = loss + self.monitor("loss_cmlm", total)
        return self.check_finite(loss, "or a lower --learning_rate")

    def encoder(self, training: bool = True) -> Encoder:
        """Return the current encoder, in eval mode. `training` has no effect: autocast wraps the whole CMLM model."""
        model = self._bare_model().eval()
        head = mean_projection(model.projection) if self.args.sentence_vector == "proj" else ()
        return Encoder(model.encoder, self.processing_class, model.config.pooling, self.args.max_seq_length, head)

    def training_rows(self) -> Parts:
        dataset = self.train_dataset
        main = dataset.stream if isinstance(dataset, EndlessStream) else dataset.rows.rows
        return [main] + ([dataset.bitext.pairs.rows] if dataset.bitext else [])

    def sample_texts(self) -> list[str]:
        rows = [next(iter(row.values())) for row, _ in zip(self.train_dataset, range(8), strict=False)]
        return [self.processing_class.decode(row["first_ids"], skip_special_tokens=True) for row in rows]

    def _bare_model(self) -> CMLMModel:
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def save_encoder(self, folder: str, state_dict: dict[str, Tensor] | None) -> None:
        length, vector = self.args.max_seq_length, self.args.sentence_vector
        save_cmlm(folder, self._bare_model(), self.processing_class, length, vector, self.settings)

    # Overrides a private method: `Trainer` would look for the weights of the whole CMLM model in the file of the encoder.
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        model = self._bare_model() if model is None else model
        model.mlm.load_state_dict(load_mlm(resume_from_checkpoint)[0].state_dict())
        load_parts(model, resume_from_checkpoint)


def as_parts(rows: Sequence[str] | Dataset | IterableDataset | Sequence[Dataset], columns: list[str]) -> Parts:
    """Return datasets that have `columns`, of texts or what else `as_corpus` takes, a dataset, or a list of datasets."""
    if isinstance(rows, str | Path):
        raise InputError(f"train_dataset: {rows} is a name; mirror.cmlm.reading.read_documents reads files")
    parts = [rows] if isinstance(rows, (Dataset, IterableDataset)) else rows
    if not isinstance(parts, list | tuple) or not all(isinstance(part, (Dataset, IterableDataset)) for part in parts):
        parts = [as_corpus(rows, CorpusSource(keep_duplicates=True)).rows]
    for part in parts:
        check_columns("train_dataset", columns, part.column_names or columns, "rename the one that it is")
    if "label" in columns:  # as in files: a label of -1 is none
        parts = [p.filter(lambda x: [n in (0, 1, 2) for n in x], batched=True, input_columns="label") for p in parts]
    return list(parts)


def stage_dataset(
    tokenizer: PreTrainedTokenizerBase, config: CMLMConfig, parts: Parts, bitext: Sequence[Dataset] | None = None
) -> data.StageDataset | data.StreamedStageDataset:
    """Return the rows that the stage of `config` trains on. Each of `parts`, and of `bitext`, is a file or language."""
    batch_size = config.train_batch_size * config.world_size
    to_row, stream = data.PairTokenizer(tokenizer, config.max_seq_length), None
    kind = "nli" if config.stage == "nli" else "pairs"
    if config.stage == "cmlm_bitext":
        if not bitext:
            raise InputError("--stage cmlm_bitext learns from translations too; give bitext_dataset or --bitext_file")
        pairs = data.EpochShuffledDataset(bitext, config.language_smoothing, config.seed)
        stream = data.BitextStream(pairs, to_row, batch_size)
    if config.stage in DOCUMENT_STAGES:
        before, after = special_tokens = special_tokens_around(tokenizer)
        if config.stage == "quickthought":
            to_row = data.SegmentRowBuilder(None, 0.0, special_tokens)
        else:
            kind, masking = "cmlm", data.Masking.of(tokenizer, config.mlm_probability)
            to_row = data.SegmentRowBuilder(masking, config.swap_probability, special_tokens)
        max_tokens = config.max_seq_length - len(before) - len(after)
        parts = segment_documents(parts, tokenizer, config.language, max_tokens, config.preprocessing_num_workers)
    if isinstance(parts[0], IterableDataset):
        # Every row once in a pass, also of files that are longer than others.
        once = "all_exhausted_without_replacement"
        segments = interleave_datasets(parts, stopping_strategy=once) if len(parts) > 1 else parts[0]
        check_batch_fits(segments, config)
        return data.StreamedStageDataset(kind, segments, to_row, config.seed, batch_size, stream)
    rows = data.EpochShuffledDataset(parts, config.language_smoothing, config.seed)
    check_batch_fits(rows.rows, config)
    return data.StageDataset(kind, rows, to_row, batch_size, stream)


def length_that_fits(model: CMLMModel, max_seq_length: int | None, stage: str) -> int:
    """Return the length of segments: the given one, or the paper's if the prefix leaves that many positions."""
    prefix, limit = model.config.num_projections if "cmlm" in stage else 0, position_limit(model.encoder)
    room = limit - prefix
    if max_seq_length is None:
        if room < PAPER_LENGTH:
            message = "Using --max_seq_length %d: the model has %d positions, %d of them before the text"
            logger.info(message, room, limit, prefix)
        return min(PAPER_LENGTH, room)
    if max_seq_length > room:
        raise InputError(
            f"--max_seq_length {max_seq_length} and {prefix} projected vectors before it need "
            f"{max_seq_length + prefix} positions; the model has {limit}, so give at most {room}"
        )
    return max_seq_length

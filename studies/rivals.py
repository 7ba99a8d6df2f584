"""Other ways to adapt an encoder to texts without labels, by the libraries that their authors use.

    python -m studies.rivals --method simcse --model_name_or_path M --train_file texts.txt --output_dir out/simcse

Trains with the losses of sentence-transformers, or with the masked LM of transformers, and saves the folder that `run_mirror.py`
would save: the encoder, and `train_results.json` with the test on the texts held out, which are the same as those of a run of
`run_mirror.py` on this file. The study `rivals` calls it.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mirror.common.cli import Parser, configure_logging, positive
from mirror.common.errors import InputError, run_main


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Published settings: batch, rate and passes of the examples of sentence-transformers for each method, and of transformers'
# example for masked LM. `gist` has no example without pairs and takes those of `simcse`.
PUBLISHED = {
    "simcse": (128, 5e-5, 1),  # two views by dropout
    "ct": (128, 5e-5, 1),  # contrastive tension with in-batch negatives: two copies of the encoder
    "tsdae": (8, 3e-5, 1),  # 60 % of the words deleted, a decoder writes the text
    "mlm": (64, 5e-5, 3),  # masked LM on the texts
    "gist": (128, 5e-5, 1),  # as simcse; negatives that the base finds too similar are left out
}
WARM_UP = 0.1
DELETED = 0.6  # TSDAE, section 4.1
MASKED = 0.15
LONGEST = 16  # texts whose memory is measured: a batch is padded to its longest


def main() -> None:
    args = parse_arguments()
    configure_logging(logging.INFO)
    adapt(args)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--method", required=True, choices=PUBLISHED, help="Way to adapt.")
    add("--model_name_or_path", required=True, metavar="M", help="Encoder to adapt.")
    add("--train_file", required=True, nargs="+", metavar="FILE", help="Files of texts, as in run_mirror.py.")
    add("--output_dir", required=True, metavar="DIR", help="Path to the folder for the encoder.")
    add("--max_train_samples", type=positive, metavar="N", help="Number of distinct texts to use. Default: all.")
    add(
        "--validation_samples",
        type=positive,
        metavar="N",
        help="Number of texts to hold out. Default: as run_mirror.py.",
    )
    add("--learning_rate", type=float, metavar="R", help="Default: the published one of the method.")
    add("--per_device_train_batch_size", type=positive, metavar="B", help="Default: the published one of the method.")
    add("--num_train_epochs", type=float, metavar="E", help="Default: the published one of the method.")
    add("--max_seconds", type=positive, metavar="S", help="Stop training after this time. Default: no limit.")
    add("--merge", type=float, default=1.0, metavar="W", help="Share of the new weights; the rest is the base's.")
    add("--seed", type=int, default=33, metavar="S", help="Seed.")
    return parser.parse_args(argv)


def adapt(args: argparse.Namespace) -> None:
    """Adapt an encoder by `args.method`, and save it with its record."""
    # Imported late so that --help and errors in the flags are fast.
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import set_seed

    from mirror.data.cleaning import hold_out
    from mirror.data.corpus import load_corpus
    from mirror.data.source import CorpusSource
    from mirror.evaluation.own_text import compare_all, make_tests
    from mirror.modeling.encoder import Encoder
    from mirror.training.record import RunRecord, run_facts

    source = CorpusSource(train_file=args.train_file, max_train_samples=args.max_train_samples)
    corpus, held_out = hold_out(load_corpus(source), args.validation_samples)
    tests = []
    with suppress(InputError):  # names have no test
        tests = make_tests(held_out["text"][:]) if held_out else []
    encode = Encoder.from_pretrained(args.model_name_or_path).encode
    before = [test.ranks(encode) for test in tests]
    set_seed(args.seed)
    model = SentenceTransformer(args.model_name_or_path)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    start = time.perf_counter()
    training = _masked_lm if args.method == "mlm" else _contrastive
    arguments = training(model, corpus.rows["text"][:], args)
    seconds = time.perf_counter() - start
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.lerp(weights[name], value, args.merge))
    model.save_pretrained(args.output_dir)
    encode = Encoder.from_pretrained(args.output_dir).encode
    compared = compare_all(tests, before, [test.ranks(encode) for test in tests])
    RunRecord(
        method=args.method,
        metrics={"train_runtime": seconds},
        run=run_facts(arguments, args.model_name_or_path, None),
        corpus={"rows": len(corpus.rows)},
        settings=vars(args),
        **compared,
    ).save(args.output_dir)


def _contrastive(model: SentenceTransformer, texts: Sequence[str], args: argparse.Namespace):
    """Train with a loss of sentence-transformers. Return the training arguments."""
    import numpy as np
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sentence_transformer.training_args import (
        BatchSamplers,
        SentenceTransformerTrainingArguments,
    )

    from mirror.data.augmentation import delete

    columns = {"anchor": texts, "positive": texts}
    if args.method == "tsdae":
        rng = np.random.default_rng(args.seed)
        columns["anchor"] = [delete(text, DELETED, rng)[0] for text in texts]
        loss = losses.DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True)
    elif args.method == "ct":
        loss = losses.ContrastiveTensionLossInBatchNegatives(model)
    else:
        # The cached losses are the same in mini-batches, in a third more time.
        size = _in_memory(model, texts, 2 * (args.per_device_train_batch_size or PUBLISHED[args.method][0]))
        cached = {"mini_batch_size": size} if size else {}
        if args.method == "simcse":
            kind = losses.CachedMultipleNegativesRankingLoss if cached else losses.MultipleNegativesRankingLoss
            loss = kind(model, **cached)
        else:
            # Not within a view: both texts of a pair are the same, so the guide would not leave out a text as its own negative.
            kind = losses.CachedGISTEmbedLoss if cached else losses.GISTEmbedLoss
            guide = SentenceTransformer(args.model_name_or_path)
            loss = kind(model, guide, 0.05, contrast_anchors=False, contrast_positives=False, **cached)
    arguments = _arguments(SentenceTransformerTrainingArguments, args, batch_sampler=BatchSamplers.NO_DUPLICATES)
    rows = Dataset.from_dict(columns)
    SentenceTransformerTrainer(model, arguments, rows, loss=loss, callbacks=_stop_after(args.max_seconds)).train()
    return arguments


def _in_memory(model: SentenceTransformer, texts: Sequence[str], batch: int) -> int | None:
    """Return how many texts of a `batch` fit into a third of the memory. None: all of them, or the model is on a GPU."""
    from mirror.training.gradient_cache import texts_in_memory

    if model.device.type != "cpu":
        return None
    longest = sorted(texts, key=len)[-LONGEST:]
    sample = model.train().preprocess(longest)
    return texts_in_memory(lambda: model(sample), model.parameters(), len(longest), batch)


def _masked_lm(model: SentenceTransformer, texts: Sequence[str], args: argparse.Namespace):
    """Train the encoder's layers as a masked LM. A head that the checkpoint lacks starts at random, as in transformers."""
    from datasets import Dataset
    from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

    masked_lm = AutoModelForMaskedLM.from_pretrained(args.model_name_or_path)
    rows = Dataset.from_dict(dict(model.tokenizer(texts, truncation=True, max_length=model.max_seq_length)))
    collator = DataCollatorForLanguageModeling(model.tokenizer, mlm_probability=MASKED)
    arguments = _arguments(TrainingArguments, args)
    Trainer(masked_lm, arguments, collator, rows, callbacks=_stop_after(args.max_seconds)).train()
    model.transformers_model.load_state_dict(masked_lm.base_model.state_dict(), strict=False)  # has no pooler
    return arguments


def _arguments(kind: type, args: argparse.Namespace, **others):
    """Return training arguments: those of the flags, and the published ones of the method for the rest."""
    import torch

    from mirror.training.config import choose_precision

    batch, rate, epochs = PUBLISHED[args.method]
    bf16, _, _ = choose_precision(None, None, not torch.cuda.is_available())  # that of run_mirror.py
    return kind(
        output_dir=args.output_dir,
        per_device_train_batch_size=args.per_device_train_batch_size or batch,
        learning_rate=args.learning_rate or rate,
        num_train_epochs=args.num_train_epochs or epochs,
        warmup_steps=WARM_UP,
        lr_scheduler_type="constant_with_warmup" if args.max_seconds else "linear",  # its last step is not known
        bf16=bf16,
        use_cpu=not torch.cuda.is_available(),
        seed=args.seed,
        report_to="none",
        save_strategy="no",
        logging_steps=10,
        **others,
    )


def _stop_after(seconds: float | None) -> list:
    """Return a callback that ends training after this time, in a list, or none."""
    from transformers import TrainerCallback

    class StopAfter(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.end = time.perf_counter() + seconds

        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = time.perf_counter() > self.end

    return [StopAfter()] if seconds else []


if __name__ == "__main__":
    run_main(main)

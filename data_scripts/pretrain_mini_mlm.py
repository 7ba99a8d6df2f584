"""Pretrain the small masked language model in `mirror/assets/mini-mlm`.

A plain `BertForMaskedLM` with the Trainer. Three measures get it past the unigram plateau on a CPU: word embeddings
initialized from a factorized co-occurrence matrix, no dropout, and many short sequences. Two halve the cost of a token
(`predicted_words.py`). Two objectives of whole rows (--bag_weight, --neighbor_weight) prepare the first token and the mean
of a text for Mirror-BERT. docs/studies/pretraining.md has the gain of each.

The learning rate is constant, so the number of steps need not be known in advance: stop the run (SIGTERM, Ctrl-C) and
continue it with the same command as often as you like. At any time a second, short run lets the learning rate of the last
checkpoint decay to zero and exports the model:

    python data_scripts/pretrain_mini_mlm.py --text_files novels.txt articles.txt --output_dir out/mini-mlm \\
        --max_steps 100000 --bf16
    python data_scripts/pretrain_mini_mlm.py --text_files novels.txt articles.txt --output_dir out/mini-mlm-decayed \\
        --start_from out/mini-mlm --max_steps 4000 --lr_scheduler_type linear --warmup_steps 50 --bf16 --export_dir out/mini

Every --save_steps steps a checkpoint is saved and the loss of held-out text is measured (a hundredth of the corpus, over
the whole vocabulary, 15% of the tokens masked). Checkpoints and log are in --output_dir. An exported folder is enough to
continue on another machine (--start_from, and --text_files again). Its README then covers all runs.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from tokenizers import BertWordPieceTokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    TrainingArguments,
    set_seed,
)


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.predicted_words import CandidateSampler, pretraining_loss
from data_scripts.pretraining_card import start_history, write_card
from data_scripts.pretraining_windows import LENGTHS, Corpus, WindowBatches
from mirror.common.config_parser import FlagParser
from mirror.common.errors import InputError, run_main
from mirror.data.docstrings import Docstring, collect, first_sentence
from mirror.training.checkpoints import last_complete_checkpoint
from mirror.training.resumable import ResumableTrainer


logger = logging.getLogger(__name__)

HELD_OUT_BLOCK, HELD_OUT_EVERY = 4096, 100  # tokens; every hundredth block of them is held out
DOCSTRING_PACKAGES = (
    *("stdlib", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "networkx", "torch", "transformers", "sympy"),
    *("datasets", "huggingface_hub", "sentence_transformers", "accelerate", "pydantic", "fontTools", "pygments"),
    *("rich", "PIL", "setuptools", "tensorboard", "narwhals", "mpmath", "pyarrow", "joblib", "requests", "httpx"),
    *("jinja2", "evaluate", "fsspec", "click", "multiprocess", "aiohttp", "yaml"),
)
SENTENCE_START = re.compile(r"(?<=[.!?])[\"']?\s+(?=[\"']?[A-Z])")


@dataclass
class MiniMLMArguments:
    text_files: list[str] = field(
        default_factory=list, metadata={"help": "Paths of plain text files with one paragraph per line."}
    )
    text_licenses: list[str] = field(
        default_factory=list,
        metadata={"help": "Licenses of --text_files, in the same order, for the README of an exported model."},
    )
    start_from: str | None = field(
        default=None,
        metadata={
            "help": "Path to an earlier run, to use its weights and data, or to an exported model, to use its weights and "
            "vocabulary with --text_files."
        },
    )
    vocab_size: int = field(default=20000, metadata={"help": "Size of the WordPiece vocabulary."})
    hidden_size: int = field(
        default=256, metadata={"help": "Hidden size. There is one attention head per 64 components."}
    )
    num_hidden_layers: int = field(default=3, metadata={"help": "Number of transformer layers."})
    tokens_per_step: int = field(
        default=4096, metadata={"help": "Number of tokens per batch, for any sequence length."}
    )
    mlm_probability: float = field(default=0.2, metadata={"help": "Share of the tokens to predict."})
    num_candidates: int = field(
        default=4096,
        metadata={
            "help": "Number of words that predictions are compared with, a sample of the vocabulary. 0 compares with all."
        },
    )
    bag_weight: float = field(
        default=0.0,
        metadata={
            "help": "Weight of the loss of the first token, which predicts all words of its row. 0 disables it."
        },
    )
    neighbor_weight: float = field(
        default=0.0,
        metadata={
            "help": "Weight of InfoNCE between the mean vectors of a window and of the text after it. 0 disables it. "
            "Otherwise rows come in pairs."
        },
    )
    dropout: float = field(default=0.0, metadata={"help": "Dropout of the hidden states and of the attention."})
    export_dir: str | None = field(
        default=None,
        metadata={
            "help": "Path to export the model to, in float16 and with dropout for fine-tuning. Default: no export."
        },
    )
    compile_loss: bool = field(
        default=False,
        metadata={"help": "Whether to compile the forward pass with torch.compile, which is about 1.15x faster."},
    )


class MiniMLMTrainer(ResumableTrainer):
    loss_function: Callable[..., torch.Tensor]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with self.accelerator.autocast():  # accelerate only wraps `model.forward`, which is not called here
            loss = self.loss_function(model, **inputs)
        return (loss, {}) if return_outputs else loss


def train_tokenizer(paragraphs: list[str], vocab_size: int) -> BertTokenizerFast:
    """Train a lower-case WordPiece tokenizer on the paragraphs."""
    wordpiece = BertWordPieceTokenizer(lowercase=True)
    wordpiece.train_from_iterator(
        paragraphs, vocab_size=vocab_size, min_frequency=3, limit_alphabet=300, show_progress=False
    )
    vocab = sorted(wordpiece.get_vocab(), key=wordpiece.get_vocab().get)
    return BertTokenizerFast(
        vocab={token: index for index, token in enumerate(vocab)}, do_lower_case=True, model_max_length=128
    )


def tokenize(paragraphs: list[str], tokenizer: BertTokenizerFast) -> Corpus:
    """Concatenate the paragraphs, each followed by [SEP]. A window may begin at any sentence start."""
    sentences, closes = [], []
    for paragraph in paragraphs:
        parts = [part for part in SENTENCE_START.split(paragraph) if part]
        sentences += parts
        closes += [False] * (len(parts) - 1) + [True] * bool(parts)
    encoded = tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
    rows = [ids + [tokenizer.sep_token_id] * close for ids, close in zip(encoded, closes, strict=True)]
    starts = np.cumsum([0] + [len(row) for row in rows])[:-1]
    ids = np.concatenate([np.asarray(row, dtype=np.uint16) for row in rows])
    return Corpus(ids, starts[starts < len(ids) - max(LENGTHS)])


def cooccurrence_vectors(ids: np.ndarray, vocab_size: int, width: int, window: int = 6) -> np.ndarray:
    """Compute word vectors of unit length by a truncated SVD of the positive pointwise mutual information.

    Args:
        ids: the corpus, (tokens,).
        vocab_size: number of word types.
        width: dimension of the vectors.
        window: maximum distance of two tokens that co-occur. Their weight is 1 / distance.

    Returns:
        (vocab_size, width)
    """
    counts = np.zeros(vocab_size * vocab_size, dtype=np.float32)
    for distance in range(1, window + 1):
        pairs = ids[:-distance].astype(np.int64) * vocab_size + ids[distance:]
        counts += np.bincount(pairs, minlength=len(counts)).astype(np.float32) / distance
    counts = counts.reshape(vocab_size, vocab_size)
    counts += counts.T
    totals = counts.sum(axis=1) + 1e-9
    smoothed = totals**0.75  # Levy et al. 2015: context distribution smoothing
    ppmi = np.log(np.maximum(counts * (smoothed.sum() / (totals[:, None] * smoothed)), 1.0))
    vectors = TruncatedSVD(width, n_iter=4, random_state=0).fit_transform(ppmi)
    vectors /= np.sqrt(np.linalg.norm(vectors, axis=0, keepdims=True)) + 1e-9  # U sqrt(S)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-6)


def pretraining_paragraphs(entries: Iterable[Docstring]) -> list[str]:
    """Return prose paragraphs of the training part, each once. None contains a summary of another part."""
    entries = list(entries)
    held_out = {entry.summary.lower() for entry in entries if entry.part != "train"}
    paragraphs = dict.fromkeys(text for entry in entries if entry.part == "train" for text in entry.paragraphs)
    return [text for text in paragraphs if first_sentence(text).lower() not in held_out]


def prepare(args: MiniMLMArguments, folder: Path) -> tuple[BertTokenizerFast, Corpus]:
    """Return tokenizer and corpus, created once and stored in `folder`. An exported model has a tokenizer already."""
    if not (folder / "starts.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = [
            line for name in args.text_files for line in Path(name).read_text(encoding="utf-8").splitlines() if line
        ]
        texts += pretraining_paragraphs(collect(DOCSTRING_PACKAGES))
        exported = args.start_from and BertTokenizerFast.from_pretrained(args.start_from)
        tokenizer = exported or train_tokenizer(texts, args.vocab_size)
        tokenizer.save_pretrained(folder)
        tokenize(texts, tokenizer).save(folder)
    return BertTokenizerFast.from_pretrained(folder), Corpus.load(folder)


def new_model(args: MiniMLMArguments, vocab_size: int) -> BertForMaskedLM:
    """Return a model with random weights."""
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_hidden_layers,
        num_attention_heads=args.hidden_size // 64,
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=max(LENGTHS),
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
    )
    return BertForMaskedLM(config)


def initialize_words(model: BertForMaskedLM, corpus: Corpus) -> None:
    """Replace the word embeddings by co-occurrence vectors of the corpus, as long as the random ones are expected to be."""
    words = model.bert.embeddings.word_embeddings.weight.data
    vectors = cooccurrence_vectors(corpus.ids, *words.shape)
    words.copy_(torch.from_numpy(vectors * model.config.initializer_range * np.sqrt(words.shape[1])))


def export(
    model: BertForMaskedLM, tokenizer: BertTokenizerFast, args: MiniMLMArguments, output_dir: str, corpus: Corpus
) -> None:
    """Save the model in float16, with BERT's dropout for further training and a README."""
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.1
    folder = Path(args.export_dir)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_card(folder, model, output_dir, args.text_files, args.text_licenses, len(corpus.ids))


def objective(args: MiniMLMArguments) -> str:
    """Describe the objective of a run, for the README of the model."""
    parts = [f"{args.mlm_probability:.0%} of the tokens are predicted"]
    if args.bag_weight:
        parts.append(f"the first token predicts the words of its row (weight {args.bag_weight:g})")
    if args.neighbor_weight:
        parts.append(
            f"the mean of a row tells which other row is the text beside it (weight {args.neighbor_weight:g})"
        )
    return "; ".join([*parts, f"dropout {args.dropout:g}, {args.tokens_per_step:,} tokens a step"])


def batches(
    args: MiniMLMArguments, training: TrainingArguments, corpus: Corpus, tokenizer: BertTokenizerFast
) -> dict[str, WindowBatches]:
    """Return the training batches, and a few held-out ones that are the same for every run with this corpus."""
    held_out = corpus.starts // HELD_OUT_BLOCK % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    if not held_out.any():
        held_out[-1] = True  # a tiny corpus
    counts = np.bincount(corpus.ids, minlength=len(tokenizer))
    training_part, held_out_part = (Corpus(corpus.ids, corpus.starts[part]) for part in (~held_out, held_out))
    sample, everything = (CandidateSampler.from_counts(counts, size) for size in (args.num_candidates, 0))
    return {
        "train_dataset": WindowBatches(
            *(training_part, tokenizer, sample, args.tokens_per_step, args.mlm_probability),
            *(training.seed, training.max_steps),
            with_bag=args.bag_weight > 0,
            with_neighbors=args.neighbor_weight > 0,
        ),
        "eval_dataset": WindowBatches(held_out_part, tokenizer, everything, 4096, 0.15, 0, 16, mask_all=True),
    }


def main() -> None:
    parser = FlagParser((MiniMLMArguments, TrainingArguments), __doc__)
    defaults = {"per_device_train_batch_size": 1, "logging_steps": 100, "save_steps": 500, "save_total_limit": 2}
    parser.set_defaults(**defaults, warmup_steps=400, lr_scheduler_type="constant_with_warmup", adam_beta2=0.98)
    parser.set_defaults(weight_decay=0.01, remove_unused_columns=False, use_cpu=not torch.accelerator.is_available())
    parser.set_defaults(learning_rate=1e-3, per_device_eval_batch_size=1, label_names=["labels"])
    parser.set_defaults(eval_strategy="steps", prediction_loss_only=True)
    args, training, unknown = parser.parse_args_into_dataclasses(return_remaining_strings=True)
    parser.refuse_leftover(unknown, sys.argv[1:])
    logging.basicConfig(level=logging.INFO)
    torch.set_flush_denormal(True)
    set_seed(training.seed)
    training.eval_steps = training.save_steps
    if missing := [name for name in args.text_files if not Path(name).is_file()]:
        raise InputError(f"--text_files {missing[0]}: no such file")
    if args.text_licenses and len(args.text_licenses) != len(args.text_files):
        raise InputError(f"--text_licenses needs one for each of the {len(args.text_files)} --text_files")

    folders = [Path(folder) / "data" for folder in (args.start_from, training.output_dir) if folder]
    data_folder = next((folder for folder in folders if folder.exists()), folders[-1])
    start_history(training.output_dir, args.start_from, args.tokens_per_step, objective(args))
    tokenizer, corpus = prepare(args, data_folder)
    logger.info("%d tokens, %d sentences, %d word pieces", len(corpus.ids), len(corpus.starts), len(tokenizer))
    resumed = last_complete_checkpoint(training.output_dir)
    if args.start_from:
        weights = last_complete_checkpoint(args.start_from) or args.start_from
        dropout = {"hidden_dropout_prob": args.dropout, "attention_probs_dropout_prob": args.dropout}
        model = BertForMaskedLM.from_pretrained(weights, dtype=torch.float32, **dropout)
    else:
        model = new_model(args, len(tokenizer))
        if resumed is None:
            initialize_words(model, corpus)

    trainer = MiniMLMTrainer(
        model=model,
        args=training,
        **batches(args, training, corpus, tokenizer),
        data_collator=lambda batch: batch[0],
        processing_class=tokenizer,
    )
    loss_function = partial(pretraining_loss, bag_weight=args.bag_weight, neighbor_weight=args.neighbor_weight)
    trainer.loss_function = torch.compile(loss_function, dynamic=False) if args.compile_loss else loss_function
    trainer.train(resume_from_checkpoint=resumed)
    trainer.save_model()
    trainer.save_state()
    if args.export_dir:
        export(trainer.accelerator.unwrap_model(trainer.model), tokenizer, args, training.output_dir, corpus)


if __name__ == "__main__":
    run_main(main)

"""Pretrain the small masked language model in `mirror/assets/mini-mlm`.

A plain `BertForMaskedLM` with the Trainer. Three measures get it past the unigram plateau on a CPU: word embeddings
initialised from a factorised co-occurrence matrix, no dropout, and many short sequences. The run can be resumed at any
step:

    python data_scripts/pretrain_mini_mlm.py --text_files novels.txt articles.txt --output_dir out/mini-mlm \\
        --max_steps 12000 --learning_rate 1e-3 --bf16 --compile_loss
    # then decay the learning rate to zero, starting from the last checkpoint of the first run
    python data_scripts/pretrain_mini_mlm.py --text_files novels.txt articles.txt --output_dir out/mini-mlm-final \\
        --start_from out/mini-mlm --max_steps 4000 --learning_rate 1e-3 --lr_scheduler_type linear --warmup_steps 50 \\
        --bf16 --compile_loss --export_dir mirror/assets/mini-mlm
"""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from tokenizers import BertWordPieceTokenizer
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    HfArgumentParser,
    TrainingArguments,
    set_seed,
)


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.data.docstring_corpus import collect, pretraining_paragraphs
from mirror.training.manifest import last_complete_checkpoint
from mirror.training.resumable import ResumableTrainer


logger = logging.getLogger(__name__)

# Sequence length -> share of the steps. Most texts that users encode are short, so most sequences are.
LENGTHS = {16: 0.2, 32: 0.4, 64: 0.3, 128: 0.1}
DOCSTRING_PACKAGES = (
    *("stdlib", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "networkx", "torch", "transformers", "sympy"),
    *("datasets", "huggingface_hub", "sentence_transformers", "accelerate", "pydantic", "fontTools", "pygments"),
    *("rich", "PIL", "setuptools", "tensorboard", "narwhals", "mpmath", "pyarrow", "joblib", "requests", "httpx"),
    *("jinja2", "evaluate", "fsspec", "click", "multiprocess", "aiohttp", "yaml"),
)
SENTENCE_START = re.compile(r"(?<=[.!?])[\"']?\s+(?=[\"']?[A-Z])")


@dataclass
class MiniMLMArguments:
    text_files: list[str] = field(metadata={"help": "Plain text files with one paragraph per line."})
    start_from: str | None = field(
        default=None, metadata={"help": "Folder of an earlier run whose weights and data to use."}
    )
    vocab_size: int = field(default=12000, metadata={"help": "Size of the WordPiece vocabulary."})
    hidden_size: int = field(
        default=256, metadata={"help": "Hidden size; the number of attention heads is this divided by 64."}
    )
    num_hidden_layers: int = field(default=3, metadata={"help": "Number of transformer layers."})
    tokens_per_step: int = field(default=4096, metadata={"help": "Tokens per batch, for any sequence length."})
    mlm_probability: float = field(default=0.18, metadata={"help": "Share of the tokens to predict."})
    export_dir: str | None = field(
        default=None, metadata={"help": "Also save the model here, in float16 and with dropout for fine-tuning."}
    )
    compile_loss: bool = field(
        default=False, metadata={"help": "Compile the forward pass with torch.compile: about 1.15x faster."}
    )


@dataclass
class Corpus:
    """All texts as one sequence of token ids, and the positions where sentences start."""

    ids: np.ndarray  # (tokens,) uint16
    starts: np.ndarray  # (sentences,) int64

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        return cls(np.load(folder / "ids.npy"), np.load(folder / "starts.npy"))

    def save(self, folder: Path) -> None:
        """Write both files; `starts.npy` is renamed into place last, so if it exists the folder is complete."""
        np.save(folder / "ids.npy", self.ids)
        np.save(folder / "_starts.npy", self.starts)
        (folder / "_starts.npy").replace(folder / "starts.npy")


class WindowBatches(Dataset):
    """Dataset of batches: item i is a batch of masked windows of one length, determined only by (seed, i)."""

    def __init__(self, corpus: Corpus, tokenizer: BertTokenizerFast, args: MiniMLMArguments, seed: int, steps: int):
        self.corpus, self.tokenizer, self.args, self.seed, self.steps = corpus, tokenizer, args, seed, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng([self.seed, index])
        length = int(rng.choice(list(LENGTHS), p=list(LENGTHS.values())))
        rows = self.args.tokens_per_step // length
        ids = np.empty((rows, length), dtype=np.int64)
        ids[:, 0], ids[:, -1] = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        starts = rng.choice(self.corpus.starts, rows)
        ids[:, 1:-1] = self.corpus.ids[starts[:, None] + np.arange(length - 2)]
        return self._mask(ids, rng)

    def _mask(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Mask a fixed number of tokens as in BERT: 80% become [MASK], 10% a random token, 10% are unchanged.

        Args:
            ids: (rows, length); modified in place.

        Returns:
            `input_ids` (rows, length), and the flat `positions` (masked,) and `targets` (masked,) of the prediction.
        """
        flat = ids.reshape(-1)
        noise = rng.random(len(flat))
        noise[np.isin(flat, self.tokenizer.all_special_ids)] = 2.0
        positions = np.argsort(noise)[: int(self.args.mlm_probability * len(flat))]
        targets = flat[positions].copy()
        rng.shuffle(positions_order := np.arange(len(positions)))
        masked, randomised = np.split(positions_order, [int(0.8 * len(positions)), int(0.9 * len(positions))])[:2]
        flat[positions[masked]] = self.tokenizer.mask_token_id
        flat[positions[randomised]] = rng.integers(5, len(self.tokenizer), len(randomised))
        return {
            "input_ids": torch.from_numpy(ids),
            "positions": torch.tensor(positions),
            "targets": torch.tensor(targets),
        }


def masked_lm_loss(model: BertForMaskedLM, input_ids, positions, targets) -> torch.Tensor:
    """Cross-entropy at the masked positions only: the output layer costs a sixth of that of `model(labels=)`."""
    hidden = model.bert(input_ids=input_ids).last_hidden_state.flatten(0, 1)[positions]  # (masked, H)
    return torch.nn.functional.cross_entropy(model.cls(hidden).float(), targets)


class MiniMLMTrainer(ResumableTrainer):
    loss_function = staticmethod(masked_lm_loss)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with self.accelerator.autocast():  # accelerate only wraps `model.forward`, which is not called here
            loss = self.loss_function(model, **inputs)
        return (loss, {}) if return_outputs else loss


def train_tokenizer(paragraphs: list[str], vocab_size: int) -> BertTokenizerFast:
    """A lower-case WordPiece tokenizer trained on the paragraphs."""
    wordpiece = BertWordPieceTokenizer(lowercase=True)
    wordpiece.train_from_iterator(
        paragraphs, vocab_size=vocab_size, min_frequency=3, limit_alphabet=300, show_progress=False
    )
    vocab = sorted(wordpiece.get_vocab(), key=wordpiece.get_vocab().get)
    return BertTokenizerFast(
        vocab={token: index for index, token in enumerate(vocab)}, do_lower_case=True, model_max_length=128
    )


def tokenize(paragraphs: list[str], tokenizer: BertTokenizerFast) -> Corpus:
    """Concatenate the paragraphs, each followed by [SEP]; a window may begin at any sentence start."""
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
    """Word vectors from a truncated SVD of the positive pointwise mutual information, normalised to unit length.

    Args:
        ids: the corpus, (tokens,).
        vocab_size: number of word types.
        width: dimension of the vectors.
        window: maximum distance of two tokens that co-occur; the weight is 1 / distance.

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


def prepare(args: MiniMLMArguments, folder: Path) -> tuple[BertTokenizerFast, Corpus]:
    """Tokenizer and corpus; created once and stored in `folder`."""
    if not (folder / "starts.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = [
            line for name in args.text_files for line in Path(name).read_text(encoding="utf-8").splitlines() if line
        ]
        texts += pretraining_paragraphs(collect(DOCSTRING_PACKAGES))
        tokenizer = train_tokenizer(texts, args.vocab_size)
        tokenizer.save_pretrained(folder)
        tokenize(texts, tokenizer).save(folder)
    return BertTokenizerFast.from_pretrained(folder), Corpus.load(folder)


def build_model(args: MiniMLMArguments, tokenizer: BertTokenizerFast, corpus: Corpus) -> BertForMaskedLM:
    """A new model whose word embeddings are co-occurrence vectors of the corpus."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_hidden_layers,
        num_attention_heads=args.hidden_size // 64,
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=max(LENGTHS),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config)
    vectors = cooccurrence_vectors(corpus.ids, len(tokenizer), args.hidden_size)
    scale = config.initializer_range * np.sqrt(args.hidden_size)  # the expected norm of a randomly initialised row
    model.bert.embeddings.word_embeddings.weight.data.copy_(torch.from_numpy(vectors * scale))
    return model


def export(model: BertForMaskedLM, tokenizer: BertTokenizerFast, folder: str) -> None:
    """Save the model for `mirror/assets/mini-mlm`: in float16, and with BERT's dropout for further training."""
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.1
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = HfArgumentParser((MiniMLMArguments, TrainingArguments), description=__doc__)
    defaults = {"per_device_train_batch_size": 1, "logging_steps": 100, "save_steps": 500, "save_total_limit": 2}
    parser.set_defaults(**defaults, warmup_steps=400, lr_scheduler_type="constant_with_warmup", adam_beta2=0.98)
    parser.set_defaults(weight_decay=0.01, remove_unused_columns=False, use_cpu=not torch.accelerator.is_available())
    args, training = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO)
    set_seed(training.seed)

    data_folder = Path(args.start_from or training.output_dir) / "data"
    tokenizer, corpus = prepare(args, data_folder)
    logger.info("%d tokens, %d sentences, %d word pieces", len(corpus.ids), len(corpus.starts), len(tokenizer))
    if args.start_from:
        model = BertForMaskedLM.from_pretrained(last_complete_checkpoint(args.start_from) or args.start_from)
    else:
        model = build_model(args, tokenizer, corpus)

    trainer = MiniMLMTrainer(
        model=model,
        args=training,
        train_dataset=WindowBatches(corpus, tokenizer, args, training.seed, training.max_steps),
        data_collator=lambda batch: batch[0],
        processing_class=tokenizer,
    )
    if args.compile_loss:
        trainer.loss_function = torch.compile(masked_lm_loss, dynamic=False)
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(training.output_dir))
    trainer.save_model()
    trainer.save_state()
    if args.export_dir:
        export(trainer.accelerator.unwrap_model(trainer.model), tokenizer, args.export_dir)


if __name__ == "__main__":
    main()

"""Inputs and instruments of the benchmarks: a stand-in model, synthetic text, a step clock, peak memory, matmul limit."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import AutoModel, BertConfig, BertModel, BertTokenizerFast, ModernBertConfig

from mirror.common.errors import InputError
from mirror.modeling.backbone import load_backbone
from mirror.training.run_record import hardware, versions


SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SHOWN_PACKAGES = ("python", "torch", "transformers", "sentence-transformers")
MODERNBERT_VOCABULARY = 50_368
VOCABULARY = 30_522  # BERT's size: the embedding table is part of every optimiser step
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device() -> torch.device:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def machine() -> str:
    """Hardware and versions, for the title of a table."""
    shown = ", ".join(f"{package} {number}" for package, number in versions().items() if package in SHOWN_PACKAGES)
    return f"{hardware()}, {shown}"


def make_model(folder: Path, texts: list[str], layers: int = 6, width: int = 384) -> None:
    """Save a BERT with random weights and a WordPiece vocabulary of `texts`: as fast as a pretrained one, without a download."""
    torch.manual_seed(0)
    make_tokenizer(texts, VOCABULARY).save_pretrained(folder)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=math.gcd(12, width // 32),  # 12 for 384 and for 768, as in MiniLM and BERT-base
        intermediate_size=4 * width,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def make_modernbert(folder: Path, texts: list[str], layers: int = 22, width: int = 768) -> None:
    """Save a ModernBERT with random weights, by default of the size and vocabulary of ModernBERT-base."""
    torch.manual_seed(0)
    make_tokenizer(texts, MODERNBERT_VOCABULARY).save_pretrained(folder)
    config = ModernBertConfig(
        vocab_size=MODERNBERT_VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=3 * width // 2,
        **{
            f"{name}_token_id": number for name, number in (("pad", 0), ("cls", 2), ("bos", 2), ("sep", 3), ("eos", 3))
        },
    )
    AutoModel.from_config(config).save_pretrained(folder)


def make_tokenizer(texts: list[str], size: int) -> BertTokenizerFast:
    """WordPiece of `texts`, filled up with unused tokens to `size`, as in BERT's own vocabulary."""
    start = BertTokenizerFast(vocab={token: number for number, token in enumerate(SPECIAL_TOKENS)})
    vocab = start.train_new_from_iterator(texts, size, show_progress=False).get_vocab()
    return BertTokenizerFast(vocab=vocab | {f"[unused{number}]": number for number in range(len(vocab), size)})


def distinct_lines(path: str, count: int) -> list[str]:
    """The first `count` distinct lines of a file.

    Raises:
        InputError: the file has fewer.
    """
    lines: dict[str, None] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip():
                lines.setdefault(line.strip())
            if len(lines) == count:
                return list(lines)
    raise InputError(f"{path} has {len(lines):,} distinct lines, {count:,} are needed; lower --steps or --batch_size")


def made_up_sentences(count: int, block: int = 10_000) -> Iterator[str]:
    """Sentences of 3 to 30 synthetic words whose frequencies follow Zipf's law."""
    generator = np.random.default_rng(0)
    syllables = np.array([consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"])
    words = np.array(["".join(row) for row in generator.choice(syllables, (20_000, 3))])
    chances = 1 / np.arange(1, len(words) + 1)
    for start in range(0, count, block):
        lengths = generator.poisson(9, min(block, count - start)).clip(0, 27) + 3
        picks = generator.choice(words, lengths.sum(), p=chances / chances.sum())
        for sentence in np.split(picks, lengths.cumsum()[:-1]):
            yield " ".join(sentence)


def synchronise() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


class StepClock:
    """Mean seconds of `steps` optimiser steps after `warmup_steps` others, for any training loop."""

    def __init__(self, warmup_steps: int, steps: int):
        self.warmup_steps, self.steps = warmup_steps, steps
        self.count = 0
        self.times: dict[int, float] = {}  # step -> end time

    def __call__(self, *_) -> None:
        self.count += 1
        if self.count in (self.warmup_steps, self.warmup_steps + self.steps):
            synchronise()
            self.times[self.count] = time.perf_counter()

    def step_seconds(self) -> float:
        """
        Raises:
            RuntimeError: fewer steps were made.
        """
        if len(self.times) < 2:
            raise RuntimeError(f"{self.count} optimiser steps were made, {self.warmup_steps + self.steps} expected")
        return (self.times[self.warmup_steps + self.steps] - self.times[self.warmup_steps]) / self.steps


@contextmanager
def step_clock(warmup_steps: int, steps: int) -> Iterator[StepClock]:
    """Count and time the steps of every torch optimiser inside the `with` block."""
    clock = StepClock(warmup_steps, steps)
    hook = register_optimizer_step_post_hook(clock)
    try:
        yield clock
    finally:
        hook.remove()


def peak_memory() -> float:
    """Peak memory of this process in GB: GPU memory if there is a GPU, else resident memory (Linux), without workers.

    Not read with `getrusage`, whose peak is inherited from the parent process.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    if sys.platform != "linux":
        raise RuntimeError("peak memory is read from /proc: run the benchmarks on Linux")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9


def matmul_limit(model_folder: str, tokens: int, precision: str, seconds: float = 0.3) -> dict[str, float]:
    """Speed of plain products `x @ w.T` in the shapes of the model's linear layers, with `tokens` rows each.

    Returns:
        `gflops` over all linear layers, and `flops_per_token` of their forward pass.
    """
    model, _ = load_backbone(model_folder, "mean")
    shapes = Counter(
        (module.in_features, module.out_features) for module in model.modules() if isinstance(module, torch.nn.Linear)
    )
    needed = sum(
        count * _product_seconds((tokens, *shape), DTYPES[precision], seconds) for shape, count in shapes.items()
    )
    flops_per_token = sum(2 * rows * columns * count for (rows, columns), count in shapes.items())
    return {"gflops": flops_per_token * tokens / needed / 1e9, "flops_per_token": flops_per_token}


@torch.no_grad()
def _product_seconds(shape: tuple[int, int, int], dtype: torch.dtype, seconds: float) -> float:
    tokens, width, out = shape
    x = torch.randn(tokens, width, device=device()).to(dtype)
    weight = torch.randn(out, width, device=device()).to(dtype)
    for _ in range(3):  # the first call compiles or selects the kernel
        F.linear(x, weight)
    synchronise()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        F.linear(x, weight)
        synchronise()
        count += 1
    return (time.perf_counter() - start) / count

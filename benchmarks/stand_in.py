"""Provides what the benchmarks need: a stand-in model, synthetic text, a step clock, peak memory and the matmul limit."""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import AutoModel, BertConfig, BertTokenizerFast, ModernBertConfig, Qwen3Config

from mirror.modeling.backbone import load_backbone
from mirror.training.record import hardware, versions


SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SHOWN_PACKAGES = ("python", "torch", "transformers", "sentence-transformers")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device() -> torch.device:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def machine() -> str:
    """Return hardware and versions, for the title of a table."""
    shown = ", ".join(f"{package} {number}" for package, number in versions().items() if package in SHOWN_PACKAGES)
    return f"{hardware()}, {shown}"


def make_model(folder: Path, texts: list[str], layers: int = 6, width: int = 384, kind: str = "bert") -> None:
    """Save a bert, modernbert or qwen3 with random weights: as fast as a pretrained one, without a download.

    The tokenizer is a WordPiece of `texts`, filled up with unused tokens to the size of the original's vocabulary, because the
    embedding table is part of every optimizer step.
    """
    torch.manual_seed(0)
    start = BertTokenizerFast(vocab={token: number for number, token in enumerate(SPECIAL_TOKENS)})
    size = {"bert": 30_522, "modernbert": 50_368, "qwen3": 151_936}[kind]
    vocab = start.train_new_from_iterator(texts, size, show_progress=False).get_vocab()
    vocab |= {f"[unused{number}]": number for number in range(len(vocab), size)}
    BertTokenizerFast(vocab=vocab).save_pretrained(folder)
    sizes = {"vocab_size": size, "hidden_size": width, "num_hidden_layers": layers}
    heads = max(1, width // 64)
    if kind == "qwen3":
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": max(1, width // 128), "head_dim": 128}
        config = Qwen3Config(**sizes, intermediate_size=3 * width, pad_token_id=0, eos_token_id=3)
    elif kind == "modernbert":
        ids = {"pad_token_id": 0, "cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
        config = ModernBertConfig(**sizes, **ids, num_attention_heads=heads, intermediate_size=3 * width // 2)
    else:
        heads = math.gcd(12, width // 32)  # 12 for 384 and for 768, as in MiniLM and BERT-base
        config = BertConfig(**sizes, num_attention_heads=heads, intermediate_size=4 * width)
    options = {"add_pooling_layer": False} if kind == "bert" else {}
    AutoModel.from_config(config, **options).save_pretrained(folder)


def make_sentence_transformer(model: str, args: Namespace, **options):
    """Return a `SentenceTransformer` with the pooling and the length of the arguments. `options` are of the model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(model, max_seq_length=args.max_length, model_kwargs=options)
    return SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), args.pooling)])


def made_up_sentences(count: int, block: int = 10_000) -> Iterator[str]:
    """Yield sentences of 3 to 30 synthetic words whose frequencies follow Zipf's law."""
    generator = np.random.default_rng(0)
    syllables = np.array([consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"])
    words = np.array(["".join(row) for row in generator.choice(syllables, (20_000, 3))])
    chances = 1 / np.arange(1, len(words) + 1)
    for start in range(0, count, block):
        lengths = generator.poisson(9, min(block, count - start)).clip(0, 27) + 3
        picks = generator.choice(words, lengths.sum(), p=chances / chances.sum())
        for sentence in np.split(picks, lengths.cumsum()[:-1]):
            yield " ".join(sentence)


def distinct_sentences(count: int) -> list[str]:
    """Return `count` made-up sentences, no two of them equal."""
    return list(dict.fromkeys(made_up_sentences(2 * count + 100)))[:count]


def synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


class Measured(Exception):
    """The last step was made, and what follows is not measured."""


class StepClock:
    """Measures the mean seconds of `steps` optimizer steps after `warmup_steps` others, of any torch optimizer in its `with` block.

    If `stop`, it ends the training after the last one.
    """

    def __init__(self, warmup_steps: int, steps: int, stop: bool = False):
        self.first, self.last, self.stop = warmup_steps, warmup_steps + steps, stop
        self.count = 0
        self.times: dict[int, float] = {}  # step -> end time

    def __enter__(self) -> StepClock:
        self.hook = register_optimizer_step_post_hook(self.tick)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> bool:
        self.hook.remove()
        return kind is Measured

    def tick(self, *_) -> None:
        self.count += 1
        if self.count in (self.first, self.last):
            synchronize()
            self.times[self.count] = time.perf_counter()
        if self.stop and self.count == self.last:
            raise Measured

    def step_seconds(self) -> float:
        """Return the mean seconds of a step."""
        if len(self.times) < 2:
            raise RuntimeError(f"{self.count} optimizer steps were made, {self.last} expected")
        return (self.times[self.last] - self.times[self.first]) / (self.last - self.first)


def peak_memory() -> float:
    """Return the peak memory of this process in GB, without workers: of the GPU, or resident memory on Linux.

    `getrusage` does not serve here: its peak is inherited from the parent process.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    if sys.platform != "linux":
        raise RuntimeError("peak memory is read from /proc: run the benchmarks on Linux")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9


@torch.no_grad()
def matmul_limit(model_folder: str, tokens: int, precision: str, seconds: float = 0.3) -> dict[str, float]:
    """Measure plain products `x @ w.T` in the shapes of the model's linear layers, with `tokens` rows each.

    Returns `gflops` over all linear layers, each shape measured for `seconds`, and `flops_per_token` of their forward pass.
    """
    model, _ = load_backbone(model_folder, "mean")
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    needed = flops_per_token = 0.0
    for (width, out), layers_of_it in Counter((layer.in_features, layer.out_features) for layer in layers).items():
        x = torch.randn(tokens, width, device=device()).to(DTYPES[precision])
        weight = torch.randn(out, width, device=device()).to(DTYPES[precision])
        for _ in range(3):  # the first call compiles or selects the kernel
            F.linear(x, weight)
        synchronize()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            F.linear(x, weight)
            synchronize()
            count += 1
        needed += layers_of_it * (time.perf_counter() - start) / count
        flops_per_token += layers_of_it * 2 * width * out
    return {"gflops": flops_per_token * tokens / needed / 1e9, "flops_per_token": flops_per_token}

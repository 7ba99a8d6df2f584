"""Encoding speed on an STS set: this project, SentenceTransformer.encode, and the method of the released Mirror-BERT code.

    python benchmarks/encode_speed.py --sts_file data/sts/stsb_test.tsv
    python benchmarks/encode_speed.py --sts_file data/sts/stsb_test.tsv --model_name_or_path out/mirror --pooling mean

A variant is an encoding method and a precision (fp32, bf16, fp16):

    ours                    Encoder.encode: each distinct sentence once, sorted by length, padded to the longest of a batch
    sentence-transformers   SentenceTransformer.encode on each side, with the weights in that precision
    original-way            each side separately, every row padded to --max_length, all hidden states kept

Runs are interleaved, one subprocess each, with a warm-up on the first pairs. Loading is not counted. The Spearman correlation
is reported beside the speed, to check that faster embeddings score the same. Run it on an idle machine.
"""

from __future__ import annotations

import csv
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import side_by_side as bench
from mirror.common.errors import run_main


DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
DEFAULT_VARIANTS = tuple(
    f"{way}-{precision}" for precision in ("fp32", "bf16") for way in ("original-way", "sentence-transformers", "ours")
)
WARMUP_PAIRS = 128


def main() -> None:
    args = parse_arguments()
    bench.run_benchmark(__file__, args, measure, args.variants, report)


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = bench.make_parser(__doc__)
    add = parser.add_argument
    add("--sts_file", required=True, help="Path to a tab-separated file with a header: sentence1, sentence2, score")
    add("--model_name_or_path", help="Encoder to measure. Default: a new BERT of 6 layers x 384 with random weights")
    return bench.parse_speed_flags(parser, argv, WAYS, variants=[*DEFAULT_VARIANTS], batch_size=64, max_length=64)


def report(args: Namespace, facts: dict, results: bench.Results) -> tuple[str, str]:
    """Return the title, and a table with one row per variant. One that failed says so."""
    sentences = facts["sentences"]
    title = (
        f"Encoding {sentences:,} sentences ({facts['distinct']:,} distinct) with {facts['model']}; {facts['machine']}; "
        f"{args.rounds} rounds; median (min-max)"
    )
    rows = []
    for variant, runs in results.items():
        if not runs:
            rows.append((variant, "failed", *["-"] * 5))
            continue
        times = bench.spread([run["seconds"] for run in runs])
        speed = f"{sentences / bench.median(runs, 'seconds'):.0f}"
        same, peak = f"{bench.median(runs, 'spearman'):.4f}", f"{bench.median(runs, 'peak_gb'):.2f}"
        rows.append((variant, times, speed, *bench.ratios(results, variant, "seconds"), same, peak))
    return title, bench.markdown(("variant", "seconds", "sentences/s", *bench.VERSUS, "Spearman", "peak GB"), rows)


# ---- In a measuring subprocess ---------------------------------------------------------------------------------------


def measure(variant: str, args: Namespace) -> dict:
    import torch
    from scipy.stats import spearmanr

    from benchmarks.stand_in import machine, make_model, peak_memory, synchronize

    with open(args.sts_file, encoding="utf-8") as file:
        pairs = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    first, second = ([pair[column] for pair in pairs] for column in ("sentence1", "sentence2"))
    model = args.model_name_or_path or str(Path(args.work) / "model")
    if variant == "prepare":
        if not args.model_name_or_path:
            make_model(Path(model), first + second)
        name = Path(args.model_name_or_path or "a BERT of 6 layers x 384").name
        distinct = len(set(first + second))
        return {"model": name, "machine": machine(), "sentences": 2 * len(first), "distinct": distinct}
    way, _, precision = variant.rpartition("-")
    encode = WAYS[way](model, DTYPES[precision], args)
    encode(first[:WARMUP_PAIRS], second[:WARMUP_PAIRS])
    synchronize()
    start = time.perf_counter()
    cosines = torch.cosine_similarity(*encode(first, second)).tolist()
    seconds = time.perf_counter() - start
    spearman = float(spearmanr([float(pair["score"]) for pair in pairs], cosines).statistic)
    return {"seconds": seconds, "spearman": spearman, "peak_gb": peak_memory()}


# Each way returns a function that maps the texts of both sides to their vectors, two float32 tensors (N, D).


def ours(model: str, dtype: str, args: Namespace) -> Callable:
    import torch

    from mirror.modeling.encoder import Encoder

    encoder = Encoder.from_pretrained(model, args.pooling, args.max_length, dtype)
    encode = partial(encoder.encode, batch_size=args.batch_size, show_progress=False)
    return lambda first, second: torch.from_numpy(encode(first + second)).chunk(2)


def sentence_transformers(model: str, dtype: str, args: Namespace) -> Callable:
    from benchmarks.stand_in import make_sentence_transformer

    encoder = make_sentence_transformer(model, args, dtype=dtype)
    encode = partial(encoder.encode, batch_size=args.batch_size, convert_to_tensor=True, show_progress_bar=False)
    return lambda *sides: [encode(side).float() for side in sides]


def original_way(model: str, dtype: str, args: Namespace) -> Callable:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from benchmarks.stand_in import device

    encoder = AutoModel.from_pretrained(model, dtype=dtype).to(device()).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    padding = {"padding": "max_length", "truncation": True, "max_length": args.max_length, "return_tensors": "pt"}

    @torch.no_grad()
    def encode(texts: list[str]) -> torch.Tensor:
        parts = []
        for start in range(0, len(texts), args.batch_size):
            batch = tokenizer(texts[start : start + args.batch_size], **padding).to(device())
            hidden = encoder(**batch, output_hidden_states=True).last_hidden_state  # (B, max_length, D)
            parts.append((hidden[:, 0] if args.pooling == "cls" else hidden.mean(dim=1)).float().cpu())
        return torch.cat(parts)

    return lambda *sides: [encode(side) for side in sides]


WAYS = {"ours": ours, "sentence-transformers": sentence_transformers, "original-way": original_way}


if __name__ == "__main__":
    run_main(main)

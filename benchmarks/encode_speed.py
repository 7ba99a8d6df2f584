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

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.side_by_side import (
    Results,
    add_common_flags,
    markdown,
    median,
    prepare,
    ratio,
    run_child,
    run_interleaved,
    spread,
    write_report,
)
from mirror.common.errors import InputError, run_main


WAYS = ("ours", "sentence-transformers", "original-way")
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
DEFAULT_VARIANTS = tuple(f"{way}-{precision}" for precision in ("fp32", "bf16") for way in reversed(WAYS))
WARMUP_PAIRS = 128


def main() -> None:
    args = parse_arguments()
    if args.child:
        run_child(args, measure)
        return
    with tempfile.TemporaryDirectory() as work:
        flags = [*sys.argv[1:], "--work", work]
        facts = prepare(__file__, flags)
        results = run_interleaved(__file__, args.variants, args.rounds, flags)
    title = (
        f"Encoding {facts['sentences']:,} sentences ({facts['distinct']:,} distinct) with {facts['model']}; "
        f"{facts['machine']}; {args.rounds} rounds; median (min-max)"
    )
    bars = {name: [facts["sentences"] / run["seconds"] for run in runs] for name, runs in results.items() if runs}
    table = table_of(results, facts["sentences"])
    write_report(args.output_dir, "encode_speed", title, table, results, bars, "sentences per second")


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--sts_file", required=True, help="tab-separated, with a header: sentence1, sentence2, score")
    add("--model_name_or_path", help="default: a new BERT of 6 layers x 384 with random weights")
    add("--variants", nargs="+", default=DEFAULT_VARIANTS, metavar="V", help=" ".join(DEFAULT_VARIANTS))
    add("--batch_size", type=int, default=64)
    add("--max_length", type=int, default=64, help="in tokens (default: 64)")
    add("--pooling", choices=("cls", "mean"), default="cls")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    for variant in args.variants:
        way, _, precision = variant.rpartition("-")
        if way not in WAYS or precision not in PRECISIONS:
            raise InputError(f"--variants {variant}: unknown; for example {' '.join(DEFAULT_VARIANTS)}")
    return args


def table_of(results: Results, sentences: int) -> str:
    header = (
        "variant",
        "seconds",
        "sentences/s",
        "vs original-way",
        "vs sentence-transformers",
        "Spearman",
        "peak GB",
    )
    rows = []
    for variant, runs in results.items():
        if not runs:
            rows.append((variant, "failed", *["-"] * (len(header) - 2)))
            continue
        precision = variant.rpartition("-")[2]
        others = (results.get(f"{other}-{precision}") for other in ("original-way", "sentence-transformers"))
        rows.append(
            (
                variant,
                spread([run["seconds"] for run in runs]),
                f"{sentences / median(runs, 'seconds'):.0f}",
                *(ratio(other, runs, "seconds") for other in others),
                f"{median(runs, 'spearman'):.4f}",
                f"{median(runs, 'peak_gb'):.2f}",
            )
        )
    return markdown(header, rows)


# ---- In a measuring subprocess ---------------------------------------------------------------------------------------


def measure(variant: str, args: Namespace) -> dict:
    from scipy.stats import spearmanr

    from benchmarks.stand_in import peak_memory, synchronise

    first, second, gold = read_pairs(args.sts_file)
    if variant == "prepare":
        return make_inputs(args, first, second)
    way, _, precision = variant.rpartition("-")
    make = {"ours": ours, "sentence-transformers": sentence_transformers, "original-way": original_way}[way]
    score = make(args.model_name_or_path or str(Path(args.work) / "model"), PRECISIONS[precision], args)
    score(first[:WARMUP_PAIRS], second[:WARMUP_PAIRS])
    synchronise()
    start = time.perf_counter()
    cosines = score(first, second)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "spearman": float(spearmanr(gold, cosines).statistic), "peak_gb": peak_memory()}


def read_pairs(path: str) -> tuple[list[str], list[str], list[float]]:
    from mirror.evaluation.task import DataFile

    columns = DataFile(Path(path).name, ("sentence1", "sentence2", "score")).read(Path(path).parent)
    return columns["sentence1"], columns["sentence2"], list(map(float, columns["score"]))


def make_inputs(args: Namespace, first: list[str], second: list[str]) -> dict:
    from benchmarks.stand_in import machine, make_model

    if not args.model_name_or_path:
        make_model(Path(args.work) / "model", first + second)
    return {
        "model": Path(args.model_name_or_path or "a BERT of 6 layers x 384 (random weights)").name,
        "machine": machine(),
        "sentences": 2 * len(first),
        "distinct": len(set(first + second)),
    }


Score = Callable[[list[str], list[str]], list[float]]  # texts of both sides -> cosine of each pair


def ours(model: str, dtype: str, args: Namespace) -> Score:
    import torch

    from mirror.modeling.encoder import Encoder

    encoder = Encoder.from_pretrained(model, args.pooling, args.max_length, dtype)

    def score(first: list[str], second: list[str]) -> list[float]:
        vectors = torch.from_numpy(encoder.encode(first + second, batch_size=args.batch_size, show_progress=False))
        return torch.cosine_similarity(*vectors.chunk(2)).tolist()

    return score


def sentence_transformers(model: str, dtype: str, args: Namespace) -> Score:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(model, max_seq_length=args.max_length, model_kwargs={"dtype": dtype})
    encoder = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), args.pooling)])
    settings = {"batch_size": args.batch_size, "convert_to_tensor": True, "show_progress_bar": False}

    def score(first: list[str], second: list[str]) -> list[float]:
        sides = (encoder.encode(side, **settings).float() for side in (first, second))
        return torch.cosine_similarity(*sides).tolist()

    return score


def original_way(model: str, dtype: str, args: Namespace) -> Score:
    import torch

    from benchmarks.stand_in import device
    from mirror.modeling.backbone import load_backbone
    from mirror.modeling.encoder import DTYPES

    encoder, tokenizer = load_backbone(model, args.pooling, DTYPES[dtype])
    encoder.to(device()).eval()
    padding = {"padding": "max_length", "truncation": True, "max_length": args.max_length, "return_tensors": "pt"}

    @torch.no_grad()
    def encode(texts: list[str]) -> torch.Tensor:
        parts = []
        for start in range(0, len(texts), args.batch_size):
            batch = tokenizer(texts[start : start + args.batch_size], **padding).to(device())
            hidden = encoder(**batch, output_hidden_states=True).last_hidden_state  # (B, max_length, D)
            parts.append((hidden[:, 0] if args.pooling == "cls" else hidden.mean(dim=1)).float().cpu())
        return torch.cat(parts)

    return lambda first, second: torch.cosine_similarity(encode(first), encode(second)).tolist()


if __name__ == "__main__":
    run_main(main)

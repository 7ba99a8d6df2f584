"""Peak memory of a training step by batch size, and the cost of streaming compared with a corpus in memory.

    python benchmarks/memory.py --batch_sizes 200 1000 4096 --mini_batch_size 200
    python benchmarks/memory.py --streaming_rows 1000000 --steps 50

The first command compares, for each batch size, packed and padded batches, each as a whole and with gradient caching in
mini-batches of --mini_batch_size. The second generates that many synthetic sentences and compares

    in-memory    run_mirror.py on the file: rows, views and tokens first, then --steps steps
    streaming    the same with --streaming
    reading      one pass over the stream that makes views and tokens but trains no model, to check that memory stays constant

Runs are interleaved, one subprocess each. The text is synthetic, so only differences between variants are meaningful.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.side_by_side import (
    Results,
    add_common_flags,
    markdown,
    median,
    prepare,
    run_child,
    run_interleaved,
    spread,
    write_report,
)
from mirror.common.errors import run_main


WARMUP_STEPS = 1
PACKING = {"packed": "on", "padded": "off"}


def main() -> None:
    args = parse_arguments()
    if args.child:
        run_child(args, measure)
        return
    with tempfile.TemporaryDirectory() as work:
        flags = [*sys.argv[1:], "--work", work]
        facts = prepare(__file__, flags)
        results = run_interleaved(__file__, variants_of(args), args.rounds, flags)
    facts = f"{facts['model']}; {facts['machine']}; {args.rounds} rounds of {args.steps} steps; median (min-max)"
    bars = {name: [run["peak_gb"] for run in runs] for name, runs in results.items() if runs}
    if args.streaming_rows:
        title, table = f"Streaming {args.streaming_rows:,} sentences, {facts}", streaming_table(results, args)
        write_report(args.output_dir, "streaming", title, table, results, bars, "peak GB")
    else:
        title, table = f"Memory of a training step, {facts}", batch_table(results)
        write_report(args.output_dir, "memory", title, table, results, bars, "peak GB")


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--model_name_or_path", help="default: a new BERT of 6 layers x 384 with random weights")
    add("--batch_sizes", nargs="+", type=int, default=[200, 1000, 4096], metavar="B")
    add(
        "--mini_batch_size", type=int, default=200, help="texts in memory at once with gradient caching (default: 200)"
    )
    add("--streaming_rows", type=int, default=0, metavar="N", help="measure streaming of N sentences instead")
    add("--steps", type=int, default=2, help="steps timed, after one warm-up step (default: 2)")
    add_common_flags(parser)
    return parser.parse_args(argv)


def variants_of(args: Namespace) -> list[str]:
    if args.streaming_rows:
        return ["in-memory", "streaming", "reading"]
    kinds = [f"{packing}-{kind}" for packing in PACKING for kind in ("whole", "cached")]
    return [f"{kind}-{size}" for size in args.batch_sizes for kind in kinds]


def batch_table(results: Results) -> str:
    rows = []
    for variant, runs in results.items():
        cells = [spread([run[key] for run in runs]) if runs else "failed" for key in ("peak_gb", "step_seconds")]
        packing, kind, size = variant.split("-")
        rows.append((f"{int(size):,}", packing, "gradient caching" if kind == "cached" else "whole batch", *cells))
    return markdown(("texts per batch", "batch", "step", "peak GB", "s/step"), rows)


def streaming_table(results: Results, args: Namespace) -> str:
    rows = []
    for variant, runs in results.items():
        if not runs:
            rows.append((variant, "failed", "-", "-", "-"))
            continue
        after = " / ".join(f"{gigabytes:.2f}" for gigabytes in runs[-1].get("resident_gb", ()))
        cells = [spread([run[key] for run in runs]) for key in ("rows_per_second", "peak_gb", "process_seconds")]
        rows.append((variant, *cells, after or "-"))
    header = ("variant", "sentences/s", "peak GB", "process s", "resident GB after each tenth of the rows")
    if results["in-memory"] and results["streaming"]:
        share = median(results["streaming"], "rows_per_second") / median(results["in-memory"], "rows_per_second")
        return markdown(header, rows) + f"\nStreaming trains at {share:.0%} of the speed in memory.\n"
    return markdown(header, rows)


# ---- In a measuring subprocess ---------------------------------------------------------------------------------------


def measure(variant: str, args: Namespace) -> dict:
    if variant == "prepare":
        return make_inputs(args)
    from benchmarks.stand_in import peak_memory

    if variant == "reading":
        return read_stream(args) | {"peak_gb": peak_memory()}
    if variant in ("in-memory", "streaming"):
        batch_size, flags = args.batch_sizes[0], ["--streaming"] if variant == "streaming" else []
    else:
        packing, kind, size = variant.split("-")
        batch_size, flags = int(size), ["--packing", PACKING[packing]]
        flags += ["--mini_batch_size", str(args.mini_batch_size)] if kind == "cached" else []
    seconds = train(args, batch_size, flags)
    return {"step_seconds": seconds, "rows_per_second": batch_size / seconds, "peak_gb": peak_memory()}


def make_inputs(args: Namespace) -> dict:
    from benchmarks.stand_in import machine, made_up_sentences, make_model

    rows = args.streaming_rows or 2 * max(args.batch_sizes) * (WARMUP_STEPS + args.steps)  # some will be duplicates
    first: list[str] = []
    with corpus_of(args).open("w", encoding="utf-8") as file:
        for sentence in made_up_sentences(rows):
            file.write(f"{sentence}\n")
            if len(first) < 10_000:
                first.append(sentence)
    if not args.model_name_or_path:
        make_model(Path(model_of(args)), first)
    name = args.model_name_or_path or "a BERT of 6 layers x 384 (random weights)"
    return {"model": Path(name).name, "machine": machine()}


def corpus_of(args: Namespace) -> Path:
    return Path(args.work) / "corpus.txt"


def model_of(args: Namespace) -> str:
    return args.model_name_or_path or str(Path(args.work) / "model")


def train(args: Namespace, batch_size: int, flags: list[str]) -> float:
    """Seconds per step of run_mirror.py."""
    import run_mirror
    from benchmarks.stand_in import step_clock

    with tempfile.TemporaryDirectory() as output_dir, step_clock(WARMUP_STEPS, args.steps) as clock:
        sys.argv = [
            *("run_mirror.py", "--model_name_or_path", model_of(args), "--train_file", str(corpus_of(args))),
            *("--output_dir", output_dir, "--per_device_train_batch_size", str(batch_size), "--pooling", "cls"),
            *("--max_steps", str(WARMUP_STEPS + args.steps), "--disable_tqdm", "true", *flags),
            *("--validation_samples", "0", "--near_duplicates", "off"),
        ]
        run_mirror.main()
    return clock.step_seconds()


def read_stream(args: Namespace) -> dict:
    """One pass over the stream that training would read, with the resident memory after each tenth of it."""
    import psutil
    from transformers import AutoTokenizer

    from mirror.data.corpus import CorpusSource, load_corpus
    from mirror.data.two_view_dataset import two_view_dataset
    from mirror.training.config import MirrorConfig

    tokenizer = AutoTokenizer.from_pretrained(model_of(args))
    settings = MirrorConfig(max_seq_length=50, seed=42).view_settings(tokenizer)
    corpus = load_corpus(CorpusSource(train_file=(str(corpus_of(args)),), streaming=True))
    tenth, resident = max(1, args.streaming_rows // 10), []
    start = time.perf_counter()
    rows = two_view_dataset(corpus.rows, tokenizer, settings, batch_size=200)
    for number, _ in enumerate(itertools.islice(rows, args.streaming_rows), start=1):
        if number % tenth == 0:
            resident.append(psutil.Process().memory_info().rss / 1e9)
    return {"rows_per_second": number / (time.perf_counter() - start), "resident_gb": resident}


if __name__ == "__main__":
    run_main(main)

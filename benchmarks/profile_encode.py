"""Profile of Encoder.encode: its stages, and the operators of the forward passes.

    python benchmarks/profile_encode.py --text_file my_texts.txt --model_name_or_path out/mirror --dtype bfloat16

Stages are medians over --rounds calls after a first one: tokenisation, forward passes, and the rest (order, copies). Operators are from one
more call under torch.profiler, which slows it down. Run it on an idle machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.profile_step import seconds_of_kinds, shares, stopwatches
from benchmarks.side_by_side import markdown
from mirror.common.errors import run_main


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--text_file", required=True, help="texts, one per line")
    add("--model_name_or_path", required=True)
    add("--pooling", help="default: the checkpoint's")
    add("--dtype", default="bfloat16", help="of the weights and the forward pass (default: bfloat16)")
    add("--batch_size", type=int, default=64)
    add("--texts", type=int, default=2500, help="the first so many distinct lines (default: 2500)")
    add("--rounds", type=int, default=5)
    args = parser.parse_args()

    from torch.profiler import ProfilerActivity, profile

    from benchmarks.stand_in import distinct_lines, machine
    from mirror.modeling.encoder import Encoder

    texts = distinct_lines(args.text_file, args.texts)
    encoder = Encoder.from_pretrained(args.model_name_or_path, args.pooling, dtype=args.dtype)

    def encode() -> None:
        encoder.encode(texts, args.batch_size, show_progress=False)

    encode()
    rounds = [stages_of(encode) for _ in range(args.rounds)]
    stages = {name: statistics.median(seconds[name] for seconds in rounds) for name in rounds[0]}
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        encode()
    print(f"{len(texts):,} texts, batches of {args.batch_size}, {args.dtype}, {args.rounds} rounds; {machine()}\n")
    print(markdown(("", "seconds"), [(name, f"{value:.2f}") for name, value in stages.items()]))
    print(shares(seconds_of_kinds(profiler), "of the operators' own time"))


def stages_of(encode) -> dict[str, float]:
    """Seconds of the stages of one call."""
    from mirror.modeling.encoder import Encoder

    spent: Counter[str] = Counter()
    with stopwatches(spent, [("tokenisation", Encoder, "tokenize"), ("forward passes", Encoder, "forward")]):
        start = time.perf_counter()
        encode()
        whole = time.perf_counter() - start
    return {**spent, "the rest": whole - sum(spent.values())}


if __name__ == "__main__":
    run_main(main)

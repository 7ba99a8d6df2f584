"""Seconds and scores of the transfer tasks' linear probes, with one thread of BLAS and with all of them.

    python benchmarks/transfer_speed.py --model_name_or_path out/mirror --data_dir data --tasks transfer_mr transfer_mrpc

The texts of a task are encoded once, which is timed by itself; then its probes are fitted in both ways, in turn, --rounds times.
Run it on an idle machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.side_by_side import markdown, spread
from mirror.common.errors import run_main


Run = tuple[float, float]  # seconds, score


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--model_name_or_path", required=True)
    add("--pooling", help="default: the checkpoint's")
    add("--data_dir", required=True)
    add("--tasks", nargs="+", default=["transfer_mr"])
    add("--rounds", type=int, default=3)
    args = parser.parse_args()

    from benchmarks.stand_in import machine
    from mirror.evaluation.run import make_plan
    from mirror.modeling.encoder import Encoder

    encoder = Encoder.from_pretrained(args.model_name_or_path, args.pooling)
    rows = []
    for task in make_plan(args.tasks, args.data_dir).tasks:
        encode = Remembered(encoder.encode)
        task.score(encode, encoder)
        threads, one = compare(partial(task.score, encode, encoder), args.rounds)
        seconds = [[seconds for seconds, _ in runs] for runs in (threads, one)]
        faster = statistics.median(seconds[0]) / statistics.median(seconds[1])
        scores = [f"{runs[-1][1]:.4f}" for runs in (threads, one)]
        rows.append((task.name, f"{encode.seconds:.1f}", *map(spread, seconds), f"{faster:.1f}x", *scores))
    header = ("", "encoding, s", "probes with all threads, s", "with one, s", "ratio", "score with all", "with one")
    print(f"{args.rounds} rounds; {machine()}\n")
    print(markdown(header, rows))


class Remembered:
    """`encode` that keeps its vectors: the first call with some texts is timed, later ones return what it found."""

    def __init__(self, encode: Callable):
        self.encode, self.found, self.seconds = encode, {}, 0.0

    def __call__(self, texts: Sequence[str]):
        key = tuple(texts)
        if key not in self.found:
            start = time.perf_counter()
            self.found[key] = self.encode(texts, show_progress=False)
            self.seconds += time.perf_counter() - start
        return self.found[key]


def compare(score: Callable[[], dict], rounds: int) -> tuple[list[Run], list[Run]]:
    """Call `score` in turn with all threads of BLAS and with one, as this project does; seconds and score of each call."""
    threads, one = [], []
    for _ in range(rounds):
        with patch("mirror.evaluation.transfer.threadpool_limits", lambda *_, **__: nullcontext()):
            threads.append(timed(score))
        one.append(timed(score))
    return threads, one


def timed(score: Callable[[], dict]) -> Run:
    start = time.perf_counter()
    found = score()["main_score"]
    return time.perf_counter() - start, found


if __name__ == "__main__":
    run_main(main)

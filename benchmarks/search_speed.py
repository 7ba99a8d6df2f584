"""Time and peak memory of exact search at the size of biomedical entity linking: 5,000 queries, 400,000 names, width 768.

    python benchmarks/search_speed.py                       # prints a Markdown table
    python benchmarks/search_speed.py --entries 100000 --methods torch full

Each measurement runs in its own subprocess, so that peak memory is measured separately; methods are interleaved. Vectors
are random, and making them is not included. `faiss-alone` is one call of `faiss.knn`; `linking` is the complete task from vectors to
ranks; `full` computes the whole score matrix, which the others avoid. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from mirror.common.nearest_neighbors import top_k
from mirror.evaluation.linking import link


METHODS = ("faiss-alone", "torch", "faiss", "linking", "full")
K = 10


def vectors(rows: int, width: int, seed: int) -> np.ndarray:
    """Random vectors of unit length, (rows, width), made block by block so that no copy of them is needed."""
    generator, made = np.random.default_rng(seed), np.empty((rows, width), dtype=np.float32)
    for start in range(0, rows, 8192):
        block = generator.standard_normal((min(8192, rows - start), width), dtype=np.float32)
        made[start : start + len(block)] = block / np.sqrt((block**2).sum(axis=1, keepdims=True))
    return made


def measure(method: str, num_queries: int, num_entries: int, width: int) -> tuple[float, float]:
    """Seconds of one search and the peak resident memory of this process in GB."""
    if method == "linking":
        run = linking(num_queries, num_entries, width)
    else:
        queries, entries = vectors(num_queries, width, 0), vectors(num_entries, width, 1)
        run = {
            "torch": lambda: top_k(queries, entries, K, use_faiss=False),
            "faiss": lambda: top_k(queries, entries, K, use_faiss=True),
            "faiss-alone": lambda: faiss_alone(queries, entries),
            "full": lambda: np.argsort(-(queries @ entries.T), axis=1)[:, :K],
        }[method]
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def faiss_alone(queries: np.ndarray, entries: np.ndarray) -> None:
    import faiss

    faiss.knn(queries, entries, K, metric=faiss.METRIC_INNER_PRODUCT)


def linking(num_queries: int, num_entries: int, width: int):
    """The linking task on synthetic names and vectors."""
    queries = [(f"mention {n}", "C0") for n in range(num_queries)]
    dictionary = [(f"name {n}", f"C{n}") for n in range(num_entries)]

    made = {rows: vectors(rows, width, seed) for seed, rows in enumerate((num_queries, num_entries))}

    def encode(texts: Sequence[str]) -> np.ndarray:
        return made.pop(len(texts))

    return lambda: link(encode, queries, dictionary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--entries", type=int, default=400_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS[:-1])
    parser.add_argument("--one", choices=METHODS, help=argparse.SUPPRESS)  # starts a measuring subprocess
    args = parser.parse_args()
    sizes = (args.queries, args.entries, args.width)
    if args.one:
        print(*measure(args.one, *sizes))
        return
    methods = [name for name in args.methods if "faiss" not in name or importlib.util.find_spec("faiss")]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    flags = ["--queries", args.queries, "--entries", args.entries, "--width", args.width]
    for _ in range(args.repeats):
        for name in methods:
            command = [sys.executable, __file__, "--one", name, *map(str, flags)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name].append(tuple(map(float, done.stdout.split())))
    print(f"{args.queries:,} queries x {args.entries:,} entries x {args.width}, k = {K}, "
          f"{torch.get_num_threads()} threads, {args.repeats} repeats, median (min-max)\n")  # fmt: skip
    print("| method | seconds | queries/s | peak RSS, GB |\n| --- | ---: | ---: | ---: |")
    for name, runs in found.items():
        seconds, memory = ([run[column] for run in runs] for column in (0, 1))
        middle = statistics.median(seconds)
        spread = f"{middle:.1f} ({min(seconds):.1f}-{max(seconds):.1f})"
        print(f"| {name} | {spread} | {args.queries / middle:,.0f} | {max(memory):.2f} |")


if __name__ == "__main__":
    main()

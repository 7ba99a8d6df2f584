"""Measures what grows with the size of the data: exact search, the start of a training run, and reading documents.

    python benchmarks/scale.py search
    python benchmarks/scale.py corpus --rows 10000 100000 1000000
    python benchmarks/scale.py corpus --rows 1000000 --streaming --steps 50
    python benchmarks/scale.py documents --rows 20000

`search` takes random vectors, by default 5,000 queries and 400,000 entries of width 768, as in biomedical entity linking.
`faiss` is one call of `faiss.knn`, `torch` is `top_k`, which also orders equal scores by index. Making the vectors is not timed.

`corpus` trains the embedded model on made-up sentences, a few steps of 32 texts, twice: the second run finds the cache of the
first. With --streaming nothing is cached, and memory must not grow with the rows.

`documents` reads made-up Markdown files of 24 sentences, 324 words, under three headings, and finds their pairs (`mirror-documents`).

Each measurement is a process of its own, so that peak memory is its own too. Run it on an idle machine.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from itertools import islice, repeat
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.side_by_side import markdown, spread
from mirror.common.cli import Parser


ROOT = Path(__file__).resolve().parents[1]
METHODS = ("faiss", "torch")
K = 10
KILOBYTE = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss


def main() -> None:
    args = parse_arguments()
    if args.one:
        print(search_seconds(args))
    elif args.what == "search":
        compare_searches(args)
    elif args.what == "corpus":
        compare_corpora(args)
    else:
        compare_folders(args)


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("what", choices=("search", "corpus", "documents"), help="What to measure")
    add("--queries", type=int, default=5_000, help="Number of query vectors")
    add("--entries", type=int, default=400_000, help="Number of vectors to search")
    add("--width", type=int, default=768, help="Width of a vector")
    add("--rounds", type=int, default=3, help="Number of searches with each method")
    add("--methods", nargs="+", choices=METHODS, default=[*METHODS], help="Methods to time")
    add(
        "--rows",
        nargs="+",
        type=int,
        default=[10_000, 100_000, 1_000_000],
        help="Sizes of the corpus, or numbers of documents",
    )
    add("--steps", type=int, default=1, help="Number of training steps")
    add("--streaming", action="store_true", help="Whether to read the corpus as a stream")
    add("--one", choices=METHODS, help=SUPPRESS)  # starts a measuring subprocess
    return parser.parse_args(argv)


def run_and_measure(command: Sequence[object], **options) -> tuple[str, float, float]:
    """Run a program to its end, and return its output, its seconds, and its peak resident memory in GB."""
    start = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options)
    output = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"error: {' '.join(map(str, command))} failed")
    return output, time.perf_counter() - start, usage.ru_maxrss * KILOBYTE / 1e9


# ---- Search ----------------------------------------------------------------------------------------------------------


def compare_searches(args: Namespace) -> None:
    methods = [name for name in args.methods if name != "faiss" or importlib.util.find_spec("faiss")]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    sizes = ["--queries", args.queries, "--entries", args.entries, "--width", args.width]
    for _ in range(args.rounds):
        for name in methods:
            output, _, memory = run_and_measure([sys.executable, __file__, "search", "--one", name, *sizes])
            found[name].append((float(output), memory))
    rows = []
    for name, runs in found.items():
        seconds, memory = zip(*runs, strict=True)
        rows.append((name, spread(seconds), f"{args.queries / np.median(seconds):,.0f}", f"{max(memory):.2f}"))
    print(f"{args.queries:,} queries x {args.entries:,} entries x {args.width}, k = {K}, {args.rounds} rounds\n")
    print(markdown(("method", "seconds", "queries/s", "peak GB"), rows))


def search_seconds(args: Namespace) -> float:
    """Return the seconds of one search."""
    from mirror.common.vectors import top_k

    queries, entries = vectors(args.queries, args.width, 0), vectors(args.entries, args.width, 1)

    def faiss_search() -> None:
        import faiss

        faiss.knn(queries, entries, K, metric=faiss.METRIC_INNER_PRODUCT)

    run = {"torch": lambda: top_k(queries, entries, K), "faiss": faiss_search}[args.one]
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def vectors(rows: int, width: int, seed: int) -> np.ndarray:
    """Return random vectors of unit length, (rows, width), made block by block so that no copy of them is needed."""
    generator, made = np.random.default_rng(seed), np.empty((rows, width), dtype=np.float32)
    for start in range(0, rows, 8192):
        block = generator.standard_normal((min(8192, rows - start), width), dtype=np.float32)
        made[start : start + len(block)] = block / np.sqrt((block**2).sum(axis=1, keepdims=True))
    return made


# ---- Corpora ---------------------------------------------------------------------------------------------------------


def compare_corpora(args: Namespace) -> None:
    from benchmarks.stand_in import made_up_sentences

    rows = []
    for count in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/texts.txt", "w", encoding="utf-8") as file:
                file.writelines(f"{text} {number}\n" for number, text in enumerate(made_up_sentences(count)))
            runs = [train(args, folder) for _ in range(2)]
        rows.append((f"{count:,}", *(cell for s, size in runs for cell in (f"{s:.0f}", f"{size:.2f}"))))
    print(markdown(("rows", "first run, s", "peak GB", "second run, s", "peak GB"), rows))


def train(args: Namespace, folder: str) -> tuple[float, float]:
    """Return seconds and peak GB of a training run, imports and saving included."""
    command = [sys.executable, "run_mirror.py", "--train_file", f"{folder}/texts.txt", "--output_dir", f"{folder}/out"]
    command += ["--max_steps", args.steps, "--per_device_train_batch_size", 32, "--force", "--disable_tqdm", "true"]
    command += ["--streaming"] * args.streaming
    environment = os.environ | {"HF_DATASETS_CACHE": f"{folder}/cache"}
    return run_and_measure(command, cwd=ROOT, env=environment)[1:]


# ---- Documents -------------------------------------------------------------------------------------------------------


def compare_folders(args: Namespace) -> None:
    from transformers import AutoTokenizer

    from mirror.assets import EMBEDDED_MODEL

    # Words of one token: a word of a real text has few more.
    words = sorted(filter(str.isalpha, AutoTokenizer.from_pretrained(EMBEDDED_MODEL).get_vocab()))
    rows, rng = [], random.Random(0)
    for count in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            sentences = (f"{' '.join(rng.choices(words, k=12)).capitalize()}." for _ in repeat(None))
            for number in range(count):
                place = Path(folder, str(number % 100))
                place.mkdir(exist_ok=True)
                parts = [
                    f"{mark} {next(sentences)}\n\n{' '.join(islice(sentences, 8))}\n" for mark in ("#", "##", "##")
                ]
                (place / f"{number}.md").write_text("\n".join(parts), encoding="utf-8")
            command = [sys.executable, "-m", "mirror.tools.documents", folder, "--output", f"{folder}/pairs.jsonl"]
            _, seconds, memory = run_and_measure(command, cwd=ROOT)
        rows.append((f"{count:,}", f"{seconds:.0f}", f"{count / seconds:.0f}", f"{memory:.2f}"))
    print(markdown(("files", "seconds", "files/s", "peak GB"), rows))


if __name__ == "__main__":
    main()

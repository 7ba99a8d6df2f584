"""Start-up time and memory of a training run by the size of its corpus, first without and then with its cache.

    python benchmarks/corpus_scale.py --rows 10000 100000 1000000
    python benchmarks/corpus_scale.py --rows 1000000 --repository ../an-older-checkout

Writes made-up sentences of 4 to 15 words, runs run_mirror.py on the embedded model for one step of 32 texts in a subprocess, and
prints seconds and peak resident memory of each run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", nargs="+", type=int, default=[10_000, 100_000, 1_000_000], help="sizes of the corpus"
    )
    parser.add_argument("--repository", type=Path, default=ROOT, help="checkout whose run_mirror.py is measured")
    args = parser.parse_args()
    print("| rows | first run | peak memory | second run | peak memory |\n| ---: | ---: | ---: | ---: | ---: |")
    for rows in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder) / "texts.txt", rows)
            cells = [
                f"{seconds:.0f} s | {size / 1e9:.2f} GB" for seconds, size in (run(args, folder) for _ in range(2))
            ]
        print(f"| {rows:,} | {' | '.join(cells)} |", flush=True)


def write_corpus(path: Path, rows: int) -> None:
    """`rows` distinct lines of words that are numbers in letters."""
    generator = np.random.default_rng(0)
    words = np.array(["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(2000)])
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            picked = words[generator.integers(len(words), size=generator.integers(3, 15))]
            file.write(f"{' '.join(picked)} {row}\n")


def run(args: argparse.Namespace, folder: str) -> tuple[float, int]:
    """Seconds and peak bytes of one training step, imports and saving included."""
    command = [sys.executable, "run_mirror.py", "--train_file", f"{folder}/texts.txt", "--output_dir", f"{folder}/out"]
    command += ["--max_steps", "1", "--per_device_train_batch_size", "32", "--force", "--disable_tqdm", "true"]
    environment = os.environ | {"HF_DATASETS_CACHE": f"{folder}/cache"}
    start = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=args.repository, env=environment, **quiet)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"run_mirror.py failed on {folder}/texts.txt")
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, usage.ru_maxrss * kilobyte


if __name__ == "__main__":
    main()

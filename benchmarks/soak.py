"""Train, score and encode repeatedly in one process, and check that its resources do not grow.

    python benchmarks/soak.py --minutes 120

Every round calls run_mirror.py, run_eval.py and run_encode.py as functions, on a stand-in model, with data-loader workers, and
then counts resident memory, open files, threads, child processes and temporary files. After the first quarter of the rounds,
which fill caches and pools, neither the counts nor the memory may grow; otherwise the exit status is 2.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.common.errors import InputError, run_main


MIN_ROUNDS = 8
COUNTED = ("open_files", "threads", "children", "temporary_files")
DEVNULL = open(os.devnull, "w")
ALLOWED_GROWTH = 0.03  # of resident memory, between the second and the last quarter of the rounds


@dataclass(frozen=True)
class Counts:
    seconds: float  # since the start
    resident_mb: float
    open_files: int
    threads: int
    children: int
    temporary_files: int


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as work:
        tempfile.tempdir = f"{work}/temporary"  # so that every file left there is from this script
        Path(tempfile.tempdir).mkdir()
        os.environ |= {"TMPDIR": tempfile.tempdir, "HF_DATASETS_CACHE": f"{work}/cache", "HF_HUB_OFFLINE": "1"}
        rounds = soak(Path(work), args.minutes)
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak.json").write_text(json.dumps([asdict(counts) for counts in rounds], indent=1) + "\n")
    print(summary(rounds))
    if grown := grown_counts(rounds):
        raise InputError(f"{', '.join(grown)} grew over {len(rounds)} rounds: {folder / 'soak.json'}")


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=120, help="duration (default: 120)")
    parser.add_argument("--output_dir", default="out/benchmarks", help="folder for soak.json")
    return parser.parse_args(argv)


def soak(work: Path, minutes: float) -> list[Counts]:
    from benchmarks.stand_in import made_up_sentences, make_model

    texts = list(dict.fromkeys(made_up_sentences(600)))
    (work / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    make_model(work / "model", texts, layers=2, width=64)
    write_task(work / "data" / "wordsim" / "rg65.tsv", texts)
    start = time.monotonic()
    rounds: list[Counts] = []
    while len(rounds) < MIN_ROUNDS or time.monotonic() - start < 60 * minutes:
        one_round(work, seed=len(rounds) + 1)
        rounds.append(count(time.monotonic() - start))
        shown = asdict(rounds[-1])
        print(
            f"round {len(rounds)}: " + ", ".join(f"{name} {value:,.0f}" for name, value in shown.items()), flush=True
        )
    return rounds


def write_task(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True)
    rows = [f"{texts[row]}\t{texts[row + 65]}\t{row / 16:.4f}" for row in range(65)]
    path.write_text("\n".join(["word1\tword2\tscore", *rows]) + "\n", encoding="utf-8")


def one_round(work: Path, seed: int) -> None:
    import run_encode
    import run_eval
    import run_mirror

    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)  # output of the previous round
    call(
        run_mirror.main,
        *("--model_name_or_path", work / "model", "--train_file", work / "texts.txt", "--output_dir", out / "encoder"),
        *("--max_seq_length", 32, "--per_device_train_batch_size", 50, "--num_train_epochs", 2, "--seed", seed),
        *(
            "--save_strategy",
            "epoch",
            "--save_total_limit",
            1,
            "--dataloader_num_workers",
            1,
            "--disable_tqdm",
            "true",
        ),
        *("--validation_samples", 50, "--eval_strategy", "epoch"),
    )
    call(
        run_eval.main,
        *("--model_name_or_path", out / "encoder", "--tasks", "rg65", "--data_dir", work / "data"),
        *("--output_dir", out / "scores"),
    )
    call(
        run_encode.main,
        *("--model_name_or_path", out / "encoder", "--input_file", work / "texts.txt", "--shard_rows", 200),
        *("--output_dir", out / "vectors"),
    )


def call(script: Callable[[], None], *flags: object) -> None:
    """Run a script's `main` with flags in this process; its output is discarded."""
    before, sys.argv = sys.argv, [script.__module__, *map(str, flags)]
    with redirect_stdout(DEVNULL), redirect_stderr(DEVNULL):
        script()
    sys.argv = before


def count(seconds: float) -> Counts:
    import psutil

    gc.collect()
    process = psutil.Process()
    return Counts(
        seconds=seconds,
        resident_mb=process.memory_info().rss / 2**20,
        open_files=process.num_fds(),
        threads=process.num_threads(),
        children=len(process.children(recursive=True)),
        temporary_files=len(os.listdir(tempfile.gettempdir())),
    )


def grown_counts(rounds: Sequence[Counts]) -> list[str]:
    """Names of the counts that were higher in the last quarter of the rounds than in the second; memory by its median."""
    quarter = len(rounds) // 4
    early, late = rounds[quarter : 2 * quarter], rounds[-quarter:]
    grown = [name for name in COUNTED if min(getattr(c, name) for c in late) > max(getattr(c, name) for c in early)]
    first, last = (statistics.median(counts.resident_mb for counts in part) for part in (early, late))
    return grown + ["resident_mb"] * (last > first * (1 + ALLOWED_GROWTH))


def summary(rounds: Sequence[Counts]) -> str:
    quarter = len(rounds) // 4
    lines = [f"{len(rounds)} rounds in {rounds[-1].seconds / 60:.0f} minutes; medians of each quarter:"]
    for name in ("resident_mb", *COUNTED):
        parts = [rounds[start : start + quarter] for start in range(0, 4 * quarter, quarter)]
        medians = [statistics.median(getattr(counts, name) for counts in part) for part in parts]
        lines.append(f"  {name:16}" + " ".join(f"{median:>9,.1f}" for median in medians))
    return "\n".join(lines)


if __name__ == "__main__":
    run_main(main)

"""Runs measurements interleaved, one subprocess per variant and round, and reports median (min-max).

This module imports nothing heavy, so that the waiting process takes no memory and no threads from the measured one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from mirror.common.cli import Parser
from mirror.common.errors import InputError
from mirror.common.files import atomic_write_text


Results = dict[str, list[dict]]  # variant -> one result per round
PRECISIONS = ("fp32", "bf16", "fp16")
PEERS = ("original-way", "sentence-transformers")
VERSUS = tuple(f"vs {peer}" for peer in PEERS)  # the columns of `ratios`


def make_parser(description: str) -> Parser:
    """Return a parser with the flags of every benchmark, and the hidden ones that start a measuring subprocess."""
    parser = Parser(description)
    parser.add_argument("--rounds", type=int, default=3, help="Number of measurements of each variant")
    parser.add_argument("--output_dir", default="out/benchmarks", help="Folder for the table and the raw numbers")
    for flag in ("--child", "--child_result", "--work"):
        parser.add_argument(flag, help=SUPPRESS)
    return parser


def parse_speed_flags(parser: Parser, argv: list[str] | None, ways: Collection[str], **defaults) -> Namespace:
    """Add the flags of the benchmarks of speed, parse a command line, and raise an `InputError` for an unknown variant.

    A variant is one of the `ways` and a precision.
    """
    add = parser.add_argument
    add("--variants", nargs="+", metavar="V", help="Methods and precisions to measure")
    add("--batch_size", type=int, help="Number of texts in a batch")
    add("--max_length", type=int, help="Longest text in tokens")
    add("--pooling", choices=("cls", "mean"), default="cls", help="Pooling of the vectors")
    parser.set_defaults(**defaults)
    args = parser.parse_args(argv)
    for variant in args.variants:
        way, _, precision = variant.rpartition("-")
        if way not in ways or precision not in PRECISIONS:
            raise InputError(f"--variants {variant}: unknown; for example {' '.join(defaults['variants'])}")
    return args


def run_child(args: Namespace, measure: Callable[[str, Namespace], dict]) -> None:
    """Measure one variant in a subprocess and write the result to `args.child_result`."""
    Path(args.child_result).write_text(json.dumps(measure(args.child, args)), encoding="utf-8")


def run_in_subprocess(
    script: str, variant: str, flags: Sequence[str], timeout: float | None = None, python: str = sys.executable
) -> dict:
    """Measure one variant in a fresh subprocess, and return its result, with `process_seconds` from start to exit.

    A subprocess that fails, or that is not done after `timeout` seconds, is a `RuntimeError`, with the last line of its stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [python, script, *flags, "--child", variant, "--child_result", str(result)]
        start = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"not done after {timeout:.0f} s") from error
        seconds = time.perf_counter() - start
        if done.returncode or not result.exists():
            messages = done.stderr.strip().splitlines() or ["no message"]
            raise RuntimeError(f"exit status {done.returncode}: {messages[-1]}")
        return json.loads(result.read_text(encoding="utf-8")) | {"process_seconds": seconds}


def prepare(script: str, flags: Sequence[str]) -> dict:
    """Make the inputs that all variants of a script share, in its child `prepare`, and return that child's result."""
    try:
        return run_in_subprocess(script, "prepare", flags)
    except RuntimeError as error:
        raise InputError(str(error).rpartition("error: ")[2]) from error


def run_interleaved(
    script: str,
    variants: Sequence[str],
    rounds: int,
    flags: Sequence[str],
    python_of: Callable[[str], str] | None = None,
) -> Results:
    """Measure every variant in every round, so that a drift of the machine affects all of them alike.

    `python_of` names the Python for a variant. A failed measurement is reported on stderr and left out.
    """
    found: Results = {variant: [] for variant in variants}
    for number in range(1, rounds + 1):
        for variant in variants:
            try:
                python = python_of(variant) if python_of else sys.executable
                found[variant].append(run_in_subprocess(script, variant, flags, python=python))
                outcome = f"{found[variant][-1]['process_seconds']:.1f} s"
            except RuntimeError as error:
                outcome = f"failed, {error}"
            print(f"round {number}/{rounds}, {variant}: {outcome}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return found


def median(runs: Iterable[dict], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def spread(values: Sequence[float]) -> str:
    """Return median and range with three significant digits, or without decimals from 100 on: `1.19 (1.11-1.27)`."""
    shown = (min(values), statistics.median(values), max(values))
    low, middle, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in shown)
    return f"{middle} ({low}-{high})"


def ratios(results: Results, variant: str, key: str) -> list[str]:
    """Return how many times faster a variant is than each of `PEERS` in the same precision, or a dash if one is missing."""
    peers = (results.get(f"{peer}-{variant.rpartition('-')[2]}") for peer in PEERS)
    return [f"{median(runs, key) / median(results[variant], key):.2f}x" if runs else "-" for runs in peers]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def run_benchmark(
    script: str,
    args: Namespace,
    measure: Callable[[str, Namespace], dict],
    variants: Sequence[str],
    report: Callable[[Namespace, dict, Results], tuple[str, str]],
    python_of: Callable[[str], str] | None = None,
) -> None:
    """Measure all variants, and write and print the report. In a child process, measure one variant.

    Args:
        measure: returns the numbers of one variant, and the facts for the report when the variant is `prepare`.
        report: returns title and table, from the arguments, the facts and the results.
        python_of: returns the Python that measures a variant. Default: this one.
    """
    if args.child:
        run_child(args, measure)
        return
    with tempfile.TemporaryDirectory() as work:
        flags = [*sys.argv[1:], "--work", work]
        facts = prepare(script, flags)
        results = run_interleaved(script, variants, args.rounds, flags, python_of)
    text = "\n\n".join(report(args, facts, results))
    write_report(args.output_dir, script, text, results)
    print(text)


def write_report(output_dir: str, script: str, text: str, numbers: dict) -> None:
    """Write the report of a script and its raw numbers, each under the script's name."""
    place = Path(output_dir) / Path(script).stem
    atomic_write_text(place.with_suffix(".json"), json.dumps(numbers, indent=1) + "\n")
    atomic_write_text(place.with_suffix(".md"), text)

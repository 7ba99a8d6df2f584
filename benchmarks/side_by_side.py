"""Interleaved measurements: one subprocess per variant and round, reported as median (min-max).

Runs a benchmark script once per variant and round and reports the results; knows nothing of what is measured. This module
imports nothing heavy, so that the waiting process does not take memory and threads from the measured one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from mirror.common.errors import InputError


Results = dict[str, list[dict]]  # variant -> one result per round


def add_common_flags(parser: ArgumentParser) -> None:
    """Add the flags of every benchmark, and the hidden ones that start a measuring subprocess."""
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant (default: 3)")
    parser.add_argument("--output_dir", default="out/benchmarks", help="folder for the table, chart and raw numbers")
    parser.add_argument("--child", help=SUPPRESS)
    parser.add_argument("--child_result", help=SUPPRESS)
    parser.add_argument("--work", help=SUPPRESS)


def run_child(args: Namespace, measure: Callable[[str, Namespace], dict]) -> None:
    """Measure one variant in a subprocess and write the result to `args.child_result`."""
    found = measure(args.child, args)
    Path(args.child_result).write_text(json.dumps(found), encoding="utf-8")


def run_in_subprocess(script: str, variant: str, flags: Sequence[str], timeout: float | None = None) -> dict:
    """Measure one variant in a fresh subprocess.

    Args:
        timeout: seconds after which it is stopped.

    Returns:
        Its result, with `process_seconds` from start to exit.

    Raises:
        RuntimeError: the subprocess failed; the message holds the last line of its stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, script, *flags, "--child", variant, "--child_result", str(result)]
        start = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"not done after {timeout:.0f} s") from error
        seconds = time.perf_counter() - start
        if done.returncode or not result.exists():
            said = done.stderr.strip().splitlines() or ["no message"]
            raise RuntimeError(f"exit status {done.returncode}: {said[-1]}")
        return json.loads(result.read_text(encoding="utf-8")) | {"process_seconds": seconds}


def prepare(script: str, flags: Sequence[str]) -> dict:
    """Run the child `prepare` of a script, which makes the inputs that all variants share, and return its result.

    Raises:
        InputError: the inputs could not be made.
    """
    try:
        return run_in_subprocess(script, "prepare", flags)
    except RuntimeError as error:
        raise InputError(str(error).rpartition("error: ")[2]) from error


def run_interleaved(script: str, variants: Sequence[str], rounds: int, flags: Sequence[str]) -> Results:
    """Measure every variant in every round, so that a drift of the machine affects all of them alike.

    A failed measurement is reported on stderr and left out.
    """
    found: Results = {variant: [] for variant in variants}
    for number in range(1, rounds + 1):
        for variant in variants:
            try:
                found[variant].append(run_in_subprocess(script, variant, flags))
                outcome = f"{found[variant][-1]['process_seconds']:.1f} s"
            except RuntimeError as error:
                outcome = f"failed, {error}"
            print(f"round {number}/{rounds}, {variant}: {outcome}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return found


def median(runs: Iterable[dict], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def spread(values: Sequence[float]) -> str:
    """Median and range with three significant digits, or without decimals from 100 on: `1.19 (1.11-1.27)`."""
    shown = (min(values), statistics.median(values), max(values))
    low, middle, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in shown)
    return f"{middle} ({low}-{high})"


def ratio(base: Sequence[dict], runs: Sequence[dict], key: str) -> str:
    """How many times faster `runs` are than `base`; a dash if either is missing."""
    return f"{median(base, key) / median(runs, key):.2f}x" if base and runs else "-"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write_report(
    output_dir: str,
    name: str,
    title: str,
    table: str,
    results: Results,
    bars: Mapping[str, Sequence[float]],
    unit: str,
) -> None:
    """Write `name.md`, `name.json` (all results) and `name.png` to `output_dir`; print the table too."""
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = f"{title}\n\n{table}"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw_bars(folder / f"{name}.png", bars, title.split("; ")[0], unit)
    print(text)


def draw_bars(path: Path, bars: Mapping[str, Sequence[float]], title: str, unit: str) -> None:
    """Draw the median of each variant as a bar, with whiskers from its minimum to its maximum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.45 * len(bars) + 1.4), layout="constrained")
    axes = figure.subplots()
    middles = [statistics.median(values) for values in bars.values()]
    low = [middle - min(values) for middle, values in zip(middles, bars.values(), strict=True)]
    high = [max(values) - middle for middle, values in zip(middles, bars.values(), strict=True)]
    drawn = axes.barh(list(bars), middles, xerr=(low, high), color="#0072B2", ecolor="0.4", capsize=3)
    axes.bar_label(drawn, fmt="  {:.3g}", padding=6)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(xlabel=unit)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)

"""Measurements that take turns: each in a process of its own, several rounds, medians with their spread.

Knows how to run a benchmark script once for each variant and how to show what it found; knows nothing of what is measured.
This file imports nothing heavy, for a process that only waits should not take memory and threads from the one measured.
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

from mirror.errors import InputError


Results = dict[str, list[dict]]  # what each round of a variant found


def add_common_flags(parser: ArgumentParser) -> None:
    """Flags of every benchmark, and those that a measuring process is started with."""
    parser.add_argument("--rounds", type=int, default=3, help="each variant is measured this often (default: 3)")
    parser.add_argument("--output_dir", default="out/benchmarks", help="where the table, chart and raw numbers go")
    parser.add_argument("--child", help=SUPPRESS)
    parser.add_argument("--child_result", help=SUPPRESS)
    parser.add_argument("--work", help=SUPPRESS)


def run_child(args: Namespace, measure: Callable[[str, Namespace], dict]) -> None:
    """In a measuring process: measure one variant and hand the numbers back."""
    found = measure(args.child, args)
    Path(args.child_result).write_text(json.dumps(found), encoding="utf-8")


def run_alone(script: str, variant: str, flags: Sequence[str]) -> dict:
    """One variant in a fresh process; what it found, and `process_seconds` from start to exit.

    Raises:
        RuntimeError: it failed; holds the last line that it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, script, *flags, "--child", variant, "--child_result", str(result)]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if done.returncode or not result.exists():
            said = done.stderr.strip().splitlines() or ["nothing said"]
            raise RuntimeError(f"exit status {done.returncode}: {said[-1]}")
        return json.loads(result.read_text(encoding="utf-8")) | {"process_seconds": seconds}


def prepare(script: str, flags: Sequence[str]) -> dict:
    """What the child `prepare` of a script finds while it makes the inputs that all variants share.

    Raises:
        InputError: it could not make them.
    """
    try:
        return run_alone(script, "prepare", flags)
    except RuntimeError as error:
        raise InputError(str(error).rpartition("error: ")[2]) from error


def take_turns(script: str, variants: Sequence[str], rounds: int, flags: Sequence[str]) -> Results:
    """Every variant in every round, so that a drift of the machine meets all of them; a failed one is left out, aloud."""
    found: Results = {variant: [] for variant in variants}
    for number in range(1, rounds + 1):
        for variant in variants:
            try:
                found[variant].append(run_alone(script, variant, flags))
                outcome = f"{found[variant][-1]['process_seconds']:.1f} s"
            except RuntimeError as error:
                outcome = f"failed, {error}"
            print(f"round {number}/{rounds}, {variant}: {outcome}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return found


def median(runs: Iterable[dict], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def spread(values: Sequence[float]) -> str:
    """The median and the range, three digits or all whole ones: `1.19 (1.11-1.27)`."""
    shown = (min(values), statistics.median(values), max(values))
    low, middle, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in shown)
    return f"{middle} ({low}-{high})"


def ratio(base: Sequence[dict], runs: Sequence[dict], key: str) -> str:
    """How many times faster `runs` are than `base`; a dash where there is no base."""
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
    """`name.md`, `name.json` (every number found) and `name.png` in `output_dir`; the table goes to stdout too."""
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = f"{title}\n\n{table}"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw_bars(folder / f"{name}.png", bars, title.split("; ")[0], unit)
    print(text)


def draw_bars(path: Path, bars: Mapping[str, Sequence[float]], title: str, unit: str) -> None:
    """A bar of the median of each variant, with a whisker from its lowest to its highest round."""
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

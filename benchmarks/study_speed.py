"""Speed of run_study.py: its forked processes against two new processes for each cell, on the same cells.

    python benchmarks/study_speed.py table3 --model_name_or_path mirror/assets/mini-mlm --data_dir data --skip_missing \\
        --max_train_samples 400

All flags except --rounds and --output_dir are those of run_study.py. Runs are interleaved, one subprocess each, and must give
the same scores. Run it on an idle machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.side_by_side import (
    add_common_flags,
    markdown,
    median,
    ratio,
    run_child,
    run_interleaved,
    spread,
    write_report,
)
from mirror.common.errors import InputError, run_main


VARIANTS = ("new-processes", "forked")


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    if args.child:
        run_child(args, measure)
        return
    results = run_interleaved(__file__, VARIANTS, args.rounds, sys.argv[1:])
    if not all(results.values()):
        raise InputError("a study failed; run it with run_study.py to see why")
    if len({json.dumps(run["scores"], sort_keys=True) for runs in results.values() for run in runs}) > 1:
        raise InputError("the two ways gave different scores")
    cells = len(results["forked"][0]["scores"])
    title = f"{cells} cells of {args.command[0]}, equal scores; {args.rounds} rounds; median (min-max)"
    rows = [
        (
            name,
            spread([run["process_seconds"] for run in runs]),
            f"{median(runs, 'process_seconds') / cells:.1f}",
            ratio(results["new-processes"], runs, "process_seconds"),
        )
        for name, runs in results.items()
    ]
    table = markdown((f"{cells} cells", "seconds", "seconds per cell", "vs new processes"), rows)
    bars = {name: [run["process_seconds"] for run in runs] for name, runs in results.items()}
    write_report(args.output_dir, "study_speed", title, table, results, bars, "seconds")


def parse_arguments(argv: Sequence[str]) -> Namespace:
    """Parse the flags of this script; what is left over is `command`, for run_study.py."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    add_common_flags(parser)
    args, args.command = parser.parse_known_args(argv)
    if not args.command:
        raise InputError("name a study and the flags of run_study.py; run_study.py --list prints all studies")
    return args


def measure(variant: str, args: Namespace) -> dict:
    """Run the study in a new folder and return the scores of its cells."""
    import run_study
    from mirror.studies import processes

    if variant == "new-processes":
        processes.run_script = run_anew
        run_study.WARM = ()
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["run_study.py", *args.command, "--output_dir", folder]
        run_study.main()
        records = {path.parent.name: json.loads(path.read_text()) for path in Path(folder).glob("*/cell.json")}
    tasks = {name: record["tasks"] for name, record in records.items()}
    return {
        "scores": {name: {key: task["main_score"] for key, task in found.items()} for name, found in tasks.items()}
    }


def run_anew(script: str, arguments: Sequence[str]) -> int:
    """Run a script as from the command line, with the output of this process; return its exit status."""
    from mirror.studies.processes import ROOT

    command = [sys.executable, str(ROOT / script), *arguments]
    return subprocess.run(command, stdout=1, stderr=2).returncode


if __name__ == "__main__":
    run_main(main)

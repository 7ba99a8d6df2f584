"""Makes every fault of a run, one after the other: what is left must be as good as before.

python -m tests.faults saves        # every call that changes a file during a save fails, or kills the process
python -m tests.faults runs         # training ends in every situation, then resumes
python -m tests.faults collectives  # every collective of one of two processes kills it, or loses the connection
python -m tests.faults commands     # every such call of run_encode.py and run_eval.py, then the same command again

Each prints a table of counts, and exits with 1 if anything is wrong. `--every 7` makes each seventh fault only. Needs Linux and
a C compiler. A folder in memory (`TMPDIR=/dev/shm`) saves time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

from tests.faults.harness import build_shim


TABLES = {
    "saves": ("calls", "run_saves"),
    "runs": ("runs", "run_all"),
    "collectives": ("collectives", "run_all"),
    "commands": ("calls", "run_commands"),
}


def main() -> None:
    parser = ArgumentParser(prog="tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("table", choices=TABLES, nargs="?", default="saves")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="Make only every n-th fault")
    parser.add_argument("--work", type=Path, help="internal: an empty folder, which the first process makes")
    args = parser.parse_args()
    if "fault_shim" not in os.environ.get("LD_PRELOAD", ""):
        with tempfile.TemporaryDirectory() as work:
            environment = os.environ | build_shim(Path(work)) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            environment |= {"HF_DATASETS_CACHE": f"{work}/cache", "TOKENIZERS_PARALLELISM": "false", "TMPDIR": work}
            command = [sys.executable, "-m", "tests.faults", *sys.argv[1:], "--work", work]
            sys.exit(subprocess.run(command, env=environment).returncode)
    module, function = TABLES[args.table]
    text, wrong = getattr(import_module(f"tests.faults.{module}"), function)(args.work, args.every)
    sys.stdout.write(text + "\n")
    sys.exit(bool(wrong))

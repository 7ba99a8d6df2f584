"""Every fault of a run, one after the other: what is left must be as good as before.

python -m tests.faults saves        # every call that changes a file during a save fails, or kills the process
python -m tests.faults runs         # training ended in every situation, then resumed
python -m tests.faults collectives  # every collective of one of two processes kills it, or loses the connection
python -m tests.faults commands     # every such call of run_encode.py and of a study, then the same command again

Each prints a table of counts, and exits with 1 if anything is wrong. `--every 7` makes each seventh fault only. Needs Linux and
a C compiler; a folder in memory (`TMPDIR=/dev/shm`) saves time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

from tests.faults.shim import build_shim, is_loaded


TABLES = ("saves", "runs", "collectives", "commands")


def main() -> None:
    parser = ArgumentParser(prog="tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("table", choices=TABLES, nargs="?", default=TABLES[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every n-th fault")
    parser.add_argument("--work", type=Path, help="internal: an empty folder, which the first process makes")
    args = parser.parse_args()
    if not is_loaded():
        sys.exit(start_behind_shim())
    table, wrong = import_module(f"tests.faults.{args.table}").run_all(args.work, args.every)
    sys.stdout.write(table + "\n")
    sys.exit(bool(wrong))


def start_behind_shim() -> int:
    with tempfile.TemporaryDirectory() as work:
        environment = os.environ | build_shim(Path(work)) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment |= {"HF_DATASETS_CACHE": f"{work}/cache", "TOKENIZERS_PARALLELISM": "false", "TMPDIR": work}
        command = [sys.executable, "-m", "tests.faults", *sys.argv[1:], "--work", work]
        return subprocess.run(command, env=environment).returncode

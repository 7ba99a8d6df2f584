"""The command line: starts itself again behind the shim, and prints the tables."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

import tests.faults
from tests.faults.shim import build_shim, is_loaded


TABLES = ("saves", "runs", "collectives", "commands")


def main() -> None:
    parser = ArgumentParser(prog="tests.faults", description=tests.faults.__doc__.partition("\n")[0])
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


if __name__ == "__main__":
    main()

"""A sample of the faults that `python -m tests.faults` makes one by one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler and Linux")
def test_no_fault_of_a_save_costs_the_last_checkpoint():
    command = [sys.executable, "-m", "tests.faults", "--every", "11"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("| checkpoint |") == done.stdout.count("| final save |") == 3

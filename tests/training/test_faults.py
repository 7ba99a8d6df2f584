"""Tests a sample of the faults that `python -m tests.faults` makes one by one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler and Linux")
@pytest.mark.parametrize(("table", "every"), [("saves", 29), ("runs", 19), ("collectives", 13), ("commands", 13)])
def test_what_a_fault_leaves_is_as_good_as_before(table, every):
    command = [sys.executable, "-m", "tests.faults", table, "--every", str(every)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("\n|") > 4

"""Two processes of torchrun, for the tests that two processes do what one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent


def run_two_processes(*command: str) -> subprocess.CompletedProcess[str]:
    """`torchrun --nproc_per_node 2 COMMAND...`, one thread each, on a free port; fails the test if the command fails.

    A script of its own ends with `mirror.common.distributed.shutdown` or `exit_process`: gloo may abort at the
    interpreter's exit.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, *command], cwd=ROOT, capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done

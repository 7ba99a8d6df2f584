"""Runs two processes of one run: by torchrun, for the tests that two do what one does, or without a launcher."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]


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


class Pair:
    """`python COMMAND` twice, on gloo, without a launcher: nothing but our code ends one of them with the other.

    The messages of each go to a file in `folder`. Ends both on the way out.
    """

    def __init__(self, folder: Path, *command: str):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        folder.mkdir(parents=True, exist_ok=True)
        self.logs = [folder / f"messages{rank}.txt" for rank in (0, 1)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            environment = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            with log.open("w") as file:
                argv = [sys.executable, *map(str, command)]
                self.processes.append(subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=file, stderr=file))

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def wait_until(self, happened: Callable[[], object], seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while not happened():
            ended = [process.poll() for process in self.processes]
            assert ended == [None, None], (ended, *map(self.said, (0, 1)))
            assert time.monotonic() < end, "nothing happened"
            time.sleep(0.02)

    def send(self, rank: int, signal_number: signal.Signals) -> None:
        self.processes[rank].send_signal(signal_number)

    def statuses(self, seconds: float = 600) -> list[int]:
        return [process.wait(seconds) for process in self.processes]

    def said(self, rank: int) -> str:
        return self.logs[rank].read_text(errors="replace")

    def errors(self, rank: int) -> list[str]:
        return [line for line in self.said(rank).splitlines() if line.startswith("error: ")]

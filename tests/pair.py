"""Two processes of one run, started without a launcher: what becomes of one when the other ends is then our doing alone."""

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


class Pair:
    """`python COMMAND` twice, on gloo; the messages of each go to a file in `folder`. Ends both on the way out."""

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

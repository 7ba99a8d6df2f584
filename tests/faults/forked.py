"""Processes forked from one that has imported everything: a run of a script takes seconds."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirror.common.errors import run_main


SECONDS = 120  # a process that takes longer hangs


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        status: its exit status; negative: the signal that killed it; None: it did not end.
        said: its messages.
    """

    status: int | None
    said: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.said.splitlines() if line.startswith("error: ")]


def run_forked(act: Callable[[int], None], folder: Path, processes: int = 1) -> list[Ended]:
    """Do `act(rank)` in one process, or in two of one run on gloo, as the `main` of a script is run.

    Args:
        folder: for their messages.
    """
    environment = _launched(processes) if processes > 1 else {}
    sys.stdout.flush()
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if environment else {}
            _be_child(lambda rank=rank: act(rank), environment | own, folder / f"messages{rank}.txt")
        children.append(child)
    end = time.monotonic() + SECONDS
    statuses = [_wait(child, end) for child in children]
    return [Ended(status, (folder / f"messages{rank}.txt").read_text()) for rank, status in enumerate(statuses)]


def _launched(processes: int) -> dict[str, str]:
    """What a launcher sets."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    sizes = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | sizes


def _be_child(main: Callable[[], None], environment: dict[str, str], messages: Path) -> None:
    status = 1
    try:
        os.setpgid(0, 0)  # so that workers that it leaves can be ended
        log = os.open(messages, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(environment)
        run_main(main)
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def _wait(child: int, end: float) -> int | None:
    """Exit status of a child; what it leaves is killed, and so is a child that does not end."""
    ended, code = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < end:
        time.sleep(0.005)
        ended, code = os.waitpid(child, os.WNOHANG)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if not ended:
        os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(code) if ended else None

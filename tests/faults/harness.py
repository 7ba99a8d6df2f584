"""Provides what the fault tests share: a library that disturbs system calls, forked processes, and counts of what became of them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import mirror
from mirror.common.errors import run_main


SECONDS = 120  # a process that takes longer hangs
MODES = {"kill": 1, "error": 2, "full": 3}
KINDS = {"o": "open", "w": "write", "f": "fsync", "r": "rename", "u": "unlink", "m": "mkdir"}
LIBRARIES = ("sentence_transformers", "transformers.models.bert.modeling_bert", "matplotlib.pyplot")


# ---- The library before libc (shim.c) ---------------------------------------------------------------------------------


def build_shim(folder: Path) -> dict[str, str]:
    """Compile the library, and return the environment of programs that run behind it."""
    library = folder / "fault_shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "FAULT_STATE": str(folder / "fault_state")}


class Shim:
    """Controls the library that was loaded before libc. All processes that are forked or started from here share its state."""

    def __init__(self):
        self.library = ctypes.CDLL(None)
        self.library.fault_calls.restype = ctypes.c_char_p

    def arm(self, folder: Path, number: int = 0, mode: str | None = None) -> None:
        """Count the calls that change files below `folder` from now on, and disturb call `number`.

        Args:
            mode: `kill` kills the process that makes the call, with half of a write done. `error` fails it with EIO. `full`
                fails it and all later writes and new folders with ENOSPC.
        """
        self.library.fault_arm(os.fsencode(folder), ctypes.c_long(number), MODES.get(mode, 0))

    def disarm(self) -> str:
        """Return the calls since `arm`, a letter for each."""
        self.library.fault_disarm()
        return self.library.fault_calls().decode()


# ---- Processes forked from one that has imported everything: a run of a script takes seconds ----------------------------


def import_everything() -> None:
    for name in (*LIBRARIES, "run_mirror", "run_eval", "run_encode"):
        import_module(name)
    for name in mirror.__all__:
        getattr(mirror, name)  # imports its module


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        status: its exit status, minus the signal that killed it, or None if it did not end.
        messages: what it wrote to stdout and stderr.
    """

    status: int | None
    messages: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.messages.splitlines() if line.startswith("error: ")]


def run_forked(act: Callable[[int], None], folder: Path, processes: int = 1) -> list[Ended]:
    """Call `act(rank)` as the `main` of a script, in one process or in several of one run on gloo.

    Args:
        folder: receives the messages.
    """
    environment = {}
    if processes > 1:  # what a launcher sets
        with socket.create_server(("127.0.0.1", 0)) as probe:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        environment |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
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


def _be_child(main: Callable[[], None], environment: dict[str, str], messages: Path) -> None:
    status = 1
    try:
        os.setpgid(0, 0)  # so that the workers it leaves behind can be killed
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
    """Return the exit status of a child. Kill the child if it does not end, and what it leaves behind."""
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


# ---- What is disturbed at each of its calls ----------------------------------------------------------------------------


@dataclass
class Scenario:
    """Something that writes files.

    Args:
        act: does it.
        start: the content of the output folder before it, or None if there is no such folder.
        calls: the calls that it makes undisturbed, a letter for each.
    """

    name: str
    act: Callable[[], None]
    start: Path | None = None
    calls: str = ""
    outcomes: Counter = field(default_factory=Counter)

    def count(self, number: int, mode: str, ended: Ended, wrong: str | None) -> None:
        """Note how the process ended that was disturbed at call `number`, and print what was wrong."""
        if wrong:
            kind = KINDS[self.calls[number - 1]]
            sys.stdout.write(f"{self.name}, call {number} ({kind}), {mode}: {wrong}\n{ended.messages[-2000:]}\n")
        end = {0: "done", 2: "one line", -9: "killed"}.get(ended.status, "other")
        self.outcomes[mode, "WRONG" if wrong else end] += 1

    def disturbances(self, every: int) -> Iterator[tuple[int, str]]:
        """Yield every `every`-th call with each mode that can concern it."""
        for mode in MODES:
            for number, kind in enumerate(self.calls, start=1):
                if number % every == 0 and (mode != "full" or kind in "wm"):
                    yield number, mode


def ended_badly(ended: Ended) -> str | None:
    """Return what is wrong with the end of a disturbed process: not done, not killed, and not with one line."""
    if ended.status == 2 and len(ended.errors) != 1:
        return "not one line"
    return None if ended.status in (0, 2, -9) else f"exit status {ended.status}"


def table(scenarios: list[Scenario]) -> tuple[str, int]:
    """Return a Markdown table, and how many outcomes are wrong."""
    lines = ["| what | calls | fault | done | one line | killed | wrong |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for scenario in scenarios:
        counts = Counter(scenario.calls)
        calls = ", ".join(f"{counts[kind]} {name}" for kind, name in KINDS.items() if counts[kind])
        for mode in MODES:
            ends = [scenario.outcomes[mode, end] for end in ("done", "one line", "killed", "WRONG")]
            if any(ends):
                lines.append(f"| {scenario.name} | {calls} | {mode} | " + " | ".join(map(str, ends)) + " |")
    return "\n".join(lines), sum(scenario.outcomes[mode, "WRONG"] for scenario in scenarios for mode in MODES)

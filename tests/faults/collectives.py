"""Kills one of two processes at every collective, or cuts its connections: the other one ends, and the run can be resumed.

The collectives of one step, of the save of a checkpoint and of the final save count, those of DDP included.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from torch.utils._python_dispatch import TorchDispatchMode

from tests.faults.harness import Ended
from tests.faults.runs import Runs, before


STEPS, SAVE = 4, 2
SITUATION = ("memory", "0", 2)
RANKS = (0, 1)


class CountCollectives(TorchDispatchMode):
    """Counts this process's collectives in a file, and calls `act` before the n-th."""

    def __init__(self, count_file: Path, number: int, act: Callable[[], None]):
        super().__init__()
        self.count, self.count_file, self.number, self.act = 0, count_file, number, act

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.count += 1
            self.count_file.write_text(str(self.count))
            if self.count == self.number:
                self.act()
        return func(*args, **(kwargs or {}))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lose_connections() -> None:
    """Shut down every TCP connection of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
            listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if connection.family in (socket.AF_INET, socket.AF_INET6) and not listens:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # no socket, or not connected
            pass


def count_in(place: str, mode: CountCollectives) -> None:
    """Count in step 3, in the save of the last checkpoint, or in the end of a run."""
    from mirror import MirrorTrainer

    if place == "step":
        before(MirrorTrainer, "training_step", 2, mode.__enter__)
        before(MirrorTrainer, "training_step", 3, lambda: mode.__exit__(None, None, None))
        return
    name = "_save_checkpoint" if place == "checkpoint" else "finish"
    original = getattr(MirrorTrainer, name)

    def counted(trainer, *args, **kwargs):
        with mode if trainer.state.global_step == STEPS else nullcontext():
            return original(trainer, *args, **kwargs)

    setattr(MirrorTrainer, name, counted)


PLACES = {"step": 2, "checkpoint": 2, "final save": STEPS}  # and the step of the newest checkpoint after a fault in it
FAULTS = {"kill": die, "connections lost": lose_connections}


class Collectives:
    """Two processes that train a small model, one of them disturbed."""

    def __init__(self, work: Path):
        self.runs, self.work = Runs(work, STEPS, SAVE), work
        self.whole = self.runs.undisturbed(SITUATION)

    def run(self, place: str, number: int = 0, victim: int = 0, fault: str = "kill") -> list[Ended]:
        """Run the command from its start, with the `number`-th collective of one process disturbed."""

        def disturb(rank: int) -> None:
            mode = CountCollectives(self.count_file(rank), number if rank == victim else 0, FAULTS[fault])
            count_in(place, mode)

        self.runs.clear()
        return self.runs.train(SITUATION, disturb=disturb)

    def count_file(self, rank: int) -> Path:
        return self.work / f"collectives{rank}.txt"

    def count(self, place: str) -> int:
        """Return the number of collectives of each process."""
        ended = self.run(place)
        assert {end.status for end in ended} == {0}, ended
        first, second = (int(self.count_file(rank).read_text()) for rank in RANKS)
        assert first == second, (first, second)
        return first

    def wrong(self, place: str, number: int, victim: int, fault: str) -> str | None:
        """Disturb a run and resume it. Return what is wrong."""
        ended = self.run(place, number, victim, fault)
        statuses = [end.status for end in ended]
        expected = {"kill": -9, "connections lost": 1}[fault]
        if statuses[victim] != expected or statuses[1 - victim] != 1:
            return f"ended with {statuses}: {[end.messages[-3000:] for end in ended]}"
        if any(len(end.errors) != 1 or "Traceback" in end.messages for end in ended if end.status == 1):
            return f"not one line: {[end.messages[-3000:] for end in ended]}"
        return self.runs.wrong_afterwards(SITUATION, PLACES[place], self.whole)


def run_all(work: Path, every: int = 1) -> tuple[str, int]:
    """Make every `every`-th fault. Return the table and how many outcomes are wrong."""
    collectives, outcomes = Collectives(work), Counter()
    counts = {place: collectives.count(place) for place in PLACES}
    faults = (
        (place, fault, n, rank) for place in PLACES for fault in FAULTS for n in range(counts[place]) for rank in RANKS
    )
    for place, fault, n, rank in itertools.islice(faults, every - 1, None, every):
        wrong = collectives.wrong(place, n + 1, rank, fault)
        outcomes[place, fault, bool(wrong)] += 1
        if wrong:
            sys.stdout.write(f"{place}, collective {n + 1} of process {rank}, {fault}: {wrong}\n")
    lines = ["| in | collectives | fault | resumed | wrong |", "| --- | ---: | --- | ---: | ---: |"]
    for place, fault in itertools.product(PLACES, FAULTS):
        numbers = [outcomes[place, fault, wrong] for wrong in (False, True)]
        lines.append(f"| {place} | {counts[place]} | {fault} | {numbers[0]} | {numbers[1]} |")
    return "\n".join(lines), sum(count for (*_, wrong), count in outcomes.items() if wrong)

"""What is disturbed at each of its calls, and the table of what came of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.forked import Ended
from tests.faults.shim import KINDS, MODES


@dataclass
class Scenario:
    """Something that writes files.

    Args:
        act: does it.
        start: the content of the output folder before it; None: there is no such folder.
        calls: those that it makes, a letter for each.
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
            sys.stdout.write(f"{self.name}, call {number} ({kind}), {mode}: {wrong}\n{ended.said[-2000:]}\n")
        end = {0: "done", 2: "one line", -9: "killed"}.get(ended.status, "other")
        self.outcomes[mode, "WRONG" if wrong else end] += 1

    def disturbances(self, every: int) -> Iterator[tuple[int, str]]:
        """Number of a call and how it is disturbed: every `every`-th call in each mode that can concern it."""
        for mode in MODES:
            for number, kind in enumerate(self.calls, start=1):
                if number % every == 0 and (mode != "full" or kind in "wm"):
                    yield number, mode


def ended_badly(ended: Ended) -> str | None:
    """What is wrong with the way a disturbed process ended: not done, not killed, and not with one line."""
    if ended.status == 2 and len(ended.lines) != 1:
        return "not one line"
    return None if ended.status in (0, 2, -9) else f"exit status {ended.status}"


def table(scenarios: list[Scenario]) -> str:
    lines = [
        "| what | calls | fault | done | one line | killed | wrong |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for scenario in scenarios:
        counts = Counter(scenario.calls)
        calls = ", ".join(f"{counts[kind]} {name}" for kind, name in KINDS.items() if counts[kind])
        for mode in MODES:
            ends = [scenario.outcomes[mode, end] for end in ("done", "one line", "killed", "WRONG")]
            if any(ends):
                lines.append(f"| {scenario.name} | {calls} | {mode} | " + " | ".join(map(str, ends)) + " |")
    return "\n".join(lines)


def count_wrong(scenarios: list[Scenario]) -> int:
    return sum(count for one in scenarios for (_, end), count in one.outcomes.items() if end == "WRONG")

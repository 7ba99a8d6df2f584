"""Every call that changes a file during a save fails once, or kills the process: what is left must be as good as before.

    python -m tests.faults            # all calls; a table of counts
    python -m tests.faults --every 7  # every seventh call

A library that `LD_PRELOAD` puts before libc (tests/fault_shim.c, needs a C compiler) counts the calls below the output folder.
For every n a forked process does the same save and the n-th call

    kill   kills it; a write is made by half
    error  fails with EIO, once
    full   fails with ENOSPC if it is a write or makes a folder, and so do all that follow

Then the newest complete checkpoint must be byte for byte one that an undisturbed process wrote, the message must be one line, and
after a disturbed final save the same command must finish the run.
"""

from __future__ import annotations

import ctypes
import filecmp
import os
import random
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


MODES = {"kill": 1, "error": 2, "full": 3}
KINDS = {"o": "open", "w": "write", "f": "fsync", "r": "rename", "u": "unlink", "m": "mkdir"}
CHANGING = ("run_totals.json",)  # holds the time


class Shim:
    """The library that was loaded before libc."""

    def __init__(self):
        self.library = ctypes.CDLL(None)
        self.library.fault_calls.restype = ctypes.c_char_p

    def arm(self, folder: Path, number: int, mode: str | None) -> None:
        self.library.fault_arm(os.fsencode(folder), ctypes.c_long(number), MODES.get(mode, 0))

    def disarm(self) -> str:
        """The calls since `arm`, a letter for each."""
        self.library.fault_disarm()
        return self.library.fault_calls().decode()


@dataclass
class Scenario:
    """Something that is saved, beginning with a folder that holds `start`."""

    name: str
    act: Callable[[], None]
    start: Path
    calls: str = ""
    outcomes: Counter = field(default_factory=Counter)


class Faults:
    """A small run of four steps, and its saves disturbed in every way."""

    def __init__(self, work: Path):
        from tests.conftest import make_sentences, make_tokenizer, save_tiny_bert
        from tests.tiny_trainer import make_trainer

        self.shim, self.work, self.out = Shim(), work, work / "out"
        options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        model = save_tiny_bert(work / "model", make_tokenizer())
        self.trainer = make_trainer(model, make_sentences(), self.out, **options)
        self.metrics = self.trainer.train().metrics
        shutil.rmtree(self.out / "checkpoint-4")
        first = self.undisturbed(Scenario("checkpoint", self.save, self.keep("one")))
        self.whole = self.keep("whole")
        self.scenarios = [first, self.undisturbed(Scenario("rotation", self.rotate, self.whole))]
        self.scenarios.append(self.undisturbed(Scenario("final save", self.finish, self.whole)))
        self.finished = self.keep("finished")

    def undisturbed(self, scenario: Scenario) -> Scenario:
        """Do it once and count its calls."""
        status, scenario.calls, said = self.run(scenario, 0, None)
        assert status == 0, said
        return scenario

    def keep(self, name: str) -> Path:
        return Path(shutil.copytree(self.out, self.work / name))

    # ---- What is disturbed -------------------------------------------------------------------------------------------

    def save(self) -> None:
        self.trainer._save_checkpoint(self.trainer.model, None)

    def rotate(self) -> None:
        from transformers.trainer_utils import rotate_checkpoints

        rotate_checkpoints(str(self.out), 1, None, use_mtime=True)

    def finish(self) -> None:
        from mirror.tools.finish_run import finish_run

        finish_run(self.trainer, self.metrics, "")

    # ---- One disturbed process ---------------------------------------------------------------------------------------

    def run(self, scenario: Scenario, number: int, mode: str | None) -> tuple[int, str, str]:
        """Exit status (negative: a signal), calls and messages of a forked process that does `scenario` from its start."""
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(scenario.start, self.out, copy_function=shutil.copy2)
        return self.fork(scenario.act, number, mode)

    def fork(self, act: Callable[[], None], number: int, mode: str | None) -> tuple[int, str, str]:
        messages, calls = self.work / "messages.txt", self.work / "calls.txt"
        calls.write_text("")
        sys.stdout.flush()
        state = random.getstate()
        child = os.fork()
        if child == 0:
            random.setstate(state)  # Python seeds the generator again in every forked process
            self.child(act, number, mode, messages, calls)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), calls.read_text(), messages.read_text()

    def child(self, act: Callable[[], None], number: int, mode: str | None, messages: Path, calls: Path) -> None:
        from mirror.common.errors import run_main

        status, log = 0, os.open(messages, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            self.shim.arm(self.out, number, mode)
            run_main(act)
        except SystemExit as end:
            status = end.code or 0
        except BaseException as error:
            os.write(2, f"Traceback: {error!r}".encode())
            status = 1
        calls.write_text(self.shim.disarm())
        os._exit(status)

    # ---- What must hold ----------------------------------------------------------------------------------------------

    def disturb(self, scenario: Scenario, number: int, mode: str) -> None:
        status, _, said = self.run(scenario, number, mode)
        found = self.wrong(scenario, status, said)
        if not found and scenario.name == "final save":
            found = self.wrong_afterwards()
        if found:
            sys.stdout.write(
                f"{scenario.name}, call {number} ({KINDS[scenario.calls[number - 1]]}), {mode}: {found}\n{said[-2000:]}\n"
            )
        end = {0: "done", 2: "one line", -9: "killed"}.get(status, "other")
        scenario.outcomes[mode, "WRONG" if found else end] += 1

    def wrong(self, scenario: Scenario, status: int, said: str) -> str | None:
        """What does not hold after a disturbed process, None if all does."""
        from mirror.training.manifest import is_complete, last_complete_checkpoint

        last = last_complete_checkpoint(self.out)
        if last is None:
            return "no complete checkpoint"
        if different := self.different(Path(last), self.whole / Path(last).name):
            return f"{last} differs: {different}"
        if scenario.name != "checkpoint" and Path(last).name != "checkpoint-4":
            return f"the newest checkpoint is gone, {last} is left"
        if status == 0 and scenario.name == "checkpoint" and Path(last).name != "checkpoint-4":
            return "done, but not complete"
        if status == 0 and scenario.name == "final save" and not is_complete(self.out):
            return "done, but not complete"
        if status == 2 and [line.startswith("error: ") for line in said.splitlines()].count(True) != 1:
            return "not one line"
        return None if status in (0, 2, -9) else f"exit status {status}"

    def wrong_afterwards(self) -> str | None:
        """What does not hold after the same command ran again, undisturbed."""
        from mirror.training.manifest import is_complete

        status, _, said = self.fork(self.finish, 0, None)
        if status or not is_complete(self.out):
            return f"cannot be finished: {status} {said[-500:]}"
        left = {path.name for path in self.out.iterdir() if path.name.startswith("_") and path.name != "_lock"}
        return self.different(self.out, self.finished, ("model.safetensors", "config.json")) or (
            f"left: {left}" if left else None
        )

    def different(self, folder: Path, reference: Path, names: tuple[str, ...] = ()) -> str | None:
        """The first file that is not the one of `reference`."""
        names = names or tuple(
            path.relative_to(reference).as_posix() for path in reference.rglob("*") if path.is_file()
        )
        for name in names:
            if name in (*CHANGING, "manifest.json"):
                continue
            if not (folder / name).exists() or not filecmp.cmp(folder / name, reference / name, shallow=False):
                return name
        return None


def table(scenarios: list[Scenario]) -> str:
    lines = [
        "| save | calls | fault | done | one line | killed | wrong |",
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


def run_all(every: int = 1) -> list[Scenario]:
    """Disturb every `every`-th call of each scenario, in each mode that can concern it."""
    with tempfile.TemporaryDirectory() as work:
        faults = Faults(Path(work))
        for scenario in faults.scenarios:
            for mode in MODES:
                for number, kind in enumerate(scenario.calls, start=1):
                    if number % every == 0 and (mode != "full" or kind in "wm"):
                        faults.disturb(scenario, number, mode)
        return faults.scenarios


def load_shim() -> None:
    """Compile the library and start this program again behind it."""
    if "fault_shim" in os.environ.get("LD_PRELOAD", ""):
        return
    library = Path(tempfile.mkdtemp()) / "fault_shim.so"
    source = Path(__file__).with_name("fault_shim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "tests.faults", *sys.argv[1:]], environment)


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="disturb every n-th call only")
    every = parser.parse_args().every
    load_shim()
    scenarios = run_all(every)
    sys.stdout.write(table(scenarios) + "\n")
    sys.exit(any(end == "WRONG" for scenario in scenarios for _, end in scenario.outcomes))


if __name__ == "__main__":
    main()

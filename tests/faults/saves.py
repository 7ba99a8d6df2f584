"""Every call that changes a file during a save fails once, or kills the process: what is left must be as good as before.

The calls of libc below the output folder are counted. For every n a forked process does the same save, and the n-th call is
disturbed (`Shim.arm`). Then the newest complete checkpoint must be byte for byte one that an undisturbed process wrote, the
message must be one line, and after a disturbed final save the same command must finish the run.
"""

from __future__ import annotations

import filecmp
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.faults.forked import Ended, run_forked
from tests.faults.scenario import Scenario, count_wrong, ended_badly, table
from tests.faults.shim import Shim


CHANGING = ("run_totals.json",)  # holds the time


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
        ended = self.run(scenario)
        scenario.calls = self.shim.disarm()
        assert ended.status == 0, ended.said
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

    def run(self, scenario: Scenario, number: int = 0, mode: str | None = None) -> Ended:
        """Do `scenario` from its start in a forked process, with call `number` disturbed."""
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(scenario.start, self.out, copy_function=shutil.copy2)
        self.shim.arm(self.out, number, mode)
        return self.fork(scenario.act)

    def fork(self, act: Callable[[], None]) -> Ended:
        state = random.getstate()

        def with_same_state(rank: int) -> None:
            random.setstate(state)  # Python seeds the generator again in every forked process
            act()

        return run_forked(with_same_state, self.work)[0]

    # ---- What must hold ----------------------------------------------------------------------------------------------

    def disturb(self, scenario: Scenario, number: int, mode: str) -> None:
        ended = self.run(scenario, number, mode)
        self.shim.disarm()
        found = self.wrong(scenario, ended)
        if not found and scenario.name == "final save":
            found = self.wrong_afterwards()
        scenario.count(number, mode, ended, found)

    def wrong(self, scenario: Scenario, ended: Ended) -> str | None:
        """What does not hold after a disturbed process, None if all does."""
        from mirror.training.manifest import is_complete, last_complete_checkpoint

        last = last_complete_checkpoint(self.out)
        if last is None:
            return "no complete checkpoint"
        if different := self.different(Path(last), self.whole / Path(last).name):
            return f"{last} differs: {different}"
        if scenario.name != "checkpoint" and Path(last).name != "checkpoint-4":
            return f"the newest checkpoint is gone, {last} is left"
        if ended.status == 0 and scenario.name == "checkpoint" and Path(last).name != "checkpoint-4":
            return "done, but not complete"
        if ended.status == 0 and scenario.name == "final save" and not is_complete(self.out):
            return "done, but not complete"
        return ended_badly(ended)

    def wrong_afterwards(self) -> str | None:
        """What does not hold after the same command ran again, undisturbed."""
        from mirror.training.manifest import is_complete
        from mirror.training.run_record import LOCAL_BASE

        ended = self.fork(self.finish)
        if ended.status or not is_complete(self.out):
            return f"cannot be finished: {ended.status} {ended.said[-500:]}"
        kept = ("_lock", LOCAL_BASE)
        left = {path.name for path in self.out.iterdir() if path.name.startswith("_") and path.name not in kept}
        return self.different(self.out, self.finished, ("model.safetensors", "config.json", LOCAL_BASE)) or (
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


def run_all(work: Path, every: int = 1) -> tuple[str, int]:
    """Every `every`-th fault of each save; returns the table and how many are wrong."""
    faults = Faults(work)
    for scenario in faults.scenarios:
        for number, mode in scenario.disturbances(every):
            faults.disturb(scenario, number, mode)
    return table(faults.scenarios), count_wrong(faults.scenarios)

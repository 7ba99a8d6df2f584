"""Fails every call that changes a file once, or kills the process there: what is left must be as good as before.

The calls of libc below the output folder are counted. For every n a forked process does the same again, and its n-th call is
disturbed (`Shim.arm`). `saves` disturbs the saves of a training run: the newest complete checkpoint must then be byte for byte
one that an undisturbed process wrote, and after a disturbed final save the same command must finish the run. `commands` disturbs
`run_encode.py` and `run_eval.py`, whose repetition must give the undisturbed output. A message must be one line.
"""

from __future__ import annotations

import filecmp
import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from tests.faults.harness import Ended, Scenario, Shim, ended_badly, import_everything, run_forked, table


CHANGING = ("run_totals.json", "manifest.json")  # the first holds the time, the second its checksum


class Disturber:
    """Does something that writes files below `out` in forked processes, with one call disturbed in each."""

    def __init__(self, work: Path):
        from tests.conftest import make_sentences, make_tokenizer, save_tiny_bert

        self.work, self.out, self.shim, self.texts = work, work / "out", Shim(), make_sentences()
        self.model = save_tiny_bert(work / "model", make_tokenizer())

    def wrong(self, scenario: Scenario, ended: Ended) -> str | None:
        """Return what does not hold after a disturbed process that ended as it may, None if all does."""
        raise NotImplementedError

    def fork(self, act: Callable[[], None]) -> Ended:
        state = random.getstate()

        def with_same_state(rank: int) -> None:
            random.setstate(state)  # Python seeds the generator again in every forked process
            act()

        return run_forked(with_same_state, self.work)[0]

    def run(self, scenario: Scenario, number: int = 0, mode: str | None = None) -> tuple[Ended, str]:
        """Do `scenario` from its start with call `number` disturbed. Return how it ended, and the calls."""
        shutil.rmtree(self.out, ignore_errors=True)
        if scenario.start:
            shutil.copytree(scenario.start, self.out)
        self.shim.arm(self.out, number, mode)
        return self.fork(scenario.act), self.shim.disarm()

    def undisturbed(self, scenario: Scenario) -> Scenario:
        """Do it once and note its calls."""
        ended, scenario.calls = self.run(scenario)
        assert ended.status == 0, ended.messages
        return scenario

    def disturb(self, scenarios: list[Scenario], every: int) -> tuple[str, int]:
        """Disturb every `every`-th call of each scenario. Return the table and how many outcomes are wrong."""
        for scenario in scenarios:
            for number, mode in scenario.disturbances(every):
                ended, _ = self.run(scenario, number, mode)
                scenario.count(number, mode, ended, ended_badly(ended) or self.wrong(scenario, ended))
        return table(scenarios)


# ---- The saves of a training run ---------------------------------------------------------------------------------------


class Saves(Disturber):
    """A small run of four steps, and its saves disturbed in every way."""

    def __init__(self, work: Path):
        from mirror.training.checkpoints import rotate
        from tests.tiny_trainer import make_trainer

        super().__init__(work)
        options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        self.trainer = make_trainer(self.model, self.texts, self.out, **options)
        self.trainer.train()
        self.trainer.totals.checkpoint = "resumed"  # a final save that was killed is repeated by a resumed run
        shutil.rmtree(self.out / "checkpoint-4")
        save = partial(self.trainer._save_checkpoint, self.trainer.model, None)
        rotation = partial(rotate, self.out, 1, {str(self.out / "checkpoint-4")}, 4)
        self.scenarios = [self.undisturbed(Scenario("checkpoint", save, self.keep("one")))]
        self.whole = self.keep("whole")
        for name, act in (("rotation", rotation), ("final save", self.trainer.finish)):
            self.scenarios.append(self.undisturbed(Scenario(name, act, self.whole)))
        self.finished = self.keep("finished")

    def keep(self, name: str) -> Path:
        return Path(shutil.copytree(self.out, self.work / name))

    def wrong(self, scenario: Scenario, ended: Ended) -> str | None:
        from mirror.common.files import is_complete
        from mirror.training.checkpoints import last_complete_checkpoint

        last = last_complete_checkpoint(self.out)
        if last is None:
            return "no complete checkpoint"
        if different := self.different(Path(last), self.whole / Path(last).name):
            return f"{last} differs: {different}"
        if Path(last).name != "checkpoint-4" and (scenario.name != "checkpoint" or ended.status == 0):
            return f"the newest checkpoint is not there, {last} is"
        if scenario.name != "final save":
            return None
        if ended.status == 0 and not is_complete(self.out):
            return "done, but not complete"
        return self.wrong_afterwards()

    def wrong_afterwards(self) -> str | None:
        """Return what does not hold after the same command ran again, undisturbed."""
        from mirror.common.files import is_complete
        from mirror.training.record import LOCAL_BASE

        ended = self.fork(self.trainer.finish)
        if ended.status or not is_complete(self.out):
            return f"cannot be finished: {ended.status} {ended.messages[-500:]}"
        kept = ("_lock", LOCAL_BASE)
        left = {path.name for path in self.out.iterdir() if path.name.startswith("_") and path.name not in kept}
        different = self.different(self.out, self.finished, ("model.safetensors", "config.json", LOCAL_BASE))
        return different or (f"left: {left}" if left else None)

    def different(self, folder: Path, reference: Path, names: tuple[str, ...] = ()) -> str | None:
        """Return the first file that is not the one of `reference`."""
        files = (path for path in reference.rglob("*") if path.is_file() and path.name not in CHANGING)
        for name in names or (path.relative_to(reference).as_posix() for path in files):
            if not (folder / name).exists() or not filecmp.cmp(folder / name, reference / name, shallow=False):
                return name
        return None


def run_saves(work: Path, every: int = 1) -> tuple[str, int]:
    saves = Saves(work)
    return saves.disturb(saves.scenarios, every)


# ---- Commands that are repeated ----------------------------------------------------------------------------------------


class Commands(Disturber):
    """An encoding of two shards and an evaluation of two tasks, which are disturbed and repeated."""

    def __init__(self, work: Path):
        super().__init__(work)
        (work / "texts.txt").write_text("\n".join(self.texts[:50]))
        (work / "data/wordsim").mkdir(parents=True)
        for name, count, top in (("rg65", 65, 4.0), ("mturk287", 287, 5.0)):
            rows = [f"{self.texts[n % 240]}\t{self.texts[n % 239]}\t{top * (n % 65) / 65}" for n in range(count)]
            (work / f"data/wordsim/{name}.tsv").write_text("\n".join(["word1\tword2\tscore", *rows]) + "\n")
        import_everything()
        flags = {
            "run_encode": f"--shard_rows 30 --input_file {work}/texts.txt",
            "run_eval": f"--tasks rg65 mturk287 --data_dir {work}/data",
        }
        self.scenarios, self.expected = [], {}
        for module, own in flags.items():
            scenario = self.undisturbed(Scenario(f"{module}.py", partial(self.command, module, own)))
            self.scenarios.append(scenario)
            self.expected[scenario.name] = self.result()

    def command(self, module: str, flags: str) -> None:
        command = f"{module}.py --model_name_or_path {self.model} --pooling mean {flags} --output_dir {self.out}"
        sys.argv = command.split()
        import_module(module).main()

    def result(self) -> dict[str, object]:
        """Return the shards byte for byte, or the scores and the names of the files.

        A process that was killed while it wrote leaves a temporary file, which nothing reads, and each leaves its number.
        """
        files = [path for path in sorted(self.out.iterdir()) if not re.fullmatch(r"_.*\.tmp|_lock", path.name)]
        if not (self.out / "results.json").exists():
            return {path.name: path.read_bytes() for path in files}
        tasks = json.loads((self.out / "results.json").read_text())["tasks"]
        return {name: task["main_score"] for name, task in tasks.items()} | {"files": [path.name for path in files]}

    def wrong(self, scenario: Scenario, ended: Ended) -> str | None:
        again = self.fork(scenario.act)
        if again.status != 0:
            return f"cannot be run again: {again.status} {again.messages[-2000:]}"
        found, expected = self.result(), self.expected[scenario.name]
        return None if found == expected else f"another result: {found}, not {expected}"[:2000]


def run_commands(work: Path, every: int = 1) -> tuple[str, int]:
    commands = Commands(work)
    return commands.disturb(commands.scenarios, every)

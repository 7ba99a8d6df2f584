"""Ends training in every situation and resumes it: the weights are those of an undisturbed run, to the last bit.

{rows in memory, streamed} x {no workers, two} x {one, two processes} x {in the middle of an epoch, at its end,
at the last step} x {SIGKILL in the middle of the save, SIGTERM during the step, a disk that is full from the save on}.
"""

from __future__ import annotations

import filecmp
import itertools
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.faults.harness import Ended, Shim, import_everything, run_forked


ROWS = {"memory": (), "streaming": ("--streaming",)}
WORKERS = {"0": (), "2": ("--dataloader_num_workers", "2")}
PROCESSES = (1, 2)
STEPS, EPOCH, SAVE = 14, 6, 3  # steps of the run, of an epoch, between two checkpoints
PLACES = {"mid-epoch": 9, "boundary": 6, "final": STEPS}
FAULTS = ("kill", "SIGTERM", "full disk")
MIDDLE = 25  # a call in the middle of a save
Situation = tuple[str, str, int]


class Runs:
    """A small run of `run_mirror.py`.

    Args:
        steps: length of the run.
        save: steps between two checkpoints.
    """

    def __init__(self, work: Path, steps: int = STEPS, save: int = SAVE):
        self.work, self.out, self.shim, self.steps, self.save = work, work / "out", Shim(), steps, save
        run_forked(self.make_inputs, work)
        import_everything()

    def make_inputs(self, rank: int = 0) -> None:
        from tests.conftest import make_sentences, make_tokenizer, save_tiny_bert

        save_tiny_bert(self.work / "model", make_tokenizer())
        (self.work / "texts.txt").write_text("\n".join(make_sentences()[: EPOCH * 20]))

    def train(self, situation: Situation, *flags: str, disturb: Callable[[int], None] | None = None) -> list[Ended]:
        """Run the command of a situation to its end."""
        rows, workers, processes = situation
        command = ["--model_name_or_path", self.work / "model", "--train_file", self.work / "texts.txt"]
        command += ["--output_dir", self.out, "--per_device_train_batch_size", 20 // processes, "--bf16", "false"]
        command += ["--max_steps", self.steps, "--save_steps", self.save, "--save_strategy", "steps"]
        command += ["--save_total_limit", 2, "--pooling", "mean", "--max_seq_length", 24, "--learning_rate", 1e-3]
        command += ["--disable_tqdm", "true", "--gather_negatives", *ROWS[rows], *WORKERS[workers], *flags]

        def act(rank: int) -> None:
            import run_mirror

            sys.argv = ["run_mirror.py", *map(str, command)]
            if disturb:
                disturb(rank)
            run_mirror.main()

        return run_forked(act, self.work, processes)

    def clear(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)

    def undisturbed(self, situation: Situation) -> Path:
        """Return the folder of a run that nothing disturbed."""
        self.clear()
        ended = self.train(situation)
        assert {end.status for end in ended} == {0}, ended
        whole = self.work / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        return self.out.rename(whole)

    def disturbed(self, situation: Situation, place: str, fault: str, whole: Path) -> str | None:
        """Disturb a run and resume it. Return what is wrong."""
        step = PLACES[place]
        self.clear()
        ended = self.train(situation, disturb=lambda rank: self.prepare(fault, step, rank, situation[2]))
        self.shim.disarm()
        if not ended_as_it_should(fault, ended):
            return f"ended with {[(end.status, end.errors) for end in ended]}\n{ended[0].messages[-3000:]}"
        expected = step if fault == "SIGTERM" else (step - 1) // self.save * self.save
        return self.wrong_afterwards(situation, expected, whole)

    def wrong_afterwards(self, situation: Situation, step: int, whole: Path) -> str | None:
        """Return what is wrong: the newest complete checkpoint must be that of `step`, and the resumed run end like `whole`."""
        from mirror.training.checkpoints import last_complete_checkpoint

        last = last_complete_checkpoint(self.out)
        if last is None or Path(last).name != f"checkpoint-{step}":
            return f"the newest complete checkpoint is {last}, not {step}"
        ended = self.train(situation, "--resume_from_checkpoint", "true")
        if {end.status for end in ended} != {0}:
            return f"cannot be resumed: {[(end.status, end.errors) for end in ended]}\n{ended[0].messages[-3000:]}"
        for name in ("model.safetensors", f"checkpoint-{self.steps}/model.safetensors"):
            if not filecmp.cmp(self.out / name, whole / name, shallow=False):
                return f"{name} differs"
        return None

    def prepare(self, fault: str, step: int, rank: int, processes: int) -> None:
        """Make the fault happen in this process, at a step."""
        from mirror import MirrorTrainer

        if fault == "SIGTERM" and rank == processes - 1:
            before(MirrorTrainer, "training_step", step - 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        if fault == "kill" and rank == 0:
            before(MirrorTrainer, "_save_checkpoint", step, lambda: self.shim.arm(self.out, MIDDLE, "kill"))
        if fault == "full disk" and rank == 0:
            before(MirrorTrainer, "_save_checkpoint", step, lambda: self.shim.arm(self.out, MIDDLE, "full"))


def before(owner: type, method: str, step: int, act: Callable[[], None]) -> None:
    """Make a method of a trainer call `act` first, at one step."""
    original = getattr(owner, method)

    def disturbed(trainer, *args, **kwargs):
        if trainer.state.global_step == step:
            act()
        return original(trainer, *args, **kwargs)

    setattr(owner, method, disturbed)


def ended_as_it_should(fault: str, ended: list[Ended]) -> bool:
    """Return whether each process was killed, or ended with the signal's status or with one line."""
    statuses = sorted(end.status or 0 for end in ended)
    if fault == "SIGTERM":
        return set(statuses) == {128 + signal.SIGTERM}
    expected = [[-9], [-9, 1]] if fault == "kill" else [[2], [1, 2], [2, 2]]
    return statuses in expected and all(len(end.errors) == 1 for end in ended if end.status != -9)


def run_all(work: Path, every: int = 1) -> tuple[str, int]:
    """Make every `every`-th fault. Return the table and how many outcomes are wrong."""
    runs = Runs(work)
    outcomes: dict[Situation, Counter] = {}
    cells = itertools.count(1)
    for situation in itertools.product(ROWS, WORKERS, PROCESSES):
        counts = outcomes[situation] = Counter()
        whole = None
        for place, fault in itertools.product(PLACES, FAULTS):
            if next(cells) % every:
                continue
            whole = whole or runs.undisturbed(situation)
            wrong = runs.disturbed(situation, place, fault, whole)
            counts["wrong" if wrong else fault] += 1
            if wrong:
                sys.stdout.write(f"{', '.join(map(str, situation))}, {place}, {fault}: {wrong}\n")
    lines = [f"| rows | workers | processes | {' | '.join(FAULTS)} | wrong |", "| --- " * 2 + "| ---: " * 5 + "|"]
    for situation, counts in outcomes.items():
        cells = [*situation, *(counts[key] for key in (*FAULTS, "wrong"))]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines), sum(counts["wrong"] for counts in outcomes.values())

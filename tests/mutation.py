"""How many small changes of the core modules the quick tests notice (the mutation score).

    python -m tests.mutation                                         # all modules; hours
    python -m tests.mutation mirror/training/losses.py
    python -m tests.mutation --sample 50                             # at most 50 mutants of each module

Needs requirements-mutants.txt and Python 3.11; tests/mutants.py says what a mutant is. For each of them a process that is forked after
the tests are collected changes the functions of the module and runs the tests, those that run the changed line first, until one fails.
Killed mutants are listed in `out/mutants.jsonl` and not tried again while their module stays the same, so that after a new test only the
survivors run.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

import psutil


os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}

if TYPE_CHECKING:
    from tests.mutants import Mutant


RESULTS = Path("out/mutants.jsonl").absolute()
LEAST_SECONDS = 30  # until a mutant counts as one that never ends; otherwise ten times what the tests take
BUDGET = 5  # seconds of the processor for the tests of a mutant
LIBRARIES = (
    *("torch._dynamo", "transformers.models.auto.modeling_auto", "accelerate", "datasets", "evaluate", "hypothesis"),
    *(
        "pytest",
        "sentence_transformers",
        "sklearn.neighbors",
        "pytorch_metric_learning.losses",
        "datasketch",
        "coverage",
    ),
)
# The quick tests of each module, by file, or by name where others of the file train for long.
GRADIENT = "training/test_gradient_cache::test_the_gradient_is_that_of_the_whole_batch_with_dropout_on"
GENERATOR = "training/test_gradient_cache::test_the_generator_of_a_gpu_is_stored_and_set_too"
TESTS = {
    "mirror/training/losses.py": "training/test_losses test_devices",
    "mirror/cmlm/losses.py": "cmlm/test_losses test_devices",
    "mirror/modeling/pooling.py": "modeling/test_pooling cmlm/test_losses",
    "mirror/data/packing.py": "modeling/test_packing",
    "mirror/modeling/packing.py": "modeling/test_packing modeling/test_dropout",
    "mirror/data/collators.py": "data/test_collators",
    "mirror/data/augmentation.py": "data/test_augmentation data/test_span_mask",
    "mirror/data/two_view_dataset.py": "data/test_two_view_dataset data/test_augmentation",
    "mirror/training/gradient_cache.py": f"{GRADIENT} {GENERATOR}",
    "mirror/training/learnable_temperature.py": "training/test_learnable_temperature",
    "mirror/common/alignment_uniformity.py": "common/test_alignment_uniformity test_devices",
    "mirror/modeling/attention.py": "modeling/test_packing modeling/test_dropout test_devices",
    "mirror/modeling/cpu_attention.py": "modeling/test_packing test_devices",
    "mirror/modeling/dropout.py": "modeling/test_dropout test_devices",
    "mirror/modeling/checkpoint.py": "modeling/test_checkpoint",
    "mirror/modeling/dense_layers.py": "tools/test_component_removal",
    "mirror/common/atomic_files.py": "common/test_atomic_files",
    "mirror/training/manifest.py": "training/test_manifest",
    "mirror/training/resumable.py": "training/test_resumable",
    "mirror/training/run_identity.py": "training/test_run_identity",
    "mirror/training/checkpoint_selection.py": "training/test_checkpoint_selection",
    "mirror/training/levels.py": "training/test_arguments",
    "mirror/training/disk_space.py": "training/test_disk",
    "mirror/training/signals.py": "training/test_signals",
}


# ---- Tests -----------------------------------------------------------------------------------------------------------


class Suite:
    """A plugin of pytest that runs the collected tests once with each mutant, in a forked process each."""

    def __init__(self, module: str, work: Path, mutants: list[Mutant]):
        self.module, self.work, self.mutants = module, work, mutants
        self.file = work / module
        parts = (name.partition("::") for name in TESTS[module].split())
        self.arguments = [f"tests/{file}.py{mark}{test}" for file, mark, test in parts]
        self.arguments += ["-q", "-p", "no:cacheprovider", "--tb=no", f"--basetemp={work.parent / 'temporary'}"]
        self.seconds, self.failed, self.functions = {}, "", []

    def pytest_runtest_logreport(self, report):
        self.failed = report.nodeid if report.failed else self.failed

    def pytest_runtestloop(self, session) -> bool:
        self.items = session.items
        start = time.monotonic()
        status, (failed, self.seconds, lines) = self.fork(self.measure, 3600)
        if status or failed:
            raise RuntimeError(f"{failed or self.module} fails undisturbed")
        self.functions = functions_of(str(self.file))
        gc.freeze()  # or a collection in a forked process would copy its memory
        limit = max(LEAST_SECONDS, 10 * (time.monotonic() - start))
        for mutant in self.mutants:
            start = time.monotonic()
            status, failed = self.fork(partial(self.try_out, mutant, set(lines.get(str(mutant.line), ()))), limit)
            mutant.result = "timeout" if status is None else failed or ("survived" if status == 0 else "crash")
            mutant.seconds = round(time.monotonic() - start, 1)
            mutant.append_to(RESULTS)
        return True

    def measure(self) -> tuple[str, dict, dict]:
        """The test that fails, seconds of each test, and the tests that run each line of the module."""
        import coverage

        measured = coverage.Coverage(data_file=None, include=[str(self.file)])
        measured.start()
        for item in self.items:
            measured.switch_context(item.nodeid)
            start = processor_seconds()
            self.run([item])
            self.seconds[item.nodeid] = processor_seconds() - start
        measured.stop()
        return self.failed, self.seconds, measured.get_data().contexts_by_lineno(str(self.file))

    def try_out(self, mutant: Mutant, first: set[str]) -> str:
        """The test that fails: first those that run the line, then others, each beginning with the quickest."""
        self.file.write_text(mutant.code, encoding="utf-8")  # for tests that start a process
        self.items.sort(key=lambda item: (item.nodeid not in first, self.seconds[item.nodeid]))
        spent = accumulate((self.seconds[item.nodeid] for item in self.items), initial=0.0)
        self.items = [item for item, before in zip(self.items, spent, strict=False) if before < BUDGET]
        if mutant.in_function and change_functions(self.functions, str(self.file), mutant.code):
            self.run(self.items)
            return self.failed
        import pytest

        forget("mirror", "tests")
        order = InOrder([item.nodeid for item in self.items])
        status = pytest.main([*self.arguments, "-x"], plugins=[order])
        return order.failed or ("import" if status else "")

    def run(self, items: list) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            if not self.failed:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def fork(self, run: Callable[[], object], limit: float) -> tuple[int | None, object]:
        """Exit status, None after `limit` seconds, and the answer of `run` in a new process."""
        answer = self.work.parent / "answer.json"
        answer.write_text('""')
        child = os.fork()
        if child == 0:
            answer_and_exit(run, answer)
        deadline, status = time.monotonic() + limit, None
        while status is None and time.monotonic() < deadline:
            time.sleep(0.02)
            done, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
        if status is None:
            for process in (*psutil.Process(child).children(recursive=True), psutil.Process(child)):
                process.kill()
            os.waitpid(child, 0)
        return status, json.loads(answer.read_text())


class InOrder:
    """A plugin of pytest: the tests of a list, in its order."""

    def __init__(self, names: list[str]):
        self.place, self.failed = {name: place for place, name in enumerate(names)}, ""

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            filter(lambda item: item.nodeid in self.place, items), key=lambda item: self.place[item.nodeid]
        )

    def pytest_runtest_logreport(self, report):
        self.failed = report.nodeid if report.failed else self.failed


def answer_and_exit(run: Callable[[], object], answer: Path) -> None:
    status = 1
    try:
        answer.write_text(json.dumps(run()))
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def processor_seconds() -> float:
    """Of this process and those that it waited for."""
    return sum(os.times()[:4])


def functions_of(file: str) -> list[FunctionType]:
    """Every function that was made by importing the module, methods and what is behind decorators included."""
    made = (each for each in gc.get_objects() if isinstance(each, FunctionType))
    return [function for function in made if function.__code__.co_filename == file]


def change_functions(functions: list[FunctionType], file: str, code: str) -> bool:
    """Give each function the code that it has in `code`; whether that is possible."""
    new = {each.co_qualname: each for each in codes_of(compile(code, file, "exec"))}
    for function in functions:
        try:
            function.__code__ = new[function.__code__.co_qualname]
        except (KeyError, ValueError):  # it has another closure
            return False
    return True


def forget(*packages: str) -> None:
    """Let Python import them again."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def try_all(module: str, work: Path, mutants: list[Mutant]) -> None:
    """In a process that is forked, since it imports the module."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        log = os.open(work.parent / "log.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        RESULTS.parent.mkdir(exist_ok=True)
        os.chdir(work)
        sys.path[0] = str(work)
        forget("tests")  # the copy has its own
        import pytest

        suite = Suite(module, work, mutants)
        answer_and_exit(lambda: int(pytest.main(suite.arguments, plugins=[suite])), work.parent / "status.json")
    os.waitpid(child, 0)


def copy_repository(work: Path) -> None:
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], text=True).splitlines()
    for name in filter(os.path.exists, names):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(name, work / name)


def import_libraries() -> None:
    """What every test would import again: everything but this project."""
    for name in LIBRARIES:
        importlib.import_module(name)


# ---- All of it -------------------------------------------------------------------------------------------------------


def results() -> dict[str, str]:
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {entry["key"]: entry["result"] for entry in map(json.loads, lines)}


def measure(module: str, sample: int | None, work: Path) -> list[Mutant]:
    """The mutants with their results."""
    from tests.mutants import mutants_of  # needs libcst

    mutants = mutants_of(module)
    if sample and sample < len(mutants):
        mutants = sorted(random.Random(0).sample(mutants, sample), key=lambda mutant: mutant.line)
    known = results()
    try_all(module, work, [mutant for mutant in mutants if known.get(mutant.key, "survived") == "survived"])
    shutil.copyfile(module, work / module)
    known = results()
    for mutant in mutants:
        if mutant.key not in known:
            raise SystemExit((work.parent / "log.txt").read_text()[-3000:])
        mutant.result = known[mutant.key]
        if mutant.result == "survived":
            say(f"{module}:{mutant.line}\n  - {mutant.old}\n  + {mutant.new}")
    return mutants


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def row(name: str, mutants: list[Mutant]) -> str:
    survivors = sum(mutant.result == "survived" for mutant in mutants)
    killed = len(mutants) - survivors
    return f"| {name} | {len(mutants)} | {killed} | {survivors} | {100 * killed / max(1, len(mutants)):.1f} |"


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=list(TESTS), help="default: all")
    parser.add_argument("--sample", type=int, help="at most this many mutants of each module, drawn with a fixed seed")
    arguments = parser.parse_args()
    import_libraries()
    lines, total = [], []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "repository")
        copy_repository(work)
        for module in arguments.modules:
            mutants = measure(module, arguments.sample, work)
            lines.append(row(f"`{module}`", mutants))
            say(lines[-1])
            total += mutants
    say("\n| module | mutants | killed | survivors | score, % |\n| --- | ---: | ---: | ---: | ---: |")
    say("\n".join([*lines, row("all", total)]))


if __name__ == "__main__":
    main()

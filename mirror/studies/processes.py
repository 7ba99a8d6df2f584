"""Processes of a study: one for each cell and one for each script of a cell, forked from a parent that has imported everything.

The parent computes nothing and never uses a GPU: threads and CUDA do not survive a fork. So each script starts in a process
that nothing has changed, as from the command line, but without seconds of imports. Where forking is not safe (macOS,
Windows), the processes are new ones that import again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from mirror.common.errors import run_main


ROOT = Path(__file__).resolve().parents[2]
CONTEXT = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")

SIGNALS = (signal.SIGTERM, signal.SIGINT)  # end a study

Environment = dict[str, str]


def prepare_environment(num_processes: int) -> None:
    """Give each process its share of the cores. Call this before torch is imported, which reads it then."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _usable_cores() // num_processes)))
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a GPU would start CUDA in the parent


def environments(num_processes: int) -> list[Environment]:
    """Return what each process has of its own: one GPU, if there are any."""
    import torch

    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = asked.split(",") if asked else [str(number) for number in range(torch.cuda.device_count())]
    return [{"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {} for number in range(num_processes)]


def run_in_processes(
    calls: Sequence[Callable[[], None]],
    logs: Sequence[Path],
    num_processes: int,
    ended: Callable[[int, int], None],
) -> None:
    """Make each call in a process of its own, `num_processes` at a time.

    SIGTERM and Ctrl-C end the processes, with the scripts that they run.

    Args:
        calls: an `InputError` becomes a line in the log.
        logs: file for the output of each call.
        ended: called with the index of a call that has ended and its exit status, 0 where it succeeded.

    Raises:
        OSError: the folder of a log cannot be made; the other processes are ended.
        SystemExit: after SIGTERM or Ctrl-C, with the status 128 + the signal's number.
    """
    free, waiting = environments(num_processes), list(enumerate(zip(calls, logs, strict=True)))
    running = {}
    with _signals_exit(), _end_children():
        while waiting or running:
            while waiting and free:
                index, (call, log) = waiting.pop(0)
                environment = free.pop(0)
                log.parent.mkdir(parents=True, exist_ok=True)
                process = CONTEXT.Process(target=_make_call, args=(call, log, environment))
                with _signals_wait():
                    process.start()
                    running[process.sentinel] = index, process, environment
            for sentinel in wait(running):
                index, process, environment = running.pop(sentinel)
                process.join()
                free.append(environment)
                ended(index, process.exitcode)


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a script of this repository in a process of its own, with the output of this one; return its exit status."""
    process = CONTEXT.Process(target=_become, args=(script, arguments))
    with _end_children():
        with _signals_wait():
            process.start()
        process.join()
    return process.exitcode


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # Slurm or taskset may give a process fewer than the machine has
    return os.cpu_count() or 1


def _make_call(call: Callable[[], None], log: Path, environment: Environment) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    signal.signal(signal.SIGTERM, _exit)
    _mask(block=False)  # see _signals_wait
    os.environ.update(environment)
    run_main(partial(_call_with_log, call, log))


def _call_with_log(call: Callable[[], None], log: Path) -> None:
    try:
        sys.stdout = sys.stderr = log.open("w", encoding="utf-8", buffering=1)
    except OSError:
        sys.exit(2)  # the parent reports that the log is empty
    for descriptor in (1, 2):  # of libraries that are not written in Python
        os.dup2(sys.stdout.fileno(), descriptor)
    call()


def _become(script: str, arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _mask(block=False)  # see _signals_wait
    logging.getLogger().handlers.clear()  # of the parent; the script makes its own
    sys.argv = [str(ROOT / script), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


@contextmanager
def _signals_exit() -> Iterator[None]:
    before = {number: signal.signal(number, _exit) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Context in which SIGTERM and Ctrl-C wait until a process has started: Python drops what their handlers raise in a fork.

    The mask is for the new process, which inherits it; in this one, other threads receive the signals all the same.
    """
    arrived: list[int] = []
    before = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in SIGNALS}
    _mask(block=True)
    try:
        yield
    finally:
        _mask(block=False)
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])


def _mask(block: bool) -> None:
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK if block else signal.SIG_UNBLOCK, SIGNALS)


def _exit(number: int, frame) -> None:
    sys.exit(128 + number)


@contextmanager
def _end_children() -> Iterator[None]:
    """Context at whose end every process that it has started has ended, because of an error or by itself."""
    try:
        yield
    finally:
        for child in multiprocessing.active_children():
            child.terminate()
        for child in multiprocessing.active_children():
            child.join()

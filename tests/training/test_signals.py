"""A signal saves the step in work and ends the run; resumed, it is the uninterrupted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from mirror.common.errors import run_main
from mirror.training.checkpoints import SIGNALS, StopOnSignal, last_complete_checkpoint, outlast_signals
from tests.tiny_trainer import At, make_trainer, weights


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """None is ignored, as SIGHUP is under nohup."""
    normal = dict.fromkeys(SIGNALS, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in normal.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def whole(bert_folder, sentences, tmp_path_factory) -> dict[str, torch.Tensor]:
    """Weights of an uninterrupted run."""
    trainer = make_trainer(bert_folder, sentences, tmp_path_factory.mktemp("whole"), max_steps=6, learning_rate=1e-3)
    before = weights(trainer)
    trainer.train()
    assert max((value - before[name]).abs().max() for name, value in weights(trainer).items()) > 1e-3
    return weights(trainer)


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in SIGNALS[1:]]  # the same code again


@pytest.mark.parametrize("number", [SIGNALS[0], *SLOW], ids=lambda number: number.name)
def test_the_step_in_work_is_saved_and_the_resumed_run_is_the_uninterrupted_one(
    bert_folder, sentences, tmp_path, caplog, capfd, whole, number
):
    options = {"max_steps": 6, "learning_rate": 1e-3}
    handlers = [signal.getsignal(each) for each in SIGNALS]
    stopped = make_trainer(bert_folder, sentences, tmp_path / "out", **options)
    stopped.add_callback(At(3, lambda: [os.kill(os.getpid(), number) for _ in range(2)]))
    with pytest.raises(SystemExit) as end:
        stopped.train()
    assert end.value.code == 128 + number
    assert f"stopped by {number.name} after step" in caplog.text and "--resume_from_checkpoint true" in caplog.text
    assert capfd.readouterr().err.count(f"{number.name}: finishing this step and saving") == 1
    assert [signal.getsignal(each) for each in SIGNALS] == handlers

    checkpoint = last_complete_checkpoint(tmp_path / "out")
    assert Path(checkpoint).name in ("checkpoint-3", "checkpoint-4")  # seen at this step's end or at the next one's
    resumed = make_trainer(bert_folder, sentences, tmp_path / "out", **options)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert resumed.state.global_step == 6
    for name, value in whole.items():
        assert torch.equal(weights(resumed)[name], value), name


def test_signals_are_given_back_after_an_error(bert_folder, sentences, tmp_path):
    handlers = [signal.getsignal(each) for each in SIGNALS]
    trainer = make_trainer(bert_folder, sentences, tmp_path, max_steps=3)
    trainer.add_callback(At(2, lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert [signal.getsignal(each) for each in SIGNALS] == handlers


def test_a_signal_that_is_ignored_stays_ignored(bert_folder, sentences, tmp_path):
    """As under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    trainer = make_trainer(bert_folder, sentences, tmp_path, max_steps=4)
    trainer.add_callback(At(2, lambda: os.kill(os.getpid(), signal.SIGHUP)))
    trainer.train()
    assert trainer.state.global_step == 4


def test_ctrl_c_during_start_up_is_one_line(capsys):
    def main():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    with pytest.raises(SystemExit) as stopped:
        run_main(main)
    assert stopped.value.code == 130 and capsys.readouterr().err == "error: stopped by Ctrl-C\n"


def test_which_signals_save():
    assert [number.name for number in SIGNALS] == ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"]


def test_a_save_that_was_asked_for_stays(monkeypatch):
    stop, control = StopOnSignal(), SimpleNamespace(should_save=True)
    stop.on_step_end(None, None, control)
    assert control.should_save


def test_a_worker_outlasts_signals():
    started = []
    outlast_signals(started.append, 3)
    for number in SIGNALS:
        os.kill(os.getpid(), number)
    assert started == [3] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_to_all_processes_of_a_job_saves_too(bert_folder, sentences, tmp_path, number):
    """As Slurm, a terminal and `timeout` send it: workers of the data loader get it as well."""
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    command = [sys.executable, "-m", "tests.interrupted_run", bert_folder, str(tmp_path / "texts.txt")]
    run = subprocess.Popen([*command, str(tmp_path / "out"), "100000", "5", "2"], cwd=ROOT, start_new_session=True)
    while last_complete_checkpoint(tmp_path / "out") is None:
        assert run.poll() is None
        time.sleep(0.05)
    workers = psutil.Process(run.pid).children()
    assert len(workers) == 2
    saved = last_complete_checkpoint(tmp_path / "out")
    os.killpg(run.pid, number)
    assert run.wait(600) == 128 + number
    assert last_complete_checkpoint(tmp_path / "out") != saved
    assert not psutil.wait_procs(workers, timeout=10)[1]

"""What is refused before anything is computed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from mirror.common.folder_lock import lock_output_dir
from mirror.training.config import MirrorConfig
from mirror.training.preflight import (
    check_no_other_run,
    check_reporters,
    find_checkpoint,
    make_writable,
)


ROOT = Path(__file__).resolve().parents[2]


def test_a_folder_where_nothing_can_be_written_is_found_before_training(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    with pytest.raises(InputError, match="nothing can be written there .No space left on device"):
        make_writable(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nonsense", "nonsense is not supported, only .*tensorboard"), ("flyte", "requires flytekit to be installed")],
)
def test_a_logger_that_is_unknown_or_not_installed_is_refused(name, reason):
    check_reporters([])
    with pytest.raises(InputError, match=f"^--report_to {name}: .*{reason}") as refused:
        check_reporters([name])
    assert "\n" not in str(refused.value)


HOLDER = """
import os, sys, time
from mirror.common.folder_lock import lock_output_dir
lock_output_dir(sys.argv[1])
started, tell = os.pipe()
if os.fork() == 0:  # a worker of the data loader, which may outlive the run a little
    os.write(tell, b".")
    time.sleep(60)
os.read(started, 1)  # the worker has given up its copy of the lock, which it does before anything else
print("locked", flush=True)
time.sleep(60)
"""


def test_one_run_at_a_time_and_a_killed_one_does_not_count(tmp_path):
    out = str(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, out], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(InputError) as refused:
                lock_output_dir(out)
            assert str(refused.value) == (
                f"--output_dir {out} is in use by process {holder.pid} on {os.uname().nodename}; wait for its end, or "
                "choose another folder"
            )
            holder.kill()
            holder.wait()
            lock_output_dir(out)
            lock_output_dir(out)  # of this process itself
        finally:
            os.killpg(holder.pid, signal.SIGKILL)
    assert (tmp_path / "_lock").read_text() == f"process {os.getpid()} on {os.uname().nodename}"


def test_auto_starts_where_there_is_nothing_to_resume(tmp_path):
    args = MirrorConfig(output_dir=str(tmp_path / "out"), resume_from_checkpoint="auto")
    assert find_checkpoint(args) is None
    check_no_other_run(args.output_dir, started_again=True)
    (tmp_path / "out" / "checkpoint-3").mkdir(parents=True)  # of a run that was killed in its first save
    assert find_checkpoint(args) is None
    check_no_other_run(args.output_dir, started_again=True)
    (tmp_path / "out" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds another run"):  # without a checkpoint auto would overwrite it
        check_no_other_run(args.output_dir, started_again=True)
    with pytest.raises(InputError, match="no checkpoint in"):
        find_checkpoint(MirrorConfig(output_dir=str(tmp_path / "out"), resume_from_checkpoint="true"))

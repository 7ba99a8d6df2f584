"""What is checked before a run: the folder, its lock, the loggers, and that every byte of a checkpoint is the one that was saved."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from mirror.common.files import MANIFEST, is_complete, lock_output_dir, write_manifest
from mirror.training.checkpoints import find_checkpoint, last_complete_checkpoint
from mirror.training.config import MirrorConfig
from mirror.training.run_setup import check_no_other_run, make_writable, preflight
from tests.tiny_trainer import make_trainer


@pytest.fixture(scope="module")
def run(bert_folder, sentences, tmp_path_factory) -> Path:
    """A run with complete checkpoints after 2 and 4 steps."""
    folder = tmp_path_factory.mktemp("run") / "out"
    make_trainer(bert_folder, sentences, folder, save_strategy="steps", save_steps=2, max_steps=4).train()
    return folder


def lose_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def lose_a_file(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()


def cut_a_file(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def break_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"model.safe')


def zero_some_bytes(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(2000)
        file.write(bytes(1000))


@pytest.mark.parametrize("damage", [zero_some_bytes, lose_the_manifest, lose_a_file, cut_a_file, break_the_manifest])
def test_a_checkpoint_that_is_incomplete_is_skipped(run, tmp_path, damage, caplog):
    shutil.copytree(run, tmp_path / "out")
    damage(tmp_path / "out" / "checkpoint-4")
    assert find_checkpoint(True, tmp_path / "out") == str(tmp_path / "out" / "checkpoint-2")
    assert "checkpoint-4 is incomplete" in caplog.text
    with pytest.raises(InputError, match="checkpoint-4 is incomplete"):
        find_checkpoint(str(tmp_path / "out" / "checkpoint-4"), tmp_path / "out")


def flip_a_bit(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_one_bit_of_any_file_is_enough(run, tmp_path):
    folder = tmp_path / "checkpoint-4"
    shutil.copytree(run / "checkpoint-4", folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) > 12 and folder / MANIFEST in files
    for path in files:
        size = path.stat().st_size
        for place in {0, size // 3, size // 2, size - 1}:
            for bit in (0, 5):
                flip_a_bit(path, place, bit)
                assert not is_complete(folder), (path, place, bit)
                flip_a_bit(path, place, bit)
    assert is_complete(folder)


def test_a_manifest_that_is_something_else_is_none(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x")
    for content in ("[]", "{}", "3", '["model.safetensors"]', '{"model.safetensors": 1}', '{"model.safetensors": {}}'):
        (tmp_path / MANIFEST).write_text(content)
        assert not is_complete(tmp_path)


def test_everything_is_on_the_disk_before_the_manifest_is_and_that_before_anything_is_deleted(
    tmp_path, monkeypatch, bert_folder, sentences
):
    """By the calls: each file and folder is flushed, and then the older checkpoint goes."""
    calls = []
    flush, remove, replace = os.fsync, shutil.rmtree, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda number: (calls.append(os.readlink(f"/proc/self/fd/{number}")), flush(number))
    )
    monkeypatch.setattr(
        shutil, "rmtree", lambda path, *a, **k: (calls.append(f"rmtree {path}"), remove(path, *a, **k))
    )
    monkeypatch.setattr(Path, "replace", lambda a, b: (calls.append(f"replace {Path(b).name}"), replace(a, b))[1])
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "save_total_limit": 1}
    make_trainer(bert_folder, sentences, tmp_path, **options).train()
    last, older = tmp_path / "checkpoint-4", tmp_path / "checkpoint-2"
    deleted = calls.index(f"rmtree {older}")
    sealed = max(number for number, call in enumerate(calls) if call == f"replace {MANIFEST}")
    for path in last.rglob("*"):
        if path.name != MANIFEST:
            assert calls.index(str(path)) < (deleted if path.is_dir() else sealed), path
    for folder in (last, tmp_path):
        assert sealed < max(number for number, call in enumerate(calls) if call == str(folder)) < deleted


def test_the_manifest_has_the_size_and_the_checksum_of_every_file(tmp_path):
    large = bytes(range(256)) * 4097  # more than one block
    (tmp_path / "1_Pooling").mkdir()
    for name, content in (
        ("model.safetensors", large),
        ("1_Pooling/config.json", b"{}"),
        ("half.tmp", b"x"),
        ("README.md", b"x"),
    ):
        (tmp_path / name).write_bytes(content)
    write_manifest(tmp_path, only=("model.safetensors", "1_Pooling/config.json", "absent.txt"))
    (tmp_path / "README.md").write_text("it may change")
    assert json.loads((tmp_path / MANIFEST).read_text()) == {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in (("1_Pooling/config.json", b"{}"), ("model.safetensors", large))
    }
    assert is_complete(str(tmp_path))


def test_the_newest_checkpoint_is_the_one_of_the_highest_step(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-11", "checkpoint-12-old", "checkpoint-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x")
        write_manifest(tmp_path / name)
    (tmp_path / "checkpoint-13").write_text("a file")
    (tmp_path / "checkpoint-11" / MANIFEST).unlink()
    assert last_complete_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-10")


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
def test_a_logger_that_is_unknown_or_not_installed_is_refused(name, reason, bert_folder, tmp_path):
    with pytest.raises(InputError, match=f"^--report_to {name}: .*{reason}") as refused:
        preflight(MirrorConfig(output_dir=str(tmp_path), report_to=[name]), bert_folder)
    assert "\n" not in str(refused.value)


HOLDER = """
import os, sys, time
from mirror.common.files import lock_output_dir
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
    out = tmp_path / "out"
    assert find_checkpoint("auto", out) is None
    check_no_other_run(out, started_again=True)
    (tmp_path / "out" / "checkpoint-3").mkdir(parents=True)  # of a run that was killed in its first save
    assert find_checkpoint("auto", out) is None
    check_no_other_run(out, started_again=True)
    (tmp_path / "out" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds another run"):  # without a checkpoint auto would overwrite it
        check_no_other_run(out, started_again=True)


def test_a_checkpoint_of_another_folder_does_not_overwrite_a_run(run, bert_folder, tmp_path):
    own, other = tmp_path / "own", str(last_complete_checkpoint(run))
    own.mkdir()
    flags = {"bf16": False, "report_to": "none", "resume_from_checkpoint": other}
    assert preflight(MirrorConfig(output_dir=str(own), **flags), bert_folder) == other
    (own / "config.json").write_text("{}")  # of a finished run
    with pytest.raises(InputError, match="own holds another run; continue it with"):
        preflight(MirrorConfig(output_dir=str(own), **flags), bert_folder)
    assert preflight(MirrorConfig(output_dir=str(own), force=True, **flags), bert_folder) == other
    inside = MirrorConfig(output_dir=str(run), **flags)
    assert preflight(inside, bert_folder) == other  # of this folder

"""A disk that is full, and one that has room again. Only root can make a disk of a few kilobytes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset
import pytest
from safetensors import SafetensorError
from torch import nn

import run_encode
import run_mirror
from mirror.common.errors import InputError, run_main
from mirror.common.files import is_complete
from mirror.modeling.encoder import Encoder
from mirror.tools.encode import ShardFolder
from mirror.training.checkpoints import is_full_disk, last_complete_checkpoint, raise_save_error, warn_of_little_space
from tests.tiny_trainer import At, make_trainer


ROOT = Path(__file__).resolve().parents[2]


class SmallDisk:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()

    def mount(self, kilobytes: int, *options: str) -> bool:
        options = ",".join([f"size={kilobytes}k", *options])
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], capture_output=True)
        return done.returncode == 0


@pytest.fixture
def disk(tmp_path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    if not disk.mount(200):
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", "-l", disk.folder], check=True)


def one_line(main, monkeypatch, capsys, *argv) -> str:
    monkeypatch.setattr(sys, "argv", ["script", *map(str, argv)])
    with pytest.raises(SystemExit) as stopped:
        run_main(main)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert stopped.value.code == 2
    return line


def test_encoding_to_a_full_disk_is_one_line_and_goes_on_when_there_is_room(
    disk, bert_folder, sentences, tmp_path, monkeypatch, capsys
):
    rows = [f"{sentence} {number}" for number in range(10) for sentence in sentences]  # 128 bytes a vector
    (tmp_path / "texts.txt").write_text("\n".join(rows))
    out = disk.folder / "out"
    command = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--input_file", tmp_path / "texts.txt"]
    command += ["--output_dir", out, "--shard_rows", 400]
    line = one_line(run_encode.main, monkeypatch, capsys, *command)
    assert "No space left on device" in line and "free some space, then run the same command again" in line
    whole = sorted(out.glob("shard-*"))
    assert 0 < len(whole) < 6

    assert disk.mount(2000, "remount")
    monkeypatch.setattr(sys, "argv", ["run_encode.py", *map(str, command)])
    run_encode.main()
    table = pyarrow.dataset.dataset(out, format="parquet").to_table()
    assert table["row"].to_pylist() == list(range(len(rows)))


def test_a_full_disk_while_encoding_without_a_disk(bert_folder, sentences, tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    monkeypatch.setattr(ShardFolder, "write", full)
    command = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--input_file", tmp_path / "texts.txt"]
    line = one_line(run_encode.main, monkeypatch, capsys, *command, "--output_dir", tmp_path / "out")
    assert "free some space, then run the same command again" in line


@pytest.mark.slow
def test_a_log_on_a_full_disk_ends_the_run_and_keeps_its_checkpoint(disk, bert_folder, sentences, tmp_path):
    pytest.importorskip("tensorboard", reason="requirements-logging.txt")
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    (disk.folder / "of somebody else").write_bytes(bytes(150_000))
    command = ["run_mirror.py", "--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt"]
    command += ["--output_dir", tmp_path / "out", "--max_seq_length", "24", "--per_device_train_batch_size", "20"]
    command += ["--max_steps", "1000", "--logging_steps", "1", "--save_strategy", "steps", "--save_steps", "3"]
    command += ["--save_total_limit", "2", "--report_to", "tensorboard"]
    where = {"TENSORBOARD_LOGGING_DIR": str(disk.folder / "log"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, env=os.environ | where, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr[-3000:]
    # Not at the start of a line always: TensorBoard's own thread writes at the same time.
    (line,) = re.findall("error: .*", done.stderr)
    assert "No space left on device" in line and "free some space, then run the same command again" in line
    assert last_complete_checkpoint(tmp_path / "out")


@pytest.mark.slow
def test_a_full_disk_at_the_end_of_a_training_is_one_line_and_costs_no_step(
    disk, bert_folder, sentences, tmp_path, monkeypatch, capsys
):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    command = ["--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt", "--pooling", "mean"]
    command += ["--per_device_train_batch_size", 40, "--max_steps", 4, "--save_strategy", "steps", "--save_steps", 2]
    command += ["--save_total_limit", 1, "--output_dir", disk.folder / "out"]
    disk.mount(4000, "remount")
    monkeypatch.setattr("mirror.training.finish.verify_encoder", fail_on_purpose)
    line = one_line(run_mirror.main, monkeypatch, capsys, *command)
    assert line == "error: no reader today; the encoder, its record and its card are saved, but not pushed"
    assert is_complete(disk.folder / "out")
    needed = sum(path.stat().st_size for path in (disk.folder / "out" / "checkpoint-4").rglob("*") if path.is_file())
    shutil.rmtree(disk.folder / "out")
    monkeypatch.undo()

    disk.mount(needed * 5 // 4 // 1024, "remount")  # a checkpoint fits, a checkpoint and an encoder do not
    line = one_line(run_mirror.main, monkeypatch, capsys, *command, "--save_steps", 4)
    place = re.escape(str(disk.folder))
    assert re.search(
        rf"cannot save {place}/out: the disk of {place}/out \(mounted at {place}\) is full, \d MB are left; "
        rf"the last complete checkpoint is {place}/out/checkpoint-4$",
        line,
    )
    assert {path.name for path in (disk.folder / "out").iterdir()} == {"_lock", "checkpoint-4"}  # nothing half-written
    disk.mount(4000, "remount")
    monkeypatch.setattr(
        sys, "argv", ["s", *map(str, command), "--save_steps", "4", "--resume_from_checkpoint", "true"]
    )
    run_mirror.main()
    assert Encoder.from_pretrained(str(disk.folder / "out")).encode(["a cat"]).shape == (1, 32)


@pytest.mark.slow
def test_too_little_space_is_said_before_the_training(disk, bert_folder, sentences, caplog):
    trainer = make_trainer(bert_folder, sentences, disk.folder / "out", max_steps=2)
    with pytest.raises(InputError):
        disk.mount(100, "remount")
        (disk.folder / "other").write_bytes(bytes(90_000))
        trainer.add_callback(At(1, lambda: raise_save_error(OSError(errno.ENOSPC, "No space"), "x", disk.folder)))
        trainer.train()
    said = f"the disk of {disk.folder}/out (mounted at {disk.folder}) has 0 MB left, but a checkpoint and the encoder at the end"
    assert said in caplog.text


def test_only_a_full_disk_is_called_full(tmp_path):
    for error, words in (
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "is full"),
        (RuntimeError("unexpected pos 12672 vs 12564"), "unexpected pos"),
    ):
        with pytest.raises(InputError, match=f"^cannot save x: .*{words}.*; there is no earlier complete checkpoint$"):
            raise_save_error(error, "x", tmp_path)


def test_what_does_not_come_from_writing_is_raised_as_it_is(tmp_path, monkeypatch):
    for error in (KeyError("x"), Exception("something else")):
        with pytest.raises(type(error)) as raised:
            raise_save_error(error, "x", tmp_path)
        assert raised.value is error
    for error in (SafetensorError("header"), Exception("No space left on device (os error 28)")):
        with pytest.raises(InputError, match="^cannot save x: "):
            raise_save_error(error, "x", tmp_path)
    monkeypatch.setattr(
        "mirror.training.checkpoints.describe_peer_failure",
        lambda error: "has ended" if str(error) == "gloo" else None,
    )
    with pytest.raises(RuntimeError, match="gloo"):
        raise_save_error(RuntimeError("gloo"), "x", tmp_path)
    for error in (OSError("gloo"), RuntimeError("unexpected pos")):
        with pytest.raises(InputError):
            raise_save_error(error, "x", tmp_path)


def free_space(monkeypatch, count: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9 - count, count))


def test_the_space_of_a_checkpoint_and_an_encoder_by_hand(tmp_path, monkeypatch, caplog):
    layer = nn.Linear(250, 1000).half()
    layer.bias.requires_grad_(False)
    weights, trained = 2 * (250_000 + 1000), 2 * 250_000
    needed = weights + 2 * trained + weights
    assert needed == 2_004_000
    free_space(monkeypatch, needed)
    warn_of_little_space(tmp_path, layer)
    assert not caplog.text
    free_space(monkeypatch, needed - 1)
    warn_of_little_space(tmp_path, layer)
    mounted = next(place for place in (tmp_path, *tmp_path.parents) if place.is_mount())
    (said,) = caplog.messages
    assert said.startswith(f"the disk of {tmp_path} (mounted at {mounted}) has 2 MB left, but ")
    assert "need about 2 MB: free some space" in said


def test_an_error_without_a_number_is_a_full_disk_if_nothing_is_left(tmp_path, monkeypatch):
    for free, is_full in ((49_999_999, True), (50_000_000, False)):
        free_space(monkeypatch, free)
        assert [is_full_disk(error, tmp_path) for error in (RuntimeError("x"), OSError("x"))] == [is_full] * 2
        assert is_full_disk(OSError(errno.ENOSPC, "x"), tmp_path)
        assert not is_full_disk(OSError(errno.EACCES, "x"), tmp_path)


def fail_on_purpose(*args) -> None:
    raise RuntimeError("no reader today")

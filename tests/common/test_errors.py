"""The end of a script: one line, its exit status, and the traceback only on request."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mirror.common.errors import InputError, library_errors, run_main
from tests.documents import ROOT


def ends_with(main, capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        run_main(main)
    return end.value.code, capsys.readouterr().err


def fail_in_a_library():
    with library_errors("out/model"):
        {}["weight"]


def test_an_error_of_a_library_is_one_line_and_its_traceback_on_request(capsys, monkeypatch):
    line = "error: out/model: KeyError: 'weight'\n"
    assert ends_with(fail_in_a_library, capsys) == (2, line)
    monkeypatch.setenv("MIRROR_TRACEBACK", "1")
    status, shown = ends_with(fail_in_a_library, capsys)
    assert status == 2 and shown.endswith(line) and '{}["weight"]' in shown


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_is_not_blamed_on_a_file(number):
    with pytest.raises(OSError, match="the disk"), library_errors("a.txt"):
        raise OSError(number, "the disk")


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ENOSPC, "free some space"), (errno.EIO, "check the disk")], ids=["full", "broken"]
)
def test_a_disk_that_is_full_or_fails_is_one_line(number, fix, capsys):
    def main():
        raise OSError(number, "the disk", "a.txt")

    line = f"error: [Errno {number}] the disk: 'a.txt'; {fix}, then run the same command again\n"
    assert ends_with(main, capsys) == (2, line)


def test_a_message_with_line_breaks_is_one_line(capsys):
    def main():
        raise InputError("a\nb.txt: no such file")

    assert ends_with(main, capsys) == (2, "error: a b.txt: no such file\n")


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise InputError("a.txt, line 3: no pair")


def test_an_error_in_a_worker_is_the_same_line(capsys):
    assert ends_with(lambda: next(iter(DataLoader(Broken(), num_workers=1))), capsys) == (
        2,
        "error: a.txt, line 3: no pair\n",
    )


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
def test_a_closed_pipe_ends_a_script_without_a_word(end):
    code = f"import sys; from mirror.common.errors import run_main\ndef main():\n    print('x\\n' * 10**5)\n    {end}\nrun_main(main)"
    read, write = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.close(read)
    assert process.communicate()[1] == b"" and process.returncode == 141


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 20 bytes"),
        MemoryError("MemoryError"),
    ],
)
def test_too_little_memory_is_one_line_with_the_flags_that_need_less(error, capsys, monkeypatch):
    def main():
        raise error

    monkeypatch.setattr("mirror.common.distributed.exit_process", sys.exit)
    status, said = ends_with(main, capsys)
    advice = "train with a lower --mini_batch_size, encode with a lower --batch_size"
    assert (status, said) == (1, f"error: out of memory ({str(error)[:80]}); {advice}\n")

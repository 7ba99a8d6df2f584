"""Tests the README literally: its commands in order, from a clean shell in a fresh checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from unittest import mock

import pytest
from accelerate.commands import launch

from tests.documents import ROOT, blocks, text_of


BLOCKS = [block for block in blocks("README.md") if block.language in ("bash", "python")]
LAUNCHER = re.search(r"accelerate launch ([^`]+)", text_of("README.md"))[1].split()
MADE_HERE = shutil.ignore_patterns(".git", ".venv*", "out", "data", "build", "*.egg-info", "*_cache")
# What makes the commands quick and keeps them on this machine; everything else is as it is printed.
SMALLER = {
    "--max_train_samples 12000": "--max_train_samples 600",
    "--max_train_samples 10000": "--max_train_samples 600",
}


def test_the_launcher_has_nothing_to_warn_of(monkeypatch):
    monkeypatch.chdir(ROOT)
    args = launch.launch_command_parser().parse_args([*LAUNCHER, "run_mirror.py"])
    with mock.patch.object(launch, "logger") as logger, mock.patch.dict(os.environ):
        launch._validate_launch_command(args)
    assert logger.warning.call_args_list == [] and args.num_processes == 4


@pytest.mark.slow
def test_every_command_runs_in_its_order(tmp_path, bert_folder):
    checkout = Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=not_copied))
    make_environment(checkout)
    makefile = checkout / "Makefile"
    makefile.write_text(smaller(makefile.read_text()))
    script = "\n".join(typed(block.text, block.language) for block in BLOCKS).replace("bert-base-uncased", bert_folder)
    # pip would need an index; `make_environment` has installed what it would.
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", "pip() { :; }\n" + smaller(script)], cwd=checkout, capture_output=True, text=True,
        env={"PATH": os.defpath, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    assert "mini-mlm" in done.stdout and "demo" in done.stdout  # the table of make demo
    assert (checkout / "out/scores/results.md").is_file() and (checkout / "out/mirror/README.md").is_file()
    found = [line for line in done.stdout.splitlines() if "\thow to read a table from a file\t" in line]
    assert len(found) == 10


def not_copied(folder: str, names: list[str]) -> set[str]:
    """Return what is no part of a checkout."""
    return MADE_HERE(folder, names) if Path(folder) == ROOT else {"__pycache__"}


def make_environment(checkout: Path) -> None:
    """Make what `make install` does: .venv with the packages of this interpreter, except this project."""
    venv.EnvBuilder(symlinks=True).create(checkout / ".venv")
    (packages,) = (checkout / ".venv").glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "editable" not in path.name and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    for stamp in (".installed", ".editable"):
        (checkout / ".venv" / stamp).touch()


def smaller(text: str) -> str:
    for printed, quick in SMALLER.items():
        text = text.replace(printed, quick)
    return text


def typed(text: str, language: str) -> str:
    return f"python - <<'END'\n{text}\nEND" if language == "python" else text

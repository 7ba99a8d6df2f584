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

from mirror.modeling.backbone import load_backbone
from mirror.modeling.save_checkpoint import save_encoder
from tests.documents import ROOT, blocks, text_of


BLOCKS = [block for block in blocks("README.md") if block.language in ("bash", "python")]
LAUNCHER = re.search(r"accelerate launch ([^`]+)", text_of("README.md"))[1].split()
MADE_HERE = shutil.ignore_patterns(".git", ".venv*", "out", "data", "build", "*.egg-info", "*_cache")
# What makes the commands quick and keeps them on this machine; everything else is as it is printed.
SMALLER = {f"--max_train_samples {rows}": "--max_train_samples 600" for rows in (12000, 8000)}
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
# pip would need an index; `make_environment` has installed what it would, and these are the commands of pyproject.toml.
INSTALLED = """\
pip() { :; }
mirror-train() { .venv/bin/python run_mirror.py "$@"; }
mirror-search() { .venv/bin/python -m mirror.tools.search "$@"; }
"""


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
    script = script.replace(MINILM, small_encoder(bert_folder, tmp_path / "encoder"))
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", INSTALLED + smaller(script)], cwd=checkout, capture_output=True, text=True,
        env={"PATH": os.defpath, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    assert "mini-mlm" in done.stdout and "demo" in done.stdout  # the table of make demo
    for folder in ("out/adapted", "out/python"):
        assert (checkout / folder / "README.md").is_file() and (checkout / folder / "train_results.json").is_file()
    found = [line for line in done.stdout.splitlines() if "\thow do I make an encoder smaller\t" in line]
    assert len(found) == 10 and all(line.split("\t")[4].startswith("docs/") for line in found)


def small_encoder(bert_folder: str, folder: Path) -> str:
    """Save an encoder with mean pooling that takes the place of all-MiniLM-L6-v2."""
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(folder, model, tokenizer, "mean", max_seq_length=32)
    return str(folder)


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

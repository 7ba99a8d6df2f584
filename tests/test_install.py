"""Tests that the wheel contains everything that runs and nothing else, and that its commands start."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import mirror


ROOT = Path(__file__).resolve().parents[1]
NOT_COPIED = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return what `pip install .` writes to site-packages, built from a copy of the sources to keep the checkout clean."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("mirror", "studies"):
        shutil.copytree(ROOT / name, source / name, ignore=NOT_COPIED)
    for path in (*ROOT.glob("run_*.py"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))):
        shutil.copy(path, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    done = subprocess.run([*pip, "-w", str(out), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out)
    return out


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def run_in_wheel(site: Path, code: str, *argv: str) -> subprocess.CompletedProcess:
    """Run `code` with the wheel's packages instead of the checkout's."""
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, *argv]
    return subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True)


def entry_points(site: Path) -> dict[str, str]:
    """Return the function of each console command."""
    (info,) = site.glob("*.dist-info")
    lines = (info / "entry_points.txt").read_text().splitlines()
    return dict(line.split(" = ") for line in lines if " = " in line)


def test_the_wheel_contains_the_package_and_nothing_else(site):
    assert files(site / "mirror") == files(ROOT / "mirror")
    others = {path.name for path in site.iterdir() if path.suffix != ".whl"}
    assert others == {"mirror", f"mirror_encoders-{mirror.__version__}.dist-info"}


def test_the_metadata_has_the_version_and_the_extras(site):
    (info,) = site.glob("*.dist-info")
    metadata = message_from_string((info / "METADATA").read_text(encoding="utf-8"))
    assert metadata["Version"] == mirror.__version__
    assert {"demo", "onnx", "lora", "logging", "dev"} <= set(metadata.get_all("Provides-Extra"))


def test_the_embedded_model_and_the_recipes_are_found_in_a_wheel(site):
    code = "from mirror.assets import EMBEDDED_MODEL as path; print(path); "
    code += "from mirror.common.config_parser import RECIPES, load_recipe; print(RECIPES)\n"
    code += "print(load_recipe(str(RECIPES / 'sentence-bert.yaml'))['level'])\n"
    done = run_in_wheel(site, code)
    expected = [str(site / "mirror" / "assets" / "mini-mlm"), str(site / "mirror" / "recipes"), "sentence"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_every_program_has_a_command(site):
    named = {EntryPoint(name, value, "x").load().args[0] for name, value in entry_points(site).items()}
    tools = [path for path in ROOT.glob("mirror/tools/*.py") if "\ndef main(" in path.read_text()]
    assert named == {path.stem for path in tools}


def test_no_text_names_a_file_that_an_installation_lacks(site):
    for path in site.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                of_a_space = path.name == "push.py" and node.value == "requirements.txt"
                assert of_a_space or not re.search(r"requirements[\w-]*\.txt", node.value), f"{path}: {node.value}"


def test_a_command_starts(site):
    target = entry_points(site)["mirror-search"]
    code = f"from importlib.metadata import EntryPoint as E; E('x', '{target}', 'x').load()()"
    done = run_in_wheel(site, code, "--topk", "1")
    assert done.returncode == 2 and done.stderr.startswith("error: ")

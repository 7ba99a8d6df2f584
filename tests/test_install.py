"""The wheel: everything that runs, the embedded model and the templates, and commands that start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mirror.encoder import EMBEDDED_MODEL


ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("mirror-train", "mirror-cmlm", "mirror-eval", "mirror-encode", "mirror-search", "mirror-demo")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """What `pip install .` puts into site-packages, from a copy of the sources so that nothing is built in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("mirror", "assets"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("run_*.py"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))):
        shutil.copy(path, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(source),
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out)
    return out


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_the_wheel_holds_the_package_the_scripts_and_the_model(site):
    here = files(ROOT / "mirror") | {f"assets/{name}": content for name, content in files(ROOT / "assets").items()}
    assert files(site / "mirror") == here
    assert {path.name for path in ROOT.glob("run_*.py")} == {path.name for path in site.glob("*.py")}


def test_the_embedded_model_is_found_in_a_checkout_and_from_a_wheel(site):
    assert EMBEDDED_MODEL == ROOT / "assets" / "mini-mlm"
    code = "from mirror.encoder import Encoder, EMBEDDED_MODEL as path; print(path); "
    code += "print(Encoder.from_pretrained(str(path), 'cls').encode(['a text']).shape)"
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=site, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(site / "mirror" / "assets" / "mini-mlm"), "(1, 256)"], done.stderr


def test_the_commands_start(site):
    (info,) = site.glob("*.dist-info")
    lines = [line.split(" = ") for line in (info / "entry_points.txt").read_text().splitlines() if " = " in line]
    assert {name for name, _ in lines} == set(COMMANDS)
    for name, value in lines:
        assert callable(EntryPoint(name, value, "console_scripts").load())
    target = dict(lines)["mirror-search"]
    code = f"import sys; from importlib.metadata import EntryPoint as E; E('x', '{target}', 'x').load()()"
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, "--topk", "1"]
    done = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ")

"""Tests that the lists of dependencies agree, and the versions.

They are in pyproject.toml, requirements*.txt, docs/dependencies.md and the header of hub_job.py.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from importlib import metadata

import pytest
import yaml
from huggingface_hub.cli import _uv_script_header as hf
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import mirror
from tests.documents import ROOT


try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pytest installs its backport
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"always": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
FILES = {extra: f"requirements-{extra}.txt" for extra in EXTRAS} | {"always": "requirements.txt"}


def listed() -> dict[str, list[str]]:
    """Return the cells of each row of the table in docs/dependencies.md, by package."""
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text if line.startswith("| ")]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


def test_every_requirements_file_is_that_of_an_extra():
    assert {path.name for path in ROOT.glob("requirements*.txt")} == set(FILES.values())


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_pinned_packages_are_those_of_the_extra_supported_and_listed(extra):
    content = [line.partition("#")[0].strip() for line in (ROOT / FILES[extra]).read_text().splitlines()]
    supported = {item.name: item for item in map(Requirement, EXTRAS[extra])}
    own = supported.pop(PROJECT["name"], None)
    included = {
        line.removeprefix("-r requirements-").removesuffix(".txt") for line in content if line.startswith("-r")
    }
    assert included == (own.extras if own else set())
    pins = [Requirement(line) for line in content if line and not line.startswith("-r")]
    assert {pin.name for pin in pins} == supported.keys()
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "==" and Version(exact.version) in supported[pin.name].specifier, pin
        if pin.marker and "<" in str(pin.marker):
            continue  # the oldest Python gets the last release that supports it
        version, license_, _, needed_for = listed()[pin.name][:4]
        assert (version, needed_for) == (exact.version, extra) and license_ and "UNKNOWN" not in license_, pin
    new, old = ({pin.name for pin in pins if pin.marker and sign in str(pin.marker)} for sign in (">=", "<"))
    assert new == old


def test_the_version_is_the_same_everywhere():
    assert PROJECT["dynamic"] == ["version"]  # tests/test_install.py checks the one in the wheel
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mirror.__version__
    assert citation["license"] == PROJECT["license"]
    (quoted,) = re.findall(r"version = \{(.+?)\}", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert quoted == mirror.__version__


def test_the_script_for_jobs_of_the_hub_names_this_package_and_is_run_mirror(monkeypatch, capsys):
    """uv and hf read the header of hub_job.py, the block of PEP 723."""
    script = (ROOT / "hub_job.py").read_text(encoding="utf-8")
    (block,) = re.findall(r"(?m)^# /// script$\s((?:^#(?:| .*)$\s)+)^# ///$", script)
    header = tomllib.loads(re.sub(r"(?m)^# ?", "", block))
    (dependency,) = map(Requirement, header["dependencies"])
    assert dependency.name == PROJECT["name"] and dependency.extras <= EXTRAS.keys()
    assert header["requires-python"] == PROJECT["requires-python"]
    assert header["tool"]["hf-jobs"].keys() <= set(hf.VALID_KEYS)
    assert header["tool"]["hf-jobs"]["secrets"] == ["HF_TOKEN"]
    monkeypatch.setattr(sys, "argv", ["hub_job.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "hub_job.py"), run_name="__main__")
    assert not stopped.value.code and "--train_file" in capsys.readouterr().out


def required_by(*packages: str) -> set[str]:
    """Return the names of these packages and of all that they need on this machine."""
    found, waiting = set(), [Requirement(package) for package in packages]
    while waiting:
        item = waiting.pop()
        name, extras = canonicalize_name(item.name), item.extras or {""}
        if (name, *sorted(extras)) not in found:
            found.add((name, *sorted(extras)))
            needed = map(Requirement, metadata.requires(name) or ())
            waiting += [
                each for each in needed if not each.marker or any(each.marker.evaluate({"extra": x}) for x in extras)
            ]
    return {name for name, *_ in found}


@pytest.mark.slow
def test_an_encoder_needs_torch_transformers_and_xxhash_only(tmp_path):
    """In an environment of links to these packages and to those that they need."""
    for name in required_by("torch", "transformers", "xxhash"):
        for file in metadata.files(name):
            link = tmp_path / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(file.locate().parents[len(file.parts) - 2] if len(file.parts) > 1 else file.locate())
    code = """
from mirror import Encoder
from mirror.assets import EMBEDDED_MODEL
encoder = Encoder.from_pretrained(str(EMBEDDED_MODEL), "mean")
print(encoder.search(["open a file"], ["Close a socket.", "Open a file."], k=1)[0][0][0], encoder.encode(["a"]).shape)
"""
    run = [sys.executable, "-S", "-c", code]  # -S: without the packages of this environment
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(run, env=os.environ | paths, capture_output=True, text=True)
    assert done.stdout == "Open a file. (1, 256)\n", done.stderr

"""The list of dependencies is whole: docs/dependencies.md has every package of requirements*.txt in its pinned version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[1]
OLD_PYTHON = "python_version < '3.11'"  # which newer releases of some packages no longer support
FILES = sorted(path.name for path in ROOT.glob("requirements*.txt"))


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if line and not line.startswith(("#", "-r ")) and OLD_PYTHON not in line]
    return dict(re.match(r"([\w-]+)==([^\s;]+)", line).groups() for line in packages)


@pytest.fixture(scope="module")
def listed() -> dict[str, list[str]]:
    """Cells of each row of the table, by package."""
    lines = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("| ")]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


@pytest.mark.parametrize("name", FILES)
def test_every_pinned_package_is_listed_with_its_licence(name, listed):
    for package, version in pinned(name).items():
        assert listed[package][0] == version, package
        assert listed[package][1] and "UNKNOWN" not in listed[package][1]


def test_what_is_supported_is_pinned():
    project = (
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2].partition("]")[0]
    )
    supported = dict(re.findall(r'"([\w-]+)>=(\S+)"', project))
    assert supported.keys() == pinned("requirements.txt").keys()


@pytest.mark.parametrize("name", FILES)
def test_what_is_newer_than_python_3_10_has_an_older_pin_for_it(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    new, old = (
        {line.partition("==")[0] for line in lines if marker in line} for marker in ("python_version >=", OLD_PYTHON)
    )
    assert new == old

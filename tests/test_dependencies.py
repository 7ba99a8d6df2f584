"""The lists of dependencies agree: pyproject.toml, requirements*.txt and docs/dependencies.md; so do all mentions of the version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import mirror


try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pytest installs its backport
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
OLD_PYTHON = "python_version < '3.11'"  # newer releases of some packages do not support it
FILES = sorted(path.name for path in ROOT.glob("requirements*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def lines(name: str) -> list[str]:
    content = (line.partition("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    return [line for line in content if line]


def pinned(name: str) -> dict[str, str]:
    """Version of each package, for all Pythons but the oldest."""
    packages = [line for line in lines(name) if not line.startswith("-r ") and OLD_PYTHON not in line]
    return dict(re.match(r"([\w-]+)==([^\s;]+)", line).groups() for line in packages)


def included(name: str) -> set[str]:
    """Extras whose requirements file another one includes by `-r`."""
    return {
        line.removeprefix("-r requirements-").removesuffix(".txt") for line in lines(name) if line.startswith("-r ")
    }


def lowest(requirements: list[str]) -> dict[str, str]:
    """The lowest supported version of each package; the extras of this project are left out."""
    parsed = [Requirement(line) for line in requirements]
    return {item.name: str(item.specifier).removeprefix(">=") for item in parsed if item.name != PROJECT["name"]}


@pytest.fixture(scope="module")
def listed() -> dict[str, list[str]]:
    """Cells of each row of the table in docs/dependencies.md, by package."""
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text if line.startswith("| ")]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


@pytest.mark.parametrize("name", FILES)
def test_every_pinned_package_is_listed_with_its_licence_and_extra(name, listed):
    extra = name.removeprefix("requirements").removeprefix("-").removesuffix(".txt") or "always"
    for package, version in pinned(name).items():
        assert listed[package][0] == version, package
        assert listed[package][1] and "UNKNOWN" not in listed[package][1]
        assert listed[package][3] == extra, package


def test_every_requirements_file_has_an_extra():
    assert {f"requirements-{extra}.txt" for extra in EXTRAS} | {"requirements.txt"} == set(FILES)


def test_the_dependencies_are_the_packages_of_requirements_txt():
    assert lowest(PROJECT["dependencies"]).keys() == pinned("requirements.txt").keys()


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_names_exactly_the_packages_of_its_requirements_file(extra):
    name = f"requirements-{extra}.txt"
    assert lowest(EXTRAS[extra]).keys() == pinned(name).keys()
    own = [Requirement(line) for line in EXTRAS[extra]]
    assert {part for item in own if item.name == PROJECT["name"] for part in item.extras} == included(name)


@pytest.mark.parametrize("name", FILES)
def test_a_pinned_version_is_a_supported_one(name):
    extra = name.removeprefix("requirements-").removesuffix(".txt")
    supported = lowest(EXTRAS.get(extra, PROJECT["dependencies"]))
    pins = [line.partition(";")[0].strip().split("==") for line in lines(name) if "==" in line.partition(";")[0]]
    assert len(pins) >= len(supported)
    for package, version in pins:
        assert Version(version) >= Version(supported[package]), package


@pytest.mark.parametrize("name", FILES)
def test_a_package_that_dropped_python_3_10_has_an_older_pin_for_it(name):
    new, old = (
        {line.partition("==")[0] for line in lines(name) if marker in line}
        for marker in ("python_version >=", OLD_PYTHON)
    )
    assert new == old


def test_the_version_is_the_same_everywhere():
    assert PROJECT["dynamic"] == ["version"]  # tests/test_install.py checks the one in the wheel
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mirror.__version__
    assert citation["license"] == PROJECT["license"]
    (quoted,) = re.findall(r"version = \{(.+?)\}", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert quoted == mirror.__version__

"""The script for jobs of the Hub: its header is one that uv and hf read, and it is run_mirror.py."""

from __future__ import annotations

import re
import runpy
import sys

import pytest
from huggingface_hub.cli import _uv_script_header as hf
from packaging.requirements import Requirement

from tests.documents import ROOT
from tests.test_dependencies import EXTRAS, PROJECT, tomllib


SCRIPT = ROOT / "hub_job.py"


@pytest.fixture(scope="module")
def header() -> dict:
    """The block of PEP 723, read as that document says."""
    (block,) = re.findall(r"(?m)^# /// script$\s((?:^#(?:| .*)$\s)+)^# ///$", SCRIPT.read_text(encoding="utf-8"))
    return tomllib.loads(re.sub(r"(?m)^# ?", "", block))


def test_the_header_names_this_package_and_its_python(header):
    (dependency,) = map(Requirement, header["dependencies"])
    assert dependency.name == PROJECT["name"] and dependency.extras <= EXTRAS.keys()
    assert header["requires-python"] == PROJECT["requires-python"]


def test_hf_knows_every_setting_of_a_job(header):
    assert header["tool"]["hf-jobs"].keys() <= set(hf.VALID_KEYS)
    assert header["tool"]["hf-jobs"]["secrets"] == ["HF_TOKEN"]


def test_its_flags_are_those_of_run_mirror(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hub_job.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert not stopped.value.code and "--train_file" in capsys.readouterr().out

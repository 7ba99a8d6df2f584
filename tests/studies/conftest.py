"""Inputs of the study `small`, with fake scripts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mirror.evaluation import plots
from studies import runner, setup
from studies.study import STUDIES
from tests.studies.fakes import STUDY, start_here, write_inputs


@pytest.fixture
def workplace(sentences, tmp_path, monkeypatch) -> Path:
    """Inputs of the study `small` with fake scripts, in cells that run in this process."""
    write_inputs(tmp_path, sentences)
    monkeypatch.setitem(STUDIES, "small", STUDY)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "start_cell", start_here)
    monkeypatch.setattr(plots, "FORMATS", (".png", ".svg"))
    return tmp_path


@pytest.fixture
def real_processes(monkeypatch, workplace) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(STUDIES, "small", STUDY)
    monkeypatch.setattr(setup, "ROOT", workplace)


@pytest.fixture
def published_model(bert_folder, tmp_path) -> str:
    """A folder with the name of a published checkpoint."""
    return shutil.copytree(bert_folder, tmp_path / "models/bert-base-uncased")

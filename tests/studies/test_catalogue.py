"""Every declared study is consistent: its tasks exist, its flags parse, its published scores match its table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from mirror.evaluation.catalogue import all_tasks, resolve
from mirror.studies.catalogue import STUDIES, find_study
from mirror.studies.cells import RATE
from mirror.studies.plan import cell_name
from mirror.training.arguments import parse_arguments
from mirror.training.config import LEVELS


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_consistent(name, tmp_path):
    study = STUDIES[name]
    names = [cell_name(cell) for cell in study.cells]
    assert len(set(names)) == len(names)
    known = all_tasks(tmp_path)
    tasks = {task.name for cell in study.cells for task in resolve(cell.tasks, known)}
    assert {column.task for column in study.columns} <= tasks | {"selection"}
    labels = {column.label for column in study.columns} | {"average"}
    for rows in study.published.values():
        assert set(rows) <= set(study.rows)
        assert all(labels & set(scores) for scores in rows.values())
    if study.figure == "curve":
        assert all(float(row) > 0 for row in study.rows)


@pytest.mark.parametrize("name", STUDIES)
def test_every_flag_is_accepted_by_run_mirror(name, tmp_path):
    for cell in STUDIES[name].cells:
        assert cell.level in LEVELS
        argv = ["--output_dir", os.fspath(tmp_path), "--level", cell.level]
        for key, value in cell.flags.items():
            value = value["bert"] if isinstance(value, Mapping) else value
            argv += [f"--{'learning_rate' if key == RATE else key}", str(value)]
        parse_arguments(argv)


def test_the_docs_list_every_study():
    page = (Path(__file__).resolve().parents[2] / "docs" / "studies" / "README.md").read_text(encoding="utf-8")
    assert [name for name in STUDIES if f"| `{name}` |" not in page] == []


def test_an_unknown_study_suggests_the_most_similar():
    with pytest.raises(InputError, match="unknown study 'tabel3'; did you mean 'table3'"):
        find_study("tabel3")


@pytest.mark.parametrize(
    ("name", "family", "printed"),
    [
        ("table1", "mbert", ".073 .123 .264"),
        ("table5", "mbert", ".043 .101 .297"),
        ("table6", "bert", ".071 .079 .371"),
        ("table7", "bert", ".744 .754 .726 .717 .651"),
        ("table7", "roberta", ".753 .764 .732 .717 .682"),
    ],
)
def test_published_columns_average_to_the_published_average(name, family, printed):
    """Within .001, because the columns are rounded too."""
    study = STUDIES[name]
    rows = [study.published[family][row] for row in study.rows]
    means = [sum(row[column.label] for column in study.columns) / len(study.columns) for row in rows]
    assert means == pytest.approx([float(number) for number in printed.split()], abs=0.001)

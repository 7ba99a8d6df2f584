"""Each kind of figure can be drawn from results in the format of run_eval.py."""

from __future__ import annotations

import pytest

from mirror.studies.catalogue import STUDIES
from mirror.studies.figures import draw
from mirror.studies.table import collect


CURVE = {"false_positive_rate": [0, 0.5, 1], "true_positive_rate": [0, 0.8, 1]}
HISTOGRAM = {"bin_edges": [-1, 0, 1], "positive": [1, 3], "negative": [3, 1]}
SELECTION = {
    "main_score": 0.5,
    "dev_of_chosen": 0.6,
    "dev_of_best": 0.7,
    "dev_of_last": 0.6,
    "criterion": [-1, -2, -3],
    "dev": [0.5, 0.7, 0.6],
}
ANSWERS = {
    "qnli": {"main_score": 0.6, "roc_curve": CURVE},
    "qqp_cosine": {"main_score": 0.7, "gap": 0.1, "histogram": HISTOGRAM},
    "selection_own_text": SELECTION,
    "selection_alignment_uniformity": SELECTION,
    "isotropy": {"main_score": 0.1, "isotropy_score_rows": 0.2, "mean_vector_norm": 3.0},
}


@pytest.mark.parametrize(
    "name",
    ["table3", "table12", "figure4", "figure7", "table14", "table2", "selection", "table1", "figure5", "table21"],
)
def test_a_figure_is_drawn(name, tmp_path):
    study = STUDIES[name]
    tasks = {column.task for column in study.columns}
    fields = {column.field: 0.3 for column in study.columns}
    records = [
        {
            "row": cell.row,
            "part": cell.part,
            "seed": seed if cell.corpora else None,
            "tasks": {task: fields | ANSWERS.get(task, {"main_score": 0.5}) for task in tasks},
        }
        for cell in study.cells
        for seed in ((33, 44) if cell.corpora else (33,))
    ]
    draw(study, collect(study, records), records, {}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]

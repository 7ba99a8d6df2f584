from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.image import imread

from mirror.evaluation import plots, qnli, qqp
from mirror.evaluation.score_bars import arrange, limits, score_bars
from mirror.evaluation.table import Line


def drawn(path) -> np.ndarray:
    """Read a PNG as (H, W, 4); check that it is not blank and that no temporary file is left."""
    pixels = imread(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert pixels.shape[0] > 200 and pixels.shape[1] > 200
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 20
    return pixels


@pytest.fixture
def scores():
    generator = np.random.default_rng(0)
    positive = generator.random(500) < 0.5
    return positive, np.clip(generator.normal(size=500) * 0.2 + 0.3 * positive, -1, 1)


def test_histograms_before_and_after(tmp_path, scores):
    positive, cosines = scores
    before = qqp.compare(0.9 + 0.05 * cosines, positive)["histogram"]
    after = qqp.compare(cosines, positive)["histogram"]
    path = tmp_path / "plots/cosines.png"
    plots.cosine_histograms(path, {"before": before, "after": after}, "Cosines")
    two = drawn(path)
    plots.cosine_histograms(path, {"after": after})
    assert drawn(path).shape[0] < two.shape[0]


def test_only_non_empty_bins_are_shown():
    histogram = {"positive": [0, 0, 3, 0], "negative": [0, 1, 0, 0]}
    edges = np.array([-1, -0.5, 0, 0.5, 1])
    assert plots._used_range(edges, [histogram]) == (-0.5, 0.5)


def test_roc_curves_of_several_models(tmp_path, scores):
    positive, cosines = scores
    result = {"main_score": 0.8, "roc_curve": qnli.thinned_roc_curve(positive, cosines)}
    path = tmp_path / "plots/roc.png"
    plots.roc_curves(path, {"one": result})
    one = drawn(path)
    plots.roc_curves(path, {"one": result, "inverted": {"main_score": 0.2, "roc_curve": _swapped(result)}})
    assert not np.array_equal(drawn(path), one)


def _swapped(result):
    curve = result["roc_curve"]
    return {
        "true_positive_rate": curve["false_positive_rate"],
        "false_positive_rate": curve["true_positive_rate"],
    }


def test_heat_map(tmp_path):
    path = tmp_path / "plots/bias.png"
    plots.language_heat_map(path, [[0.9, 0.1], [0.3, 0.7]], ["de", "en"])
    drawn(path)


def test_scatter_of_translations(tmp_path):
    source = np.random.default_rng(0).normal(size=(20, 6))
    path = tmp_path / "plots/fra.png"
    plots.translation_scatter(path, source, source + 0.1, ("fra", "eng"), "Tatoeba")
    drawn(path)


def test_the_suffix_says_the_format_and_equal_figures_are_equal_bytes(tmp_path):
    def draw(name: str) -> list:
        return plots.language_heat_map(tmp_path / name, [[0.9, 0.1], [0.3, 0.7]], ["de", "en"])

    assert draw("one.svg") == [tmp_path / "one.svg"]
    assert [path.name for path in draw("v1.2")] == ["v1.2.png", "v1.2.svg", "v1.2.pdf"]
    once = {path: path.read_bytes() for path in draw("v1.2")}
    assert once == {path: path.read_bytes() for path in draw("v1.2")}


def test_one_panel_for_each_metric_with_the_values_on_the_bars(tmp_path):
    table = [
        Line("one", [0.5, -0.1234, 0.75]),
        Line("published: x", [None, 0.25, None], "published"),
        Line("difference", [None, 1.0, None], "difference"),
        Line("two", [0.625, 0.3125, 0.875]),
    ]
    (path,) = score_bars(tmp_path / "scores.svg", ["stsb", "qnli", "sickr"], table, ["rho", "auc", "rho"])
    text = path.read_text()
    drawn = re.findall(r"<!-- (.*?) -->", text)  # matplotlib writes the text beside its glyphs
    for word in ("rho", "auc", "stsb", "0.500", "0.625", "0.250", "0.312", "0.875", "published: x", "two"):
        assert drawn.count(word) == 1, word
    assert [word for word in drawn if "123" in word] and "difference" not in drawn
    assert drawn.index("stsb") < drawn.index("sickr") < drawn.index("auc")  # a metric's tasks are together


def test_many_tasks_become_a_grid_of_three_columns():
    metrics = ["rho"] * 20 + ["accuracy"] * 5 + ["rho"] * 5
    grid = arrange(metrics, [4] * 30)
    assert [sum(len(panel.tasks) for panel in column) for column in grid] == [10, 10, 10]
    assert [[panel.metric for panel in column] for column in grid] == [["rho"], ["rho"], ["rho", "accuracy"]]
    assert sorted(index for column in grid for panel in column for index in panel.tasks) == list(range(30))
    assert len(arrange(metrics, [1] * 30)) == 1 and len(arrange(["rho"], [1])) == 1


def test_the_bars_have_one_scale():
    low, high = limits([Line("one", [0.1, None])])
    assert low == 0 and high > 1
    assert limits([Line("one", [-0.4, 1.2])])[0] < -0.4 and limits([Line("one", [1.2])])[1] > 1.2

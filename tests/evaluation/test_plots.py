from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from mirror.evaluation import plots, qnli, qqp


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

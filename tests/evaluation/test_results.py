from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
from matplotlib.image import imread

from mirror.common.errors import InputError
from mirror.evaluation import plots, results
from mirror.evaluation.labeled_pairs import compare
from mirror.evaluation.plots import draw_all, score_bars
from mirror.evaluation.published import ROWS, Row, find_rows, nearest_row
from mirror.evaluation.results import ESCAPED, Line, format_latex
from mirror.evaluation.run import all_tasks


def entry(score: float, **fields) -> dict:
    fixed = {"metric": "spearman_cosine", "protocol": "all", "num_examples": 1379, "seconds": 1.0, "data_sha256": "00"}
    return {"main_score": score, "published": "a | table"} | fixed | fields


def record(model: str, **scores: float) -> dict:
    return {
        **{"model_name_or_path": model, "pooling": "mean", "max_seq_length": 64, "dtype": "float32"},
        "tasks": {name: entry(score) for name, score in scores.items()},
        "groups": {"sts": sum(scores.values()) / len(scores)},
        "group_members": {"sts": list(scores)},
        "group_members_missing": {"sts": ["sts16"]},
        "missing": ["sts16"],
    }


ROW = Row("a system", "a table", {"stsb": 0.75})
RECORDS = [record("a/one", stsb=0.8, sickr=0.6), record("b/two", stsb=0.7, sickr=0.5)]


def test_published_scores_differences_and_changes_are_below_each_model():
    columns, lines = results.comparison(RECORDS, [ROW, None])
    assert columns == ["stsb", "sickr", "mean sts (1 missing)"]
    assert lines[0] == ("one", [0.8, 0.6, pytest.approx(0.7)], "scores")
    assert lines[1] == ("published: a system", [0.75, None, None], "published")
    assert lines[2] == ("difference", [pytest.approx(0.05), None, None], "difference")
    assert lines[3].label == "two"
    assert lines[4] == ("change from one", [pytest.approx(-0.1)] * 3, "change")
    assert lines[5] == ("change in percent", pytest.approx([-12.5, -100 / 6, -100 / 7]), "percent")
    assert len(lines) == 6


def test_special_lines_of_the_table():
    _, lines = results.comparison(RECORDS[:1], [Row("a system", "a table", {"stsb": 0.75, "sickr": 0.65})])
    assert lines[1].scores == [0.75, 0.65, pytest.approx(0.7)]  # a published mean, where every member is published
    _, lines = results.comparison([record("a", men=-0.1, rw=0.0), record("b", men=0.2, rw=0.5)], [None, None])
    assert lines[-1].scores[:2] == [None, None]  # no percentage of a score that is not positive
    one = record("a/one", stsb=0.8, docs_search=0.3)
    one["tasks"]["docs_search"] |= {"metric": "accuracy@1", "tfidf": {"accuracy@1": 0.4, "mrr": 0.5}}
    _, lines = results.comparison([one], [None])
    assert lines[1:] == [("TF-IDF", [None, 0.4, None], "published")]
    assert "\n  TF-IDF" in results.format_text(["stsb", "docs_search", "mean"], lines)
    assert results.short_names(["a/out", "b/out", "c/other"]) == ["a/out", "b/out", "other"]


def test_the_printed_table_is_split_into_blocks():
    columns = [f"task{n}" for n in range(11)]
    lines = [
        Line("model", [n / 10 for n in range(11)]),
        Line("change", [None] * 10 + [-0.5], "change"),
        Line("in percent", [None] * 10 + [-33.33], "percent"),
    ]
    first, second = results.format_text(columns, lines).split("\n\n")
    assert first.splitlines()[0].split() == columns[:8]
    cells = [line.split() for line in second.splitlines()[1:]]
    assert cells == [["model", "0.8000", "0.9000", "1.0000"], ["change", "-0.5000"], ["in", "percent", "-33.3%"]]


def test_the_latex_table_is_for_booktabs_and_the_best_model_is_bold():
    columns, lines = results.comparison([*RECORDS, record("c_d", stsb=0.9, sickr=0.600001)], [ROW, None, None])
    text = format_latex(columns, lines, RECORDS)
    assert "% one: pooling mean, max_seq_length 64, dtype float32\n" in text
    rows = [line for line in text.splitlines() if not line.startswith("%")]
    assert rows[0] == r"\begin{tabular}{lrrrrrr}" and rows[-1] == r"\end{tabular}"
    assert [row for row in rows if row.endswith("rule")] == [r"\toprule", r"\midrule", r"\midrule", r"\bottomrule"]
    assert rows[2].startswith("task & one & published: a system & two & change from one & c\\_d &")
    assert rows[4] == r"stsb & 0.8000 & 0.7500 & 0.7000 & $-$0.1000 & \textbf{0.9000} & +0.1000 \\"
    assert rows[5].count(r"\textbf{0.6000}") == 2  # a tie
    assert rows[7].startswith("mean sts (1 missing) &")
    assert all(row.count(" & ") == 6 for row in rows if row.endswith(r"\\"))
    assert r"a_b 50% {x} \^~#&$".translate(ESCAPED) == (
        r"a\_b 50\% \{x\} \textbackslash{}\textasciicircum{}\textasciitilde{}\#\&\$"
    )


def test_files_of_one_and_of_several_models(tmp_path):
    columns, lines = results.comparison(RECORDS[:1], [ROW])
    written = results.write_results(RECORDS[:1], columns, lines, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == RECORDS[0]
    rows = list(csv.DictReader((tmp_path / "results.csv").open(newline="")))
    assert [(row["task"], float(row["main_score"])) for row in rows] == [("stsb", 0.8), ("sickr", 0.6)]
    page = (tmp_path / "results.md").read_text()
    for part in ("| stsb | 0.8000 | 0.7500 | +0.0500 |", "a \\| table", "no data for: sts16"):
        assert part in page
    assert json.loads((tmp_path / "run.json").read_text())["_python_version"]
    expected = {f"results.{kind}" for kind in ("json", "csv", "md", "tex")} | {"run.json"}
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in written} == expected
    records = [record("a/one", stsb=np.float32(0.5)), record("b/two", stsb=np.float64(0.7))]
    written = results.write_results(records, *results.comparison(records, [None, None]), tmp_path / "both")
    assert sorted(written) == sorted(path for path in (tmp_path / "both").rglob("*") if path.is_file())
    assert json.loads((tmp_path / "both/one/results.json").read_text())["tasks"]["stsb"]["main_score"] == 0.5


def test_plots_depend_on_the_scored_tasks(tmp_path):
    for one in RECORDS:
        curve = {"false_positive_rate": [0, 0.3, 1], "true_positive_rate": [0, 0.6, 1]}
        counts = {"bin_edges": [-1, 0, 1], "positive": [1, 9], "negative": [7, 3]}
        one["tasks"] |= {
            "qnli": entry(0.6, roc_curve=curve),
            "qqp_cosine": entry(0.7, histogram=counts),
        }
    columns, lines = results.comparison(RECORDS, [ROW, None])
    tasks = all_tasks(tmp_path)
    paths = draw_all(RECORDS, columns, lines, [tasks[name] for name in RECORDS[0]["tasks"]], tmp_path)
    figures = ("scores", "qnli_roc", "qqp_cosines")
    assert {path.name for path in paths} == {f"{name}.{kind}" for name in figures for kind in ("png", "svg", "pdf")}
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in paths)
    assert len(list(tmp_path.iterdir())) == len(paths)


def test_the_published_row_with_the_most_similar_name_is_found():
    tasks = {"stsb"}
    assert nearest_row("somewhere/all-MiniLM-L6-v2", "mean", tasks).system == "all-MiniLM-L6-v2 mean"
    assert nearest_row("bert-base-uncased", "cls", tasks).system == "bert-base-uncased cls"
    mirror = nearest_row("cambridgeltl/mirror-bert-base-uncased-sentence", "mean_padded", tasks)
    assert mirror.system == "mirror-bert-base-uncased"
    assert nearest_row("out/xyz", "mean", tasks) is None
    assert nearest_row("bert-base-uncased", "cls", {"multisimlex_fra"}) is None  # those are CamemBERT's
    assert nearest_row("cambridgeltl/SapBERT-from-PubMedBERT-fulltext", "cls", {"bel_ncbi"}).scores["bel_ncbi"] == 0.92
    mirror = nearest_row("cambridgeltl/mirror-bert-base-uncased-sentence-drophead", "mean_padded", tasks)
    assert mirror.system == "mirror-bert-base-uncased drophead"


def test_a_published_row_is_of_the_level_and_the_pooling():
    """The released sentence models had text of STS. The published scores of other tasks are of other models."""
    every, sentence = {"stsb", "qnli", "multisimlex_eng", "bel_ncbi"}, "mirror-roberta-base-sentence"
    assert set(nearest_row(sentence, "cls", every).scores) == {f"sts{year}" for year in range(12, 17)} | {
        "stsb",
        "sickr",
    }
    assert nearest_row("mirror-bert-base-uncased-word", "cls", every).scores == {"multisimlex_eng": 0.556}
    assert (
        nearest_row(sentence, "cls", {"qnli"}) is nearest_row("mirror-bert-base-uncased-word", "cls", {"stsb"}) is None
    )
    assert nearest_row("roberta-base", "mean", every) is nearest_row("roberta-base", "pooler", every) is None
    assert nearest_row("bert-base-nli-mean-tokens", "mean_padded", {"qnli"}).scores == {"qnli": 0.706}
    assert nearest_row("bert-base-uncased", "mean", every).source.startswith("MTEB")  # over its own tokens


@pytest.mark.parametrize(
    "name", ["all-MiniLM-L12-v2", "bert-base-cased", "distilbert-base-uncased", "my-bert-base-uncased"]
)
def test_the_published_row_of_another_checkpoint_is_not_shown(name):
    assert nearest_row(name, "mean", {"stsb"}) is None


def test_a_pair_of_encoders_is_compared_with_a_pair_only():
    pair = "google-bert/bert-base-uncased+almanach/camembert-base"
    assert nearest_row(pair, "cls", {"bli_en_fr"}).system == "bert-base-uncased+camembert-base cls"
    assert nearest_row("bert-base-uncased", "cls", {"bli_en_fr"}) is None
    record = {"model_name_or_path": "out/mirror-bert-base-uncased", "second_model_name_or_path": "out/camembert-base"}
    (row,) = find_rows([record | {"pooling": "cls", "tasks": {"bli_en_fr": {}}}])
    assert (row.system, row.scores) == ("mirror-bert-base-uncased+camembert-base", {"bli_en_fr": 0.458})


def test_a_published_row_can_be_selected_or_omitted():
    assert find_rows(RECORDS, "none") == [None, None]
    assert [row.system for row in find_rows(RECORDS, "fastText")] == ["fastText"] * 2
    with pytest.raises(InputError, match="no row of 'LaBSE'; did you mean 'LaBSE cls'"):
        find_rows(RECORDS, "LaBSE")


def test_published_numbers_are_fractions_of_known_tasks(tmp_path):
    known = all_tasks(tmp_path)
    assert len({row.system for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.scores.keys() <= known.keys(), row.system
        assert all(0 < score < 1 for score in row.scores.values()), row.system


def test_histograms_before_and_after(tmp_path):
    """A panel for each, and no temporary file is left."""
    positive = np.arange(50) % 2 == 0
    after = compare(np.where(positive, 0.8, 0.1), positive)["histogram"]
    path = tmp_path / "plots/cosines.png"
    plots.cosine_histograms(path, {"before": after, "after": after}, "Cosines")
    two = imread(path)
    plots.cosine_histograms(path, {"after": after})
    assert imread(path).shape[0] < two.shape[0] and list(path.parent.iterdir()) == [path]


def test_the_suffix_says_the_format_and_equal_figures_are_equal_bytes(tmp_path):
    def draw(name: str) -> list:
        return plots.merge_curve(
            tmp_path / name, [{"weight": 0.5, "own_text": 0.4}, {"weight": 1.0, "own_text": 0.3}], 0.5
        )

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

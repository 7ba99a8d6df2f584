from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import results, table
from mirror.evaluation.latex import escape, format_latex
from mirror.evaluation.pictures import draw_all, metrics_of
from mirror.evaluation.published import ROWS, Row, find_rows, nearest_row
from mirror.evaluation.table import Line


def entry(score: float, **fields) -> dict:
    fixed = {"metric": "spearman_cosine", "protocol": "all", "num_examples": 1379, "seconds": 1.0, "data_sha256": "00"}
    return {"main_score": score, "published": "a | table"} | fixed | fields


def record(model: str, **scores: float) -> dict:
    tasks = {name: entry(score) for name, score in scores.items()}
    return {
        "model_name_or_path": model,
        "pooling": "mean",
        "max_seq_length": 64,
        "dtype": "float32",
        "tasks": tasks,
        "groups": {"sts": sum(scores.values()) / len(scores)},
        "group_members": {"sts": list(scores)},
        "group_members_missing": {"sts": ["sts16"]},
        "missing": ["sts16"],
    }


ROW = Row("a system", "a table", {"stsb": 0.75})
RECORDS = [record("a/one", stsb=0.8, sickr=0.6), record("b/two", stsb=0.7, sickr=0.5)]


def test_published_scores_differences_and_changes_are_below_each_model():
    columns, lines = table.comparison(RECORDS, [ROW, None])
    assert columns == ["stsb", "sickr", "mean sts (1 missing)"]
    assert lines[0] == ("one", [0.8, 0.6, pytest.approx(0.7)], "scores")
    assert lines[1] == ("published: a system", [0.75, None, None], "published")
    assert lines[2] == ("difference", [pytest.approx(0.05), None, None], "difference")
    assert lines[3].label == "two"
    assert lines[4] == ("change from one", [pytest.approx(-0.1)] * 3, "change")
    assert lines[5] == ("change in percent", pytest.approx([-12.5, -100 / 6, -100 / 7]), "percent")
    assert len(lines) == 6


def test_the_last_line_is_tf_idf_where_a_task_measures_it():
    one = record("a/one", stsb=0.8, docs_search=0.3)
    one["tasks"]["docs_search"] |= {"metric": "accuracy@1", "tfidf": {"accuracy@1": 0.4, "mrr": 0.5}}
    _, lines = table.comparison([one], [None])
    assert lines[1:] == [("TF-IDF", [None, 0.4, None], "published")]
    assert "\n  TF-IDF" in table.format_text(["stsb", "docs_search", "mean"], lines)


def test_a_score_of_zero_or_less_has_no_percentage():
    _, lines = table.comparison([record("a", men=-0.1, rw=0.0), record("b", men=0.2, rw=0.5)], [None, None])
    assert lines[-1].scores[:2] == [None, None]


def test_a_published_mean_needs_every_member():
    row = Row("a system", "a table", {"stsb": 0.75, "sickr": 0.65})
    _, lines = table.comparison(RECORDS[:1], [row])
    assert lines[1].scores == [0.75, 0.65, pytest.approx(0.7)]


def test_the_printed_table_is_split_into_blocks():
    columns = [f"task{n}" for n in range(11)]
    lines = [
        Line("model", [n / 10 for n in range(11)]),
        Line("change", [None] * 10 + [-0.5], "change"),
        Line("in percent", [None] * 10 + [-33.33], "percent"),
    ]
    first, second = table.format_text(columns, lines).split("\n\n")
    assert first.splitlines()[0].split() == columns[:8]
    assert second.splitlines()[1].split() == ["model", "0.8000", "0.9000", "1.0000"]
    assert second.splitlines()[2].split() == ["change", "-0.5000"]
    assert second.splitlines()[3].split() == ["in", "percent", "-33.3%"]


def test_the_latex_table_is_for_booktabs_and_the_best_model_is_bold():
    columns, lines = table.comparison([*RECORDS, record("c_d", stsb=0.9, sickr=0.600001)], [ROW, None, None])
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
    assert escape(r"a_b 50% {x} \^~#&$") == (
        r"a\_b 50\% \{x\} \textbackslash{}\textasciicircum{}\textasciitilde{}\#\&\$"
    )


def test_models_with_the_same_folder_name_keep_their_full_path():
    assert table.short_names(["a/out", "b/out", "c/other"]) == ["a/out", "b/out", "other"]


def test_files_of_one_model(tmp_path):
    columns, lines = table.comparison(RECORDS[:1], [ROW])
    written = results.write_results(RECORDS[:1], columns, lines, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == RECORDS[0]
    rows = list(csv.DictReader((tmp_path / "results.csv").open(newline="")))
    assert [(row["task"], float(row["main_score"])) for row in rows] == [("stsb", 0.8), ("sickr", 0.6)]
    page = (tmp_path / "results.md").read_text()
    assert "| stsb | 0.8000 | 0.7500 | +0.0500 |" in page
    assert "a \\| table" in page
    assert "no data for: sts16" in page
    assert json.loads((tmp_path / "run.json").read_text())["_python_version"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written)
    assert {path.name for path in written} == {f"results.{kind}" for kind in ("json", "csv", "md", "tex")} | {
        "run.json"
    }


def test_files_of_several_models_and_numpy_scalars(tmp_path):
    records = [record("a/one", stsb=np.float32(0.5)), record("b/two", stsb=np.float64(0.7))]
    columns, lines = table.comparison(records, [None, None])
    written = results.write_results(records, columns, lines, tmp_path)
    assert sorted(written) == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert json.loads((tmp_path / "one" / "results.json").read_text())["tasks"]["stsb"]["main_score"] == 0.5
    assert (tmp_path / "two" / "results.json").exists()
    assert not (tmp_path / "results.json").exists()


def test_files_that_differ_in_their_suffix_share_a_line(tmp_path):
    names = ("one/results.json", "results.md", "scores.png", "scores.svg", "tatoeba/fra_one.v2.png")
    assert results.list_files([tmp_path / name for name in names], tmp_path).splitlines() == [
        *("  one/results.json", "  results.md", "  scores.png .svg", "  tatoeba/fra_one.v2.png")
    ]


def test_plots_depend_on_the_scored_tasks(tmp_path):
    for one, shift in zip(RECORDS, (0.0, 0.1), strict=True):
        curve = {"false_positive_rate": [0, 0.3, 1], "true_positive_rate": [0, 0.6 + shift, 1]}
        counts = {"bin_edges": [-1, 0, 1], "positive": [1, 9], "negative": [7, 3]}
        one["tasks"] |= {
            "qnli": entry(0.6, roc_curve=curve),
            "qqp_cosine": entry(0.7, histogram=counts),
            "language_bias": entry(0.5, matrix=[[0.9, 0.1], [0.4, 0.6]], languages=["en", "de"]),
        }
    columns, lines = table.comparison(RECORDS, [ROW, None])
    paths = draw_all(RECORDS, columns, lines, tmp_path)
    figures = ("scores", "qnli_roc", "qqp_cosines", "language_bias_one", "language_bias_two")
    assert {path.name for path in paths} == {f"{name}.{kind}" for name in figures for kind in ("png", "svg", "pdf")}
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in paths)
    assert len(list(tmp_path.iterdir())) == len(paths)


def test_a_mean_has_the_metric_of_its_members():
    assert metrics_of(RECORDS[0]) == ["spearman_cosine"] * len(metrics_of(RECORDS[0]))
    assert len(metrics_of(record("a", stsb=0.5))) == 2


def test_the_published_row_with_the_most_similar_name_is_found():
    tasks = {"stsb"}
    assert nearest_row("somewhere/all-MiniLM-L6-v2", "mean", tasks).system == "all-MiniLM-L6-v2 mean"
    assert nearest_row("bert-base-uncased", "cls", tasks).system == "bert-base-uncased cls"
    mirror = nearest_row("cambridgeltl/mirror-bert-base-uncased-sentence", "mean_padded", tasks)
    assert mirror.system == "mirror-bert-base-uncased"
    assert nearest_row("bert-base-uncased", "cls", {"docs_search"}) is None
    assert nearest_row("out/xyz", "mean", tasks) is None
    assert nearest_row("bert-base-uncased", "cls", {"multisimlex_fra"}) is None  # those are CamemBERT's
    assert nearest_row("cambridgeltl/SapBERT-from-PubMedBERT-fulltext", "cls", {"bel_ncbi"}).scores["bel_ncbi"] == 0.92


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
    from mirror.evaluation.catalogue import all_tasks

    known = all_tasks(tmp_path)
    assert len({row.system for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.scores.keys() <= known.keys(), row.system
        assert all(0 < score < 1 for score in row.scores.values()), row.system

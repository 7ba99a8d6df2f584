from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import results
from mirror.evaluation.pictures import draw_all
from mirror.evaluation.published import ROWS, Row, find_rows, nearest_row


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


def test_published_scores_and_differences_are_below_each_model():
    columns, table = results.comparison(RECORDS, [ROW, None])
    assert columns == ["stsb", "sickr", "mean sts (1 missing)"]
    assert table[0] == ("one", [0.8, 0.6, pytest.approx(0.7)])
    assert table[1] == ("  published: a system", [0.75, None, None])
    assert table[2] == ("  difference", [pytest.approx(0.05), None, None])
    assert [label for label, _ in table[3:]] == ["two"]


def test_a_published_mean_needs_every_member():
    row = Row("a system", "a table", {"stsb": 0.75, "sickr": 0.65})
    _, table = results.comparison(RECORDS[:1], [row])
    assert table[1][1] == [0.75, 0.65, pytest.approx(0.7)]


def test_the_printed_table_is_split_into_blocks():
    columns = [f"task{n}" for n in range(11)]
    text = results.format_text(
        columns, [("model", [n / 10 for n in range(11)]), ("  difference", [None] * 10 + [-0.5])]
    )
    first, second = text.split("\n\n")
    assert first.splitlines()[0].split() == columns[:8]
    assert second.splitlines()[1].split() == ["model", "0.8000", "0.9000", "1.0000"]
    assert second.splitlines()[2].split() == ["difference", "-0.5000"]


def test_models_with_the_same_folder_name_keep_their_full_path():
    assert results.short_names(["a/out", "b/out", "c/other"]) == ["a/out", "b/out", "other"]


def test_files_of_one_model(tmp_path):
    columns, table = results.comparison(RECORDS[:1], [ROW])
    results.write_results(RECORDS[:1], columns, table, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == RECORDS[0]
    rows = list(csv.DictReader((tmp_path / "results.csv").open(newline="")))
    assert [(row["task"], float(row["main_score"])) for row in rows] == [("stsb", 0.8), ("sickr", 0.6)]
    page = (tmp_path / "results.md").read_text()
    assert "| stsb | 0.8000 | 0.7500 | +0.0500 |" in page
    assert "a \\| table" in page
    assert "no data for: sts16" in page
    assert json.loads((tmp_path / "run.json").read_text())["_python_version"]
    assert not list(tmp_path.glob("*.tmp"))


def test_files_of_several_models_and_numpy_scalars(tmp_path):
    records = [record("a/one", stsb=np.float32(0.5)), record("b/two", stsb=np.float64(0.7))]
    columns, table = results.comparison(records, [None, None])
    results.write_results(records, columns, table, tmp_path)
    assert json.loads((tmp_path / "one" / "results.json").read_text())["tasks"]["stsb"]["main_score"] == 0.5
    assert (tmp_path / "two" / "results.json").exists()
    assert not (tmp_path / "results.json").exists()


def test_plots_depend_on_the_scored_tasks(tmp_path):
    for one, shift in zip(RECORDS, (0.0, 0.1), strict=True):
        curve = {"false_positive_rate": [0, 0.3, 1], "true_positive_rate": [0, 0.6 + shift, 1]}
        counts = {"bin_edges": [-1, 0, 1], "positive": [1, 9], "negative": [7, 3]}
        one["tasks"] |= {
            "qnli": entry(0.6, roc_curve=curve),
            "qqp_cosine": entry(0.7, histogram=counts),
            "language_bias": entry(0.5, matrix=[[0.9, 0.1], [0.4, 0.6]], languages=["en", "de"]),
        }
    columns, table = results.comparison(RECORDS, [ROW, None])
    paths = draw_all(RECORDS, columns, table, tmp_path)
    names = {path.name for path in paths}
    assert {"scores.png", "qnli_roc.png", "qqp_cosines.png", "language_bias_one.png", "language_bias_two.png"} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert len(list(tmp_path.iterdir())) == len(paths)


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

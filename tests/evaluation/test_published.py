from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
import yaml

from mirror.evaluation import published
from mirror.evaluation.published import CMLM, CMLM_AVERAGES, MIRROR_BERT, MISPRINTS, ROWS, printed_table


RECIPES = Path(__file__).resolve().parents[2] / "mirror" / "recipes"
MULTILINGUAL = "bert-base-multilingual-uncased"


def rows(*tables: str) -> dict[tuple[str, str], list[published.Number]]:
    found = [number for number in MIRROR_BERT if number.table in tables]
    return {key: list(group) for key, group in groupby(found, key=lambda number: (number.table, number.row))}


def test_every_number_is_there_once():
    places = [(number.table, number.row, number.column) for number in MIRROR_BERT]
    assert len(set(places)) == len(places) == 479
    assert all(0 < number.value < (20 if number.column.startswith("MVN") else 1) for number in MIRROR_BERT)


def test_printed_averages_are_the_means_of_their_rows():
    checked = 0
    for key, numbers in rows("1", "3", "4", "5", "6", "16", "17", "18", "19", "20").items():
        *parts, average = (number.value for number in numbers)
        mean = sum(parts) / len(parts)
        checked += 1
        if key == ("4", "BERT"):  # Table 17 prints the mean
            assert (average, round(mean, 3)) == (0.533, 0.535)
        else:
            assert average == pytest.approx(mean, abs=1e-3), key
    assert checked == 49


def test_each_number_belongs_to_the_checkpoint_of_table_15():
    """The recipes name the same checkpoints."""

    def model_of(recipe: str) -> str:
        return yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text())["model_name_or_path"]

    models = {path.stem[-2:]: model_of(path.stem) for path in RECIPES.glob("word-bert-??.yaml")}
    models["en"] = model_of("word-bert")
    named = [n for n in MIRROR_BERT if n.table in ("16", "17", "19") and n.column != "avg." and n.row[:4] == "BERT"]
    assert len(named) == 3 * (8 + 3 + 6)
    for number in named:
        codes = number.column.split("-")
        assert number.model.lower() == published.checkpoint_name(*(models[code] for code in codes)), number
    multilingual = {n.model for n in MIRROR_BERT if n.row.startswith("mBERT")}
    assert multilingual == {MULTILINGUAL} == {model_of("word-mbert"), model_of("sentence-mbert")}


def test_a_system_has_only_its_own_numbers():
    systems = {row.system: row.scores for row in ROWS}
    for system in ("bert-base-uncased cls", "bert-base-uncased mean_padded", "mirror-bert-base-uncased"):
        words = [task for task in systems[system] if task.startswith(("multisimlex", "sts17"))]
        assert words == ["multisimlex_eng"], system
    assert systems["mirror-camembert-base"] == {"multisimlex_fra": 0.621}
    assert systems["mirror-rubert-base-cased"] == {"multisimlex_rus": 0.365}  # its STS is another set than sts_ru
    assert not any("sts_ru" in scores for scores in systems.values())
    assert systems["bert-base-uncased mean_padded"]["bel_cometa"] == 0.404
    assert "bel_cometa" not in systems["bert-base-uncased cls"] and "xlm-roberta-base" not in systems
    assert systems["bert-base-nli-mean-tokens mean_padded"]["sts12"] == 0.719
    assert systems["bert-base-nli-mean-tokens"] == {"qnli": 0.706}
    assert systems["fastText"]["multisimlex_eng"] == 0.528  # the poster prints .434, and the average .450


# table -> number of rows and of columns, the average included
SIZES = {"1": (11, 10), "2": (4, 16), "3": (8, 16), "4": (8, 8), "5": (6, 37), "6": (4, 12), "7": (7, 10)}
# Printed averages that are not the mean of the printed row, in percent; the third number is that mean.
CONTRADICTIONS = {
    ("1", "SkipThought"): (83.8, 83.6),
    ("1", "English BERT base (CC)"): (84.6, 84.8),
    ("5", "mBERT"): (38.7, 39.0),
    ("5", "XLM-R"): (57.3, 57.7),
    ("5", "LASER"): (84.4, 84.6),
    ("6", "mBERT + PCR"): (54.8, 55.0),
    ("7", "N = 10"): (84.9, 85.1),
}


@pytest.mark.parametrize("table", SIZES)
def test_every_row_and_column_is_there_and_averages_are_the_mean_of_their_row(table):
    rows = printed_table(table)
    assert (len(rows), len({column for row in rows.values() for column in row})) == SIZES[table]
    assert all(0 < value < 1 for row in rows.values() for value in row.values())
    for name, row in rows.items():
        if table == "4" or (table, name) == MISPRINTS[0][:2]:
            continue
        average = next(100 * row[column] for column in CMLM_AVERAGES if column in row)
        parts = [100 * value for column, value in row.items() if column not in CMLM_AVERAGES]
        expected, mean = CONTRADICTIONS.get((table, name), (average, average))
        assert (average, sum(parts) / len(parts)) == (pytest.approx(expected), pytest.approx(mean, abs=0.12)), name


def test_the_misprint_is_kept_in_the_file_and_left_out_of_comparisons():
    (place,) = MISPRINTS
    table, name, column = place
    assert CMLM[place] == 9.5
    row = printed_table(table)[name]
    assert column not in row
    others = [value for key, value in row.items() if key not in CMLM_AVERAGES]
    assert 36 * row["Mean"] - sum(others) == pytest.approx(0.961, abs=0.02)  # what the printed mean implies

"""The numbers of Mirror-BERT against each other: averages, tables that repeat others, and the checkpoints of Table 15."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
import yaml

from mirror.evaluation.published import MIRROR_BERT, ROWS, Number, checkpoint_name


RECIPES = Path(__file__).resolve().parents[2] / "recipes"
MULTILINGUAL = "bert-base-multilingual-uncased"


def rows(*tables: str) -> dict[tuple[str, str], list[Number]]:
    found = [number for number in MIRROR_BERT if number.table in tables]
    return {key: list(group) for key, group in groupby(found, key=lambda number: (number.table, number.row))}


def values(table: str) -> dict[tuple[str, str], float]:
    return {(n.row.replace("-mp", ""), n.column): n.value for n in MIRROR_BERT if n.table == table}


def test_every_number_is_there_once():
    places = [(number.table, number.row, number.column) for number in MIRROR_BERT]
    assert len(set(places)) == len(places) == 475
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


@pytest.mark.parametrize(("short", "full"), [("1", "16"), ("5", "18"), ("6", "19"), ("4", "17")])
def test_the_tables_of_the_text_repeat_those_of_the_appendix(short, full):
    repeated, printed = values(short), values(full)
    different = {place for place, value in repeated.items() if printed[place] != value}
    assert different == ({("BERT", "avg.")} if short == "4" else set())


def test_table_9_repeats_table_14():
    printed = values("14")
    assert all(printed[row, f"IS {column}"] == value for (row, column), value in values("9").items())


def test_table_7_is_the_average_of_tables_3_and_20():
    averages = {
        n.variant: n.value for n in MIRROR_BERT if n.table == "20" and n.model == "roberta-base" and n.column == "avg."
    }
    averages |= {
        n.variant: n.value
        for n in MIRROR_BERT
        if n.table == "3" and n.variant == "mirror drophead" and n.column == "avg."
    }
    assert {n.variant: n.value for n in MIRROR_BERT if n.table == "7"} == averages


def test_each_number_belongs_to_the_checkpoint_of_table_15():
    """The recipes name the same checkpoints."""
    words = {path.stem[-2:]: path for path in RECIPES.glob("word-bert-??.yaml")}
    models = {code: yaml.safe_load(path.read_text())["model_name_or_path"] for code, path in words.items()}
    models["en"] = yaml.safe_load((RECIPES / "word-bert.yaml").read_text())["model_name_or_path"]
    named = [
        n for n in MIRROR_BERT if n.table in ("16", "17", "19") and n.column != "avg." and n.row.startswith("BERT")
    ]
    assert len(named) == 3 * (8 + 3 + 6)
    for number in named:
        codes = number.column.split("-")
        assert number.model.lower() == checkpoint_name(*(models[code] for code in codes)), number
    multilingual = [n.model for n in MIRROR_BERT if n.row.startswith("mBERT")]
    assert (
        set(multilingual)
        == {MULTILINGUAL}
        == {
            yaml.safe_load((RECIPES / f"{level}-mbert.yaml").read_text())["model_name_or_path"]
            for level in ("word", "sentence")
        }
    )


def test_a_system_has_only_its_own_numbers():
    systems = {row.system: row.scores for row in ROWS}
    for system in ("bert-base-uncased cls", "bert-base-uncased mean_padded", "mirror-bert-base-uncased"):
        words = [task for task in systems[system] if task.startswith(("multisimlex", "sts17", "sts_ru"))]
        assert words == ["multisimlex_eng"], system
    assert systems["mirror-camembert-base"] == {"multisimlex_fra": 0.621}
    assert systems["mirror-rubert-base-cased"] == {"multisimlex_rus": 0.365, "sts_ru": 0.673}
    assert (
        systems["bert-base-uncased mean_padded"]["bel_cometa"] == 0.404
        and "bel_cometa" not in systems["bert-base-uncased cls"]
    )
    assert systems["bert-base-nli-mean-tokens mean_padded"]["sts12"] == 0.719
    assert systems["bert-base-nli-mean-tokens"] == {"qnli": 0.706}
    assert systems["fastText"]["multisimlex_eng"] == 0.528  # the poster prints .434, and the average .450
    assert "xlm-roberta-base" not in systems

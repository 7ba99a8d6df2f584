"""Every declared study is consistent: its tasks exist, its flags parse, its published scores match its table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from mirror.evaluation.catalogue import all_tasks, resolve
from mirror.studies.catalogue import STUDIES, find_study
from mirror.studies.cells import RATE
from mirror.studies.plan import cell_name
from mirror.studies.recipes import all_recipes, find_recipe, recipe_named
from mirror.studies.setup import Setup, language_keys, paper_models
from mirror.studies.table import published_beside
from mirror.training.arguments import parse_arguments
from mirror.training.choices import CRITERIA
from mirror.training.levels import LEVELS


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_consistent(name, tmp_path):
    study = STUDIES[name]
    names = [cell_name(cell) for cell in study.cells]
    assert len(set(names)) == len(names)
    known = all_tasks(tmp_path)
    tasks = {task.name for cell in study.cells for task in resolve(cell.tasks, known)}
    label_free = {"own_text"} | {f"selection_{criterion}" for criterion in CRITERIA}
    assert {column.task for column in study.columns} <= tasks | label_free
    labels = {column.label for column in study.columns} | {"average"}
    for rows in study.published.values():
        assert set(rows) <= set(study.rows)
    for scores in study.baselines.values():
        assert labels & set(scores)
    assert set(study.paper_models) <= set(language_keys(study))
    if study.figure == "curve":
        assert all(float(row) > 0 for row in study.rows)


@pytest.mark.parametrize("name", STUDIES)
def test_every_flag_is_accepted_by_run_mirror(name, tmp_path):
    seen: set[tuple[str, str]] = set()
    for cell in STUDIES[name].cells:
        assert cell.level in LEVELS
        given = {(key, str(value)) for key, value in cell.flags.items()}
        if given <= seen:
            continue
        seen |= given
        argv = ["--output_dir", os.fspath(tmp_path), "--level", cell.level]
        for key, value in cell.flags.items():
            argv += [f"--{'learning_rate' if key == RATE else key}", str(value)]
        parse_arguments(argv)


def test_the_docs_list_every_study():
    page = (Path(__file__).resolve().parents[2] / "docs" / "studies" / "README.md").read_text(encoding="utf-8")
    assert [name for name in STUDIES if f"| `{name}` |" not in page] == []


def test_an_unknown_study_suggests_the_most_similar():
    with pytest.raises(InputError, match="unknown study 'tabel3'; did you mean 'table3'"):
        find_study("tabel3")


@pytest.mark.parametrize(
    ("name", "model", "printed"),
    [
        ("table1", "bert-base-multilingual-uncased", ".073 .123 .264"),
        ("table3", "bert-base-uncased", ".314 .493 .743 .754"),
        ("table4", "bert-base-multilingual-uncased", ".392 .558 .680"),
        ("table5", "bert-base-multilingual-uncased", ".043 .101 .297"),
        ("table7", "bert-base-uncased", ".744 .754 .726 .717 .651"),
        ("table7", "roberta-base", ".753 .764 .732 .717 .682"),
    ],
)
def test_published_columns_of_one_model_average_to_the_published_average(name, model, printed):
    """Within .001, because the columns are rounded too."""
    study = STUDIES[name]
    beside = published_beside(study, lambda cell: model)
    means = [sum(beside[row][column.label] for column in study.columns) / len(study.columns) for row in study.rows]
    assert means == pytest.approx([float(number) for number in printed.split()], abs=0.001)


def test_another_model_has_nothing_published():
    for study in STUDIES.values():
        assert published_beside(study, lambda cell: "electra-large-discriminator") == {}


def test_a_number_stands_beside_the_model_of_its_language_only():
    english = published_beside(STUDIES["table1"], lambda cell: "bert-base-uncased")
    assert english == {
        "before, cls": {"multisimlex_eng": 0.105},
        "before, mean_padded": {"multisimlex_eng": 0.267},
        "Mirror": {"multisimlex_eng": 0.556},
    }


def test_with_the_papers_models_every_column_has_its_number():
    def beside(name):
        study = STUDIES[name]
        setup = Setup("none", Path(), (), Path(), (), language_models=paper_models(study))
        return published_beside(study, setup.checkpoint_of)

    words, lexicon, sentences = beside("table1"), beside("table6"), beside("table4")
    assert sum(words["Mirror"].values()) / 8 == pytest.approx(0.471, abs=5e-4)  # Table 16
    assert words["Mirror"]["multisimlex_fra"] == 0.621 and paper_models(STUDIES["table1"])["fra"] == "camembert-base"
    assert sum(lexicon["Mirror"].values()) / 6 == pytest.approx(0.371, abs=6e-4)  # Table 19
    assert lexicon["before, mean_padded"]["bli_ru_fr"] == 0.018
    assert sum(sentences["Mirror"].values()) / 3 == pytest.approx(0.684, abs=5e-4)  # Table 17


def test_the_untrained_rows_of_table_2_are_mean_pooled():
    """Footnote 5: off-the-shelf models are reported with the mean."""
    beside = published_beside(STUDIES["table2"], lambda cell: "bert-base-uncased")
    assert beside["before, mean_padded"]["bel_ncbi"] == 0.676 and "before, cls" not in beside
    assert (beside["Mirror"]["bel_cometa"], beside["Mirror"]["bel_cometa @5"]) == (0.547, 0.647)
    assert STUDIES["table2"].baselines["SapBERT"]["bel_askapatient @5"] == 0.889


def test_table_10_has_the_mean_pooled_baseline_and_fasttext():
    study = STUDIES["table10"]
    beside = published_beside(study, lambda cell: "bert-base-uncased")
    assert [beside[row]["multisimlex_eng"] for row in study.rows] == [0.105, 0.267, 0.556, 0.393, 0.481]
    assert study.baselines["fastText"] == {"multisimlex_eng": 0.528}


def test_the_grid_of_table_21_is_the_printed_one():
    for name in ("table21", "table21_words", "table21_phrases"):
        flags = [cell.flags for cell in STUDIES[name].cells]
        assert len(flags) == 3 * 3 * 4 * 7
        grid = {key: sorted({settings[key] for settings in flags}) for key in flags[0]}
        assert [rate * 2e-5 for rate in grid[RATE]] == pytest.approx([1e-5, 2e-5, 5e-5])
        assert grid["per_device_train_batch_size"] == [100, 200, 300]
        assert grid["num_train_epochs"] == [1, 2, 3, 5]
        assert grid["temperature"] == [0.03, 0.04, 0.05, 0.07, 0.1, 0.2, 0.3]
    assert [STUDIES[name].choose_on for name in ("table21", "table21_words", "table21_phrases")] == [
        *("stsb_dev", "simlex999", "bel_cometa_zero_shot")
    ]  # section 3


def test_the_papers_choice_in_table_21_is_compared_with_each_single_change_of_it():
    claims = STUDIES["table21"].claims
    assert {claim.higher for claim in claims} == {"rate x 1, batch 200, epochs 1, temperature 0.04"}
    others = [claim.lower for claim in claims]
    assert len(set(others)) == (3 - 1) + (3 - 1) + (4 - 1) + (7 - 1) and set(others) <= set(STUDIES["table21"].rows)
    assert "rate x 1, batch 200, epochs 1, temperature 0.3" in others
    assert STUDIES["table21_words"].claims[0].higher == "rate x 1, batch 200, epochs 2, temperature 0.2"


def test_figures_5_and_8_have_the_papers_curves_and_buckets():
    curves = {(cell.part, cell.tasks) for cell in STUDIES["figure5"].cells}
    assert curves == {("word", ("multisimlex_eng",)), ("phrase", ("bel_cometa",)), ("sentence", ("sts12",))}
    assert paper_models(STUDIES["figure5"])["sentence"] == "roberta-base"
    assert STUDIES["figure8"].rows == [str(rank) for rank in range(10_000, 100_001, 10_000)]


def test_a_recipe_is_found_by_model_level_and_drophead():
    assert find_recipe("bert-base-uncased", "sentence").name == "recipes/sentence-bert.yaml"
    assert find_recipe("google-bert/bert-base-uncased", "word").name == "recipes/word-bert.yaml"
    assert find_recipe("/models/roberta-base", "sentence", drophead=True).drophead_rate == 0.05
    assert find_recipe("roberta-base", "word") is None and find_recipe("bert-large-uncased", "sentence") is None
    found = [(recipe.model, recipe.settings["level"], bool(recipe.drophead_rate)) for recipe in all_recipes()]
    assert len(set(found)) == len(found)
    assert recipe_named("sentence-bert-drophead").drophead_rate == 0.2


def test_a_study_with_one_model_refuses_the_papers_models():
    with pytest.raises(InputError, match="--paper_models: the paper has one model for all cells of 'Table 3"):
        paper_models(STUDIES["table3"])

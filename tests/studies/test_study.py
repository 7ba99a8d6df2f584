"""Every declared study is consistent: its tasks exist, its flags parse, its published scores match its table."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from mirror.evaluation.run import all_tasks, resolve
from mirror.training.arguments import parse_arguments
from mirror.training.options import LEVELS
from mirror.training.trainer import MirrorTrainer
from studies import rivals
from studies import setup as places
from studies.jobs import _mirror_runs, cell_name
from studies.scores import published_beside
from studies.setup import Setup, find_recipe, paper_models, recipes
from studies.study import AVERAGE, CLOSE, RATE, SEEDS, STUDIES, find_study
from tests.documents import ROOT


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_consistent(name, tmp_path):
    study = STUDIES[name]
    names = [cell_name(cell) for cell in study.cells]
    assert len(set(names)) == len(names)
    known = all_tasks(tmp_path)
    tasks = {task.name for names in {cell.tasks for cell in study.cells} for task in resolve(names, known)}
    label_free = {"own_text", "selection_own_text"}
    assert {column.task for column in study.columns} <= tasks | label_free
    labels = {column.label for column in study.columns} | {AVERAGE}
    assert all(set(rows) <= set(study.rows) for rows in study.published.values())
    assert all(labels & set(scores) for scores in study.baselines.values())
    assert set(study.paper_models) <= set(study.languages)
    if study.figure == "curve":
        assert all(float(row) > 0 for row in study.rows)
    assert study.seeds in (3, len(SEEDS)) and SEEDS[:3] == (33, 44, 55)
    assert not study.ranks or len({cell.corpora for cell in study.cells}) == len(study.rows)


def test_every_flag_is_accepted_by_what_trains(tmp_path):
    seen: set[tuple[str, str]] = set()
    for cell in (cell for study in STUDIES.values() for cell in study.cells):
        assert cell.level in LEVELS
        given = {(key, str(value)) for key, value in cell.flags.items() if value is not None} | {("level", cell.level)}
        if cell.method:
            needed = ["--model_name_or_path", "m", "--train_file", "t", "--output_dir", "o", "--method", cell.method]
            rivals.parse_arguments(
                [*needed, *(str(item) for flag in cell.flags.items() for item in ("--" + flag[0], flag[1]))]
            )
        elif not given <= seen:
            seen |= given
            named = {"learning_rate" if key == RATE else key: value for key, value in given}
            argv = [item for key, value in named.items() for item in (f"--{key}", value)]
            parse_arguments(["--output_dir", os.fspath(tmp_path), *argv])


def test_every_flag_reaches_what_trains(bert_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Setup, "corpus", lambda setup, file: Path(file))
    setup, rows = Setup(bert_folder, Path(), (), Path(), (33,), language_models={}), 0
    for cell in (cell for study in STUDIES.values() for cell in study.cells if cell.corpora and not cell.chain):
        for run in _mirror_runs(cell, 33, tmp_path, setup):
            expected = {key: [str(value)] for key, value in cell.flags.items() if key != RATE and value is not None}
            assert expected.items() <= run.flags.items(), cell_name(cell)
            assert ("learning_rate" in run.flags) >= (RATE in cell.flags)
            rows += bool(cell.flags)
    assert rows > 50


@pytest.mark.parametrize("checkpoint", ["bert-base-uncased", "roberta-base"])
def test_rows_of_a_study_go_together_with_the_recipe_of_a_published_checkpoint(
    checkpoint, bert_folder, sentences, tmp_path, monkeypatch
):
    """A row may pool in another way, or mask with another token, than the recipe. The mean with padding is over 50 tokens."""
    monkeypatch.setattr(Setup, "corpus", lambda setup, file: Path(file))
    folder, texts = str(shutil.copytree(bert_folder, tmp_path / checkpoint)), tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences))
    setup, lengths = Setup(folder, Path(), (), Path(), (33,), language_models={}), {}
    for cell in (cell for name in ("cls_vs_mean", "side_experiments") for cell in STUDIES[name].cells if cell.corpora):
        (run,) = _mirror_runs(cell, 33, tmp_path, setup)
        flags = {**run.flags, "train_file": [str(texts)]}
        _, _, config = parse_arguments([item for key, values in flags.items() for item in (f"--{key}", *values)])
        if cell.row.endswith("after") and cell.level == "sentence":
            batches = MirrorTrainer(folder, config, sentences).get_train_dataloader()
            lengths[config.pooling] = next(iter(batches))["input_ids"].shape[-1]
    assert lengths["mean_padded"] == 50 and {"cls", "mean"} < lengths.keys()


def test_make_knows_every_study():
    listed = subprocess.run(
        ["make", "-s", "-C", ROOT, "--eval=names:;@echo $(STUDIES)", "names"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(listed.stdout.split()) == sorted(STUDIES)


def test_an_unknown_study_suggests_the_most_similar():
    with pytest.raises(InputError, match="unknown study 'tabel3'; did you mean 'table3'"):
        find_study("tabel3")


def test_a_study_is_restricted_to_rows_and_parts():
    cells = find_study("figure5", ["1000", "10000"], ["word"]).cells
    assert [(cell.row, cell.part) for cell in cells] == [("1000", "word"), ("10000", "word")]
    with pytest.raises(InputError, match="figure5 has no part 'words'; did you mean 'word'. .parts: 'word', 'phrase'"):
        find_study("figure5", parts=["words"])
    with pytest.raises(InputError, match="rivals: no row of --rows has a part of --parts"):
        find_study("rivals", ["TSDAE"], ["questions"])


@pytest.mark.parametrize(
    ("name", "model", "printed"),
    [
        ("table1", "bert-base-multilingual-uncased", ".073 .123 .264"),
        ("table3", "bert-base-uncased", ".314 .493 .743 .754"),
        ("table5", "bert-base-multilingual-uncased", ".043 .101 .297"),
        ("table7", "bert-base-uncased", ".744 .754 .726 .717 .651"),
        ("table7", "roberta-base", ".753 .764 .732 .717 .682"),
    ],
)
def test_published_columns_of_one_model_average_to_the_published_average(name, model, printed):
    """Within .001, because the columns are rounded too."""
    study = STUDIES[name]
    beside = published_beside(study, lambda cell: [model])
    means = [sum(beside[row][column.label] for column in study.columns) / len(study.columns) for row in study.rows]
    assert means == pytest.approx([float(number) for number in printed.split()], abs=0.001)


def test_a_number_stands_beside_the_model_of_its_language_only():
    assert published_beside(STUDIES["table1"], lambda cell: ["bert-base-uncased"]) == {
        "before, cls": {"multisimlex_eng": 0.105},
        "before, mean_padded": {"multisimlex_eng": 0.267},
        "Mirror": {"multisimlex_eng": 0.556},
    }
    for study in STUDIES.values():
        assert published_beside(study, lambda cell: ["electra-large-discriminator"]) == {}


def beside(name: str, model: str = "none") -> dict:
    setup = Setup(model, Path(), (), Path(), (), language_models=paper_models(STUDIES[name]))
    return published_beside(STUDIES[name], setup.models_of)


def test_with_the_papers_models_every_column_has_its_number():
    words, lexicon, sentences = beside("table1"), beside("table6"), beside("table4")
    assert sum(words["Mirror"].values()) / 8 == pytest.approx(0.471, abs=5e-4)  # Table 16
    assert words["Mirror"]["multisimlex_fra"] == 0.621 and paper_models(STUDIES["table1"])["fra"] == "camembert-base"
    assert sum(lexicon["Mirror"].values()) / 6 == pytest.approx(0.371, abs=6e-4)  # Table 19
    assert lexicon["before, mean_padded"]["bli_ru_fr"] == 0.018
    assert sentences["Mirror"] == {"sts17_es": 0.709, "sts17_ar": 0.669}  # the paper's Russian set is another one
    assert paper_models(STUDIES["figure5"])["sentence"] == "roberta-base"
    with pytest.raises(InputError, match="--paper_models: the paper has one model for all cells of 'Table 3"):
        paper_models(STUDIES["table3"])


def test_the_numbers_of_cmlm_stand_beside_its_models_and_baselines_follow():
    table1 = beside("cmlm_table1", "bert-base-uncased")
    assert set(table1) == set(STUDIES["cmlm_table1"].rows)
    assert (table1["CMLM base"]["average"], table1["CMLM large"]["transfer_sickr"]) == (0.86, 0.845)
    assert STUDIES["cmlm_table1"].baselines["SBERT (MNLI + SNLI)"]["average"] == 0.859
    table3 = beside("cmlm_table3", "out/multilingual-vocabulary")
    assert (table3["S3+NLI"]["average"], table3["f-mBERT"]["xeval_sw"]) == (0.84, 0.733)
    assert STUDIES["cmlm_table3"].baselines.keys() == {"LASER", "mUSE"}
    assert beside("cmlm_table5", "out/multilingual-vocabulary")["CMLM+BR"]["tatoeba_jav"] == 0.834
    assert "CMLM" not in beside("cmlm_table4", "bert-base-uncased")


def test_tables_2_and_10_have_their_baselines():
    """Footnote 5 of the paper: off-the-shelf models are reported with the mean."""
    table2 = published_beside(STUDIES["table2"], lambda cell: ["bert-base-uncased"])
    assert table2["before, mean_padded"]["bel_ncbi"] == 0.676 and "before, cls" not in table2
    assert (table2["Mirror"]["bel_cometa"], table2["Mirror"]["bel_cometa @5"]) == (0.547, 0.647)
    assert STUDIES["table2"].baselines["SapBERT"]["bel_askapatient @5"] == 0.889
    table10 = published_beside(STUDIES["table10"], lambda cell: ["bert-base-uncased"])
    rows = STUDIES["table10"].rows
    assert [table10[row]["multisimlex_eng"] for row in rows] == [0.105, 0.267, 0.556, 0.393, 0.481]
    assert STUDIES["table10"].baselines["fastText"] == {"multisimlex_eng": 0.528}


@pytest.mark.parametrize(
    ("name", "choose_on", "chosen"),
    [
        ("table21", "stsb_dev", "rate x 1, batch 200, epochs 1, temperature 0.04"),
        ("table21_words", "simlex999", "rate x 1, batch 200, epochs 2, temperature 0.2"),
        ("table21_phrases", "bel_cometa_zero_shot", "rate x 1, batch 200, epochs 2, temperature 0.04"),
    ],
)
def test_the_grid_of_table_21_is_the_printed_one_and_its_choice_is_compared_with_each_single_change(
    name, choose_on, chosen
):
    study = STUDIES[name]
    flags = [cell.flags for cell in study.cells]
    assert len(flags) == 3 * 3 * 4 * 7
    grid = {key: sorted({settings[key] for settings in flags}) for key in flags[0]}
    assert [rate * 2e-5 for rate in grid[RATE]] == pytest.approx([1e-5, 2e-5, 5e-5])
    assert grid["per_device_train_batch_size"] == [100, 200, 300]
    assert grid["num_train_epochs"] == [1, 2, 3, 5]
    assert grid["temperature"] == [0.03, 0.04, 0.05, 0.07, 0.1, 0.2, 0.3]
    assert study.choose_on == choose_on  # section 3
    others = [claim.lower for claim in study.claims]
    assert {claim.higher for claim in study.claims} == {chosen}
    assert {claim.within for claim in study.claims} == {CLOSE}  # "(close to) the best"
    assert len(set(others)) == (3 - 1) + (3 - 1) + (4 - 1) + (7 - 1) and set(others) <= set(study.rows)


def test_the_stages_of_a_chain_fit():
    """A stage starts from the weights and the shape of the stage before it, and reads the data of its kind."""
    data = {"nli": {"nli_file"}, "bitext": {"bitext_file"}, "cmlm_bitext": {"train_file", "bitext_file"}}
    for cell in (cell for study in STUDIES.values() for cell in study.cells):
        settings = [recipes()[stage.recipe] | stage.flags for stage in cell.chain]
        for stage, each in zip(cell.chain, settings, strict=True):
            assert set(stage.data) == data.get(each["stage"], {"train_file"}), stage
        assert not any(each.get("from_scratch") for each in settings[1:]), cell.row
        for key in ("num_projections", "skip_connection", "pooling"):
            assert len({each.get(key) for each in settings}) <= 1, (cell.row, key)


def test_a_recipe_is_found_by_model_level_and_drophead():
    assert find_recipe("bert-base-uncased", "sentence") == "sentence-bert"
    assert find_recipe("google-bert/bert-base-uncased", "word") == "word-bert"
    assert find_recipe("/models/roberta-base", "sentence", drophead=True) == "sentence-roberta-drophead"
    assert find_recipe("roberta-base", "word") is None and find_recipe("bert-large-uncased", "sentence") is None
    ours = [each for each in recipes().values() if "level" in each]
    found = [(each["model_name_or_path"], each["level"], bool(each.get("drophead_rate"))) for each in ours]
    assert len(set(found)) == len(found)


def test_a_recipe_without_a_model_is_named(monkeypatch, tmp_path):
    (tmp_path / "word-x.yaml").write_text("level: word\n")
    monkeypatch.setattr(places, "RECIPES", tmp_path)
    recipes.cache_clear()
    with pytest.raises(InputError, match=r"word-x\.yaml has no model_name_or_path"):
        find_recipe("bert-base-uncased", "word")
    (tmp_path / "word-x.yaml").unlink()
    with pytest.raises(InputError, match="no recipes in .*; install the package again"):
        find_recipe("bert-base-uncased", "word")

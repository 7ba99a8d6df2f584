"""Settings of a study's cells: recipes, the model and words of each language, and what scores a base model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import run_study
from mirror.common.errors import InputError
from mirror.tools import evaluate
from mirror.training import options
from mirror.training.arguments import parse_arguments
from studies import setup
from studies.study import STUDIES, Cell
from tests.studies.fakes import SENTENCES, STUDY, calls, declare, run, value


def trained_with(workplace: Path, number: int = 0) -> dict:
    """Parse the flags of a call of run_mirror.py by its own parser."""
    of_mirror = [call[1:] for call in calls(workplace) if call[0] == "mirror"]
    script, data, config = parse_arguments(of_mirror[number])
    return vars(script) | vars(data) | vars(config)


def test_a_published_model_is_trained_by_its_recipe_and_the_page_says_so(published_model, workplace, monkeypatch):
    declare(monkeypatch, SENTENCES)
    run(monkeypatch, workplace, published_model, "--seeds", 33, "--", "--warmup_steps", 2)
    settings = trained_with(workplace)
    assert (settings["pooling"], settings["keep_duplicates"]) == ("mean_padded", True)
    assert settings["model_name_or_path"] == str(published_model) and settings["seed"] == 33
    page = (workplace / "out/table.md").read_text()
    assert "\n- Settings as published: mirror/recipes/sentence-bert.yaml, then --warmup_steps 2.\n" in page
    run(monkeypatch, workplace, published_model, "--seeds", 33, "--modern", "--output_dir", workplace / "modern")
    settings = trained_with(workplace, 1)
    assert (settings["pooling"], settings["keep_duplicates"]) == (None, False)
    assert "Settings: this project's defaults (--modern; " in (workplace / "modern/table.md").read_text()


def test_a_cell_that_another_default_made_is_refused(published_model, workplace, monkeypatch):
    declare(monkeypatch, SENTENCES)
    published, modern = ("--seeds", 33), ("--seeds", 33, "--modern", "--output_dir", workplace / "modern")
    run(monkeypatch, workplace, published_model, *published)
    run(monkeypatch, workplace, published_model, *modern)
    monkeypatch.setattr(options, "ADAPTING_NAMES", {"max_steps": 3})
    run(monkeypatch, workplace, published_model, *published)  # its recipe names all settings
    with pytest.raises(InputError, match="another run_mirror.py defaults;"):
        run(monkeypatch, workplace, published_model, *modern)


def test_each_language_has_its_own_model_words_and_encoder(bert_folder, published_model, workplace, monkeypatch):
    common = {"part": "en_fr", "language": "en"}
    declare(
        monkeypatch,
        Cell("before", ("rg65",), pooling="cls", second=("fr",), **common),
        Cell("after", ("rg65",), ("texts.txt",), "word", second=("fr", "french.txt"), **common),
    )
    with pytest.raises(InputError, match="fra=M: this study has no fra; did you mean 'fr'.*; it has en, fr"):
        run(monkeypatch, workplace, bert_folder, "--language_models", "fra=M")
    with pytest.raises(InputError, match="--language_models fr=no/such-model: "):
        run(monkeypatch, workplace, bert_folder, "--language_models", "fr=no/such-model")
    (workplace / "data/mirror_corpus/french.txt").write_text("un\ndeux\ntrois\n")
    models = ["--keep_models", "--language_models", f"fr={published_model}"]
    run(monkeypatch, workplace, bert_folder, "--seeds", 33, *models)
    before, first, _, after = calls(workplace)
    assert value(before, "--model_name_or_path") == bert_folder
    assert value(before, "--second_model_name_or_path") == str(published_model)
    assert value(first, "--model_name_or_path") == bert_folder
    assert value(first, "--train_file") == f"{workplace}/data/mirror_corpus/texts.txt"
    assert trained_with(workplace, 1)["train_file"] == [f"{workplace}/data/mirror_corpus/french.txt"]
    assert trained_with(workplace, 1)["model_name_or_path"] == str(published_model)
    cell = workplace / "out/after-en_fr-seed33"
    assert value(after, "--model_name_or_path") == f"{cell}/model"
    assert value(after, "--second_model_name_or_path") == f"{cell}/second_model"
    assert "second run_mirror.py --level" in json.loads((cell / "cell.json").read_text())["identity"]
    page = (workplace / "out/table.md").read_text()
    assert "Settings as published: mirror/recipes/word-bert.yaml." in page and f"for {bert_folder} (word)" in page


def test_a_part_has_its_own_model_unless_another_is_named(bert_folder, published_model, workplace, monkeypatch):
    declare(monkeypatch, replace(SENTENCES, language="mine"), models={"mine": str(published_model)})
    run(monkeypatch, workplace, bert_folder, "--seeds", 33)
    named = ["--language_models", f"mine={bert_folder}", "--output_dir", workplace / "named"]
    run(monkeypatch, workplace, bert_folder, "--seeds", 33, *named)
    assert [trained_with(workplace, n)["model_name_or_path"] for n in (0, 1)] == [str(published_model), bert_folder]


def test_the_base_model_is_scored_with_the_settings_of_its_checkpoints(bert_folder, workplace, monkeypatch):
    """Same maximum length, and the pooling of the cell or else its own, by flags that the real run_eval.py accepts."""
    run(monkeypatch, workplace, bert_folder, "--max_cells", 1, "--", "--max_seq_length", 24)
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *calls(workplace)[0][1:]])
    args = evaluate.parse_arguments()
    assert (args.model_name_or_path, args.tasks, args.pooling) == (bert_folder, ["rg65"], "mean")
    assert (args.max_seq_length, args.no_cache, args.published) == (24, True, "none")
    encoder = shutil.copytree(bert_folder, workplace / "encoder")
    (encoder / "mirror_config.json").write_text(json.dumps({"pooling": "max"}))
    declare(monkeypatch, Cell("before", ("rg65",)))
    run(monkeypatch, workplace, encoder, "--output_dir", workplace / "other")
    assert value(calls(workplace)[1], "--pooling") == "max"


@pytest.mark.slow
def test_a_cell_is_bit_for_bit_that_of_two_commands(bert_folder, workplace, real_processes, monkeypatch):
    root = Path(run_study.__file__).parent
    monkeypatch.setattr(setup, "ROOT", root)
    monkeypatch.setitem(STUDIES, "small", replace(STUDY, cells=STUDY.cells[1:]))
    flags = "--max_steps 2 --per_device_train_batch_size 20 --max_seq_length 24"
    run(monkeypatch, workplace, bert_folder, "--seeds", 33, "--keep_models", "--", *flags.split())
    folder = workplace / "out/after-seed33"
    record = json.loads((folder / "cell.json").read_text())
    trained = json.loads((folder / "model/train_results.json").read_text())["settings"]
    assert trained["seed"] == 33 and trained["learning_rate"] == pytest.approx(5e-5)
    assert trained["drophead_rate"] == 0.2 and trained["dropout_rate"] == 0.0 and trained["max_steps"] == 2

    commands = [line for line in (folder / "log.txt").read_text().splitlines() if line.startswith("$ ")]
    here = folder.rename(workplace / "by_the_study")
    for line in commands:
        script, *arguments = line.removeprefix("$ ").split()
        subprocess.run([sys.executable, root / script, *arguments], check=True, cwd=workplace)
    assert (here / "model/model.safetensors").read_bytes() == (folder / "model/model.safetensors").read_bytes()
    first, second = (json.loads((place / "scores/results.json").read_text()) for place in (here, folder))
    first["tasks"]["rg65"].pop("seconds"), second["tasks"]["rg65"].pop("seconds")
    assert first == second and record["tasks"]["rg65"]["main_score"] == second["tasks"]["rg65"]["main_score"]

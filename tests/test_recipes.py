"""Every recipe of Mirror-BERT parses, gives the values it says, and says where each is from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from mirror.studies.recipes import all_recipes
from mirror.training.arguments import parse_arguments


FOLDER = Path(__file__).resolve().parents[1] / "recipes"
LATER = sorted(FOLDER.glob("*simcse-*.yaml"))  # methods that came after
RECIPES = sorted(path for path in FOLDER.glob("*.yaml") if path not in LATER and not path.name.startswith("cmlm-"))
# level: temperature, span, epochs, longest text; as published
PUBLISHED = {"word": (0.2, 0, 2, 25), "phrase": (0.04, 2, 2, 25), "sentence": (0.04, 5, 1, 50)}
# dropout, drophead, pooling of the four rows of Table 3
SENTENCES = {
    "sentence-bert": (0.1, 0.0, "mean_padded"),
    "sentence-bert-drophead": (0.0, 0.2, "mean_padded"),
    "sentence-roberta": (0.1, 0.0, "cls"),
    "sentence-roberta-drophead": (0.0, 0.05, "cls"),
}
by_name = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def parse(recipe: Path, *argv: str) -> tuple:
    return parse_arguments(["--config", str(recipe), "--dataset_name", "x", "--use_cpu", *argv])


def values_of(parsed: tuple) -> dict:
    return {key: value for group in parsed for key, value in vars(group).items()}


@by_name
def test_a_recipe_gives_the_values_it_says(recipe):
    content, parsed = yaml.safe_load(recipe.read_text()), values_of(parse(recipe))
    assert {key: parsed[key] for key in content} == content


@pytest.mark.parametrize("recipe", LATER, ids=lambda path: path.stem)
def test_a_recipe_of_a_later_method_gives_what_it_says_with_its_source(recipe):
    content, parsed = yaml.safe_load(recipe.read_text()), values_of(parse(recipe, "--data_dir", "x"))
    assert {key: parsed[key] for key in content} == content
    head, _, body = recipe.read_text().partition("\n\n")
    number = "2109.04380" if recipe.stem.startswith("esimcse") else "2104.08821"
    assert f"arXiv {number}" in head and "1,000,000" in head and f"--config recipes/{recipe.name}" in head
    assert all(re.fullmatch(r"\w+: \S.*  # \S.*", line) for line in body.splitlines()) and body
    assert (parsed["loss"], parsed["temperature"], parsed["pooling"]) == ("one_way", 0.05, "cls")
    assert (parsed["projection_head"], parsed["load_best_model_at_end"]) == ("mlp", True)
    assert recipe.stem.startswith("esimcse") == (parsed["augmentation"] == "repeat") == bool(parsed["negative_queue"])


def test_a_study_gives_the_same_values_as_flags():
    for recipe in all_recipes():
        flags = [item for key, values in recipe.flags.items() for item in (f"--{key}", *values)]
        parsed = values_of(parse_arguments([*flags, "--use_cpu"]))
        assert {key: parsed[key] for key in recipe.settings} == recipe.settings, recipe.name


@by_name
def test_a_recipe_is_the_published_one_of_its_level(recipe):
    parsed = values_of(parse(recipe))
    assert parsed["level"] == recipe.stem.partition("-")[0]
    names = ("temperature", "span_mask_length", "num_train_epochs", "max_seq_length")
    assert tuple(parsed[name] for name in names) == PUBLISHED[parsed["level"]]
    assert (parsed["per_device_train_batch_size"], parsed["learning_rate"]) == (200, 2e-5)
    assert (parsed["lr_scheduler_type"], parsed["max_grad_norm"], parsed["weight_decay"]) == ("constant", 0, 0.01)
    assert (parsed["augmentation"], parsed["loss"], parsed["keep_duplicates"]) == ("span", "nt_xent", True)


@by_name
def test_every_value_names_its_source(recipe):
    head, _, body = recipe.read_text().partition("\n\n")
    assert "arXiv 2104.08027" in head and f"--config recipes/{recipe.name}" in head
    assert all(re.fullmatch(r"\w+: \S.*  # \S.*", line) for line in body.splitlines()) and body


@pytest.mark.parametrize(("name", "noise_and_pooling"), SENTENCES.items())
def test_the_rows_of_table_3(name, noise_and_pooling):
    parsed = values_of(parse(FOLDER / f"{name}.yaml"))
    assert (parsed["dropout_rate"], parsed["drophead_rate"], parsed["pooling"]) == noise_and_pooling
    assert parsed["model_name_or_path"] == ("roberta-base" if "roberta" in name else "bert-base-uncased")
    assert parsed["pad_to"] == (None if "roberta" in name else 50)  # only the mean with padding depends on it
    assert parsed["mask_token"] == ("[MASK]" if "roberta" in name else None)


def test_a_flag_beats_a_recipe():
    recipe = FOLDER / "sentence-roberta-drophead.yaml"
    parsed = values_of(parse(recipe, "--drophead_rate", "0.1", "--model_name_or_path", "distilroberta-base"))
    assert (parsed["drophead_rate"], parsed["model_name_or_path"]) == (0.1, "distilroberta-base")
    assert parsed["temperature"] == 0.04


# Table 15
MODELS = {
    "": "bert-base-uncased",
    "-ar": "aubmindlab/bert-base-arabertv02",
    "-es": "dccuchile/bert-base-spanish-wwm-uncased",
    "-et": "tartuNLP/EstBERT",
    "-fr": "camembert-base",
    "-it": "dbmdz/bert-base-italian-uncased",
    "-pl": "dkleczek/bert-base-polish-uncased-v1",
    "-ru": "DeepPavlov/rubert-base-cased",
    "-tr": "dbmdz/bert-base-turkish-uncased",
    "-zh": "bert-base-chinese",
}


def test_the_models_are_those_of_table_15():
    for suffix, model in MODELS.items():
        for level in ("word", "sentence"):
            recipe = FOLDER / f"{level}-bert{suffix}.yaml"
            if recipe.exists():
                assert yaml.safe_load(recipe.read_text())["model_name_or_path"] == model
    for level in ("word", "sentence"):
        multilingual = yaml.safe_load((FOLDER / f"{level}-mbert.yaml").read_text())
        assert multilingual["model_name_or_path"] == "bert-base-multilingual-uncased"


def test_only_what_the_paper_does_not_say_is_ours():
    for recipe in RECIPES:
        ours = {line.partition(":")[0] for line in recipe.read_text().splitlines() if "# ours" in line}
        assert ours <= {"span_mask_min_chars"}, recipe.name


def test_there_is_one_for_every_published_row():
    words = {"word-bert", "word-mbert", *(f"word-bert-{code}" for code in "ar es et fr it pl ru tr zh".split())}
    phrases = {"phrase-bert", "phrase-pubmedbert"}
    others = {"sentence-mbert", "sentence-bert-ar", "sentence-bert-es", "sentence-bert-ru"}
    assert {path.stem for path in RECIPES} == words | phrases | others | set(SENTENCES)

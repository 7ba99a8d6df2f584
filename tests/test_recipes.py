"""Tests that every recipe of Mirror-BERT parses, gives the values it says, and says where each is from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from mirror.common.config_parser import load_recipe
from mirror.common.errors import InputError
from mirror.training.arguments import parse_arguments
from studies.setup import recipes


FOLDER = Path(__file__).resolve().parents[1] / "mirror" / "recipes"
LATER = sorted(FOLDER.glob("*simcse-*.yaml"))  # methods that came after
RECIPES = sorted(path for path in FOLDER.glob("*.yaml") if path not in LATER and not path.name.startswith("cmlm-"))
# level: temperature, span, epochs, longest text; as published
PUBLISHED = {"word": (0.2, 0, 2, 25), "phrase": (0.04, 2, 2, 25), "sentence": (0.04, 5, 1, 50)}
MODELS = {  # Table 15
    "ar": "aubmindlab/bert-base-arabertv02",
    "es": "dccuchile/bert-base-spanish-wwm-uncased",
    "et": "tartuNLP/EstBERT",
    "fr": "camembert-base",
    "it": "dbmdz/bert-base-italian-uncased",
    "pl": "dkleczek/bert-base-polish-uncased-v1",
    "ru": "DeepPavlov/rubert-base-cased",
    "tr": "dbmdz/bert-base-turkish-uncased",
    "zh": "bert-base-chinese",
}


def parse(recipe: Path, *argv: str) -> tuple:
    return parse_arguments(["--config", str(recipe), "--dataset_name", "x", "--use_cpu", *argv])


def values_of(parsed: tuple) -> dict:
    return {key: value for group in parsed for key, value in vars(group).items()}


def check_recipe(recipe: Path, paper: str, *argv: str) -> dict:
    """Check that a recipe parses to the values it says, each with its source. Return them."""
    content, parsed = yaml.safe_load(recipe.read_text()), values_of(parse(recipe, *argv))
    assert {key: parsed[key] for key in content} == content
    head, _, body = recipe.read_text().partition("\n\n")
    assert f"arXiv {paper}" in head and f"--config {recipe.stem}" in head
    assert all(re.fullmatch(r"\w+: \S.*  # \S.*", line) for line in body.splitlines()) and body
    return parsed


@pytest.mark.parametrize("recipe", LATER, ids=lambda path: path.stem)
def test_a_recipe_of_a_later_method_is_that_of_its_paper(recipe):
    repeats = recipe.stem.startswith("esimcse")
    parsed = check_recipe(recipe, "2109.04380" if repeats else "2104.08821", "--data_dir", "x")
    assert (parsed["loss"], parsed["temperature"], parsed["pooling"]) == ("one_way", 0.05, "cls")
    assert parsed["projection_head"] and parsed["load_best_model_at_end"]
    assert repeats == (parsed["augmentation"] == "repeat")


def test_a_study_gives_the_same_values_as_flags():
    for name, settings in recipes().items():
        if "level" in settings:  # the others are CMLM's
            flags = [item for key, value in settings.items() for item in (f"--{key}", str(value))]
            parsed = values_of(parse_arguments([*flags, "--use_cpu"]))
            assert {key: parsed[key] for key in settings} == settings, name


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_the_published_one_of_its_level(recipe):
    parsed = check_recipe(recipe, "2104.08027")
    assert parsed["level"] == recipe.stem.partition("-")[0]
    names = ("temperature", "span_mask_length", "num_train_epochs", "max_seq_length")
    assert tuple(parsed[name] for name in names) == PUBLISHED[parsed["level"]]
    assert (parsed["per_device_train_batch_size"], parsed["learning_rate"]) == (200, 2e-5)
    assert (parsed["lr_scheduler_type"], parsed["max_grad_norm"], parsed["weight_decay"]) == ("constant", 0, 0.01)
    assert (parsed["augmentation"], parsed["loss"], parsed["keep_duplicates"]) == ("span", "nt_xent", True)


def test_a_flag_beats_a_recipe():
    recipe = FOLDER / "sentence-roberta-drophead.yaml"
    parsed = values_of(parse(recipe, "--drophead_rate", "0.1", "--model_name_or_path", "distilroberta-base"))
    assert (parsed["drophead_rate"], parsed["model_name_or_path"]) == (0.1, "distilroberta-base")
    assert parsed["temperature"] == 0.04


def test_the_rows_of_table_3_and_the_models_of_table_15():
    """Each row: model, dropout, drophead, pooling, mask. The mean with padding is over the longest text, as in the code."""
    expected = {
        "sentence-bert": ("bert-base-uncased", 0.1, 0.0, "mean_padded", None, None),
        "sentence-bert-drophead": ("bert-base-uncased", 0.0, 0.2, "mean_padded", None, None),
        "sentence-roberta": ("roberta-base", 0.1, 0.0, "cls", None, "[MASK]"),
        "sentence-roberta-drophead": ("roberta-base", 0.0, 0.05, "cls", None, "[MASK]"),
    }
    flags = ("model_name_or_path", "dropout_rate", "drophead_rate", "pooling", "pad_to", "mask_token")
    for name, row in expected.items():
        parsed = values_of(parse(FOLDER / f"{name}.yaml"))
        assert tuple(parsed[flag] for flag in flags) == row, name
    models = {path.stem: yaml.safe_load(path.read_text())["model_name_or_path"] for path in RECIPES}
    levels = {level: {name for name in models if name.startswith(level)} for level in PUBLISHED}
    assert levels["phrase"] == {"phrase-bert", "phrase-pubmedbert"}
    for level, codes in {"word": "ar es et fr it pl ru tr zh", "sentence": "ar es ru"}.items():
        names = {f"{level}-bert-{code}": MODELS[code] for code in codes.split()}
        names |= {f"{level}-bert": "bert-base-uncased", f"{level}-mbert": "bert-base-multilingual-uncased"}
        assert {name: models[name] for name in names} == names
        assert levels[level] == names.keys() | {name for name in expected if name.startswith(level)}


@pytest.mark.parametrize("text", ["seed: &a 1\nmax_steps: *a\n", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"])
def test_aliases_are_refused_before_they_are_expanded(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match=r"recipe.yaml: YAML aliases \(\*name\) are not supported; write the value"):
        load_recipe(str(tmp_path / "recipe.yaml"))

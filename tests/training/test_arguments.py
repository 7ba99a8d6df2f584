"""Precedence of flag, recipe and preset; refusals of values."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mirror.assets import EMBEDDED_MODEL
from mirror.common.errors import InputError
from mirror.training.arguments import parse_arguments
from mirror.training.config import MirrorConfig, choose_precision
from mirror.training.options import LEVELS, default_pooling


@pytest.fixture
def parse(tmp_path):
    def run(*argv: str) -> MirrorConfig:
        return parse_arguments([*argv, "--output_dir", str(tmp_path)])[2]

    return run


@pytest.fixture
def recipe(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_the_released_code_s_optimizer_is_the_default(parse):
    training = parse("--model_name_or_path", "bert-base-uncased")
    training.resolve_for("bert-base-uncased", "bert")
    assert (training.learning_rate, training.lr_scheduler_type, training.weight_decay) == (2e-5, "constant", 0.01)
    assert (training.max_grad_norm, training.dataloader_drop_last, training.train_batch_size) == (0, True, 200)


def test_select_by_alone_means_the_test_on_own_text(parse):
    chosen = [parse(*argv).select_by for argv in ((), ("--select_by",), ("--select_by", "own_text"))]
    assert chosen == [None, "own_text", "own_text"]


def test_the_embedded_model_has_a_rate_of_its_own_which_a_flag_beats(parse, tmp_path):
    copy = shutil.copytree(EMBEDDED_MODEL, tmp_path / "copy")
    for model in (EMBEDDED_MODEL, copy):
        for argv, rate in (((), 1e-4), (("--learning_rate", "1e-5"), 1e-5)):
            config = parse(*argv)
            config.resolve_for(str(model), "bert")
            assert config.learning_rate == rate
    weights = load_file(copy / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] += 1
    save_file(weights, copy / "model.safetensors", {"format": "pt"})  # another model of the same shape
    config = parse()
    config.resolve_for(str(copy), "bert")
    assert config.learning_rate == 2e-5


@pytest.mark.parametrize("level", LEVELS)
def test_presets(parse, level):
    config = parse("--level", level)
    config.resolve_for("bert-base-uncased", "bert")
    preset = LEVELS[level]
    assert {name: getattr(config, name) for name in preset} == preset
    assert config.dropout_rate == 0.1


def test_the_presets_are_the_paper_s():
    """Mirror-BERT, section 3 and appendix B. The shortest text that is masked is the released code's, passages are ours."""
    names = ("temperature", "span_mask_length", "span_mask_min_chars", "num_train_epochs", "max_seq_length", "pooling")
    table = {level: tuple(preset.get(name) for name in names) for level, preset in LEVELS.items()}
    assert table == {
        "word": (0.2, 0, 30, 2, 25, "cls"),
        "phrase": (0.04, 2, 8, 2, 25, "cls"),
        "sentence": (0.04, 5, 30, 1, 50, None),
        "passage": (0.04, 50, 300, 1, 512, None),
    }
    assert {name: default_pooling(name) for name in ("bert", "mpnet", "roberta", "xlm-roberta", "camembert")} == {
        **dict.fromkeys(("bert", "mpnet"), "mean"),
        **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), "cls"),
    }


def test_flag_beats_recipe_beats_preset(parse, recipe):
    path = recipe(
        "level: word\ntemperature: 0.3\nnum_train_epochs: 5\nlearning_rate: 5e-5\n"
    )  # YAML takes 5e-5 for a string
    config = parse("--config", path, "--temperature", "0.1")
    assert config.level == "word" and config.span_mask_length == 0
    assert (config.temperature, config.num_train_epochs, config.learning_rate) == (0.1, 5, 5e-5)
    assert parse("--config", path, "--level", "phrase").span_mask_length == 2


def test_a_recipe_is_read_as_the_command_line_is(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("a text\n")
    data = parse_arguments(["--config", recipe("train_file: a.txt\nstreaming: yes\npair_separator: -|-\n")])[1]
    assert data.train_file == ["a.txt"] and data.streaming is True and data.pair_separator == "-|-"
    data = parse_arguments(["--config", recipe("train_file: [a.txt, b.txt]\ntext_column:\n")])[1]
    assert data.train_file == ["a.txt", "b.txt"] and data.text_column is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temprature: 0.1\n", "unknown key 'temprature'; did you mean 'temperature'"),
        ("- a\n", "expected a mapping"),
        ("learning_rate: fast\n", r"--config .*: argument --learning_rate: invalid float value: 'fast'"),
        ("a: [", "--config"),
        ("!!python/object/apply:os.system ['true']", "--config"),
        ("1: 2\n", "unknown key '1'"),
        ("help: true\n", "unknown key 'help'"),
        ("day: 2020-99-99\n", "--config .*: month must be in 1..12"),
        ("learning_rate: [1e-5, 2e-5]\n", r"learning_rate takes one value, got \[.*\]"),
        ("learning_rate: {a: 1}\n", "argument --learning_rate: invalid float value"),
        ("seed: 1.5\n", "argument --seed: invalid int value: '1.5'"),
        ("train_file: []\n", "argument --train_file: expected at least one argument"),
        ("lr_scheduler_type: bogus\n", "bogus"),
        ("learning_rate: .nan\n", "--learning_rate nan is not a finite number"),
    ],
)
def test_recipes_that_are_wrong(parse, recipe, text, message):
    with pytest.raises(InputError, match=message):
        parse("--config", recipe(text))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--level", "sentense"], "did you mean 'sentence'"),
        (["--loss", "nt_xnt"], "did you mean 'nt_xent'"),
        (["--temperature", "0"], "--temperature must be positive"),
        (["--dropout_rate", "1"], r"--dropout_rate must be a share or probability in \[0, 1\), got 1.0"),
        (["--drophead_rate", "-0.1"], "--drophead_rate must be a share or probability"),
        (["--span_mask_length", "-1"], "--span_mask_length must be 0 or more"),
        (["--train_file", "a", "--dataset_name", "b"], "not both"),
        (["--train_file", "a", "--dataset_config_name", "b"], "--train_file or --dataset_config_name, not both"),
        (["--label_smoothing_factor", "0.1"], "--label_smoothing_factor must stay 0.0"),
        (["--save_only_model", "true"], "--save_only_model must stay false: a run resumes from the optimizer's state"),
        (["--eval_on_start", "true"], "--eval_on_start scores what --eval_strategy, --eval_tasks or --keep ask for"),
        (["--pair_columns", "a", "b", "--pair_separator", "|"], "--pair_columns or --pair_separator, not both"),
        (["--pair_columns", "a"], "--pair_columns must be two names"),
        (["--max_train_samples", "0"], "--max_train_samples must be at least 1"),
        (["--config", "absent.yaml"], "absent.yaml"),
        (["--learning_rate", "nan"], "--learning_rate nan is not a finite number"),
        (["--warmup_steps", "inf"], "--warmup_steps inf is not a finite number"),
    ],
)
def test_values_that_are_wrong(parse, argv, message):
    with pytest.raises(InputError, match=message):
        parse(*argv)


def test_one_value_is_a_list_of_one_and_a_weight_a_number(tmp_path):
    config = MirrorConfig(output_dir=str(tmp_path), merge=0.5, eval_tasks="stsb_dev", matryoshka_dims=64)
    assert (config.merge, config.eval_tasks, config.matryoshka_dims) == ("0.5", ["stsb_dev"], [64])


def test_the_best_checkpoint_is_that_of_the_own_text_unless_named(parse):
    evaluated = ("--eval_strategy", "steps", "--eval_steps", "1", "--save_strategy", "steps", "--save_steps", "1")
    config = parse(*evaluated, "--load_best_model_at_end", "true")
    assert (config.metric_for_best_model, config.greater_is_better) == ("own_text", True)
    assert parse(*evaluated, "--eval_tasks", "stsb_dev").metric_for_best_model == "stsb_dev"


def test_drophead_takes_the_place_of_dropout(parse):
    assert parse("--drophead_rate", "0.2").dropout_rate == 0.0
    assert parse("--drophead_rate", "0.2", "--dropout_rate", "0.1").dropout_rate == 0.1


def test_precision_is_chosen_unless_said(monkeypatch):
    assert choose_precision(True, None, True)[:2] == (True, False)
    assert choose_precision(False, None, True)[:2] == (False, False)
    assert choose_precision(None, True, True) == (False, False, "CPUs do not train in float16")
    bf16, fp16, reason = choose_precision(None, None, True)
    assert not fp16 and reason.startswith("auto") and isinstance(bf16, bool)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert choose_precision(None, None, False)[:2] == (False, True)
    assert choose_precision(None, None, True) == (bf16, False, reason)  # a CPU does not train in float16


def test_a_run_on_a_cpu_has_no_subnormal_numbers(parse):
    small = torch.tensor(2e-38)  # float32 is normal from 1.2e-38 on
    torch.set_flush_denormal(False)
    assert small / 10 > 0
    parse("--use_cpu")
    assert small / 10 == 0

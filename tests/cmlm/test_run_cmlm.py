"""Tests of run_cmlm.py: stage after stage from the command line to a checkpoint, its errors, and the recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from mirror.cmlm.reading import read_stage_data
from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.tools.train_cmlm import main, parse_cmlm_arguments


RECIPE_FOLDER = Path(__file__).resolve().parents[2] / "mirror" / "recipes"
RECIPES = sorted(RECIPE_FOLDER.glob("cmlm-*.yaml"))
SMALL = "--max_seq_length 16 --per_device_train_batch_size 8 --max_steps 3 --disable_tqdm true --num_projections 4"


@pytest.fixture
def corpus(sentences, tmp_path) -> dict[str, str]:
    """Paths of documents, bitext and NLI."""
    documents = ["\n".join(sentences[start : start + 6]) for start in range(0, 240, 6)]
    (tmp_path / "documents.txt").write_text("\n\n".join(documents))
    pairs = list(zip(sentences[:100], sentences[100:200], strict=True))
    (tmp_path / "bitext.tsv").write_text("en\txx\n" + "\n".join("\t".join(pair) for pair in pairs))
    labels = ["entailment", "neutral", "contradiction"]
    rows = [{"premise": a, "hypothesis": b, "label": labels[i % 3]} for i, (a, b) in enumerate(pairs)]
    (tmp_path / "nli.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return {name: str(tmp_path / name) for name in ("documents.txt", "bitext.tsv", "nli.jsonl")}


def run(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["run_cmlm.py", *SMALL.split(), *arguments])
    main()


def test_stage_after_stage(bert_folder, corpus, sentences, tmp_path, monkeypatch):
    """The stages of the paper's best row, each from the folder of the one before."""
    folders = [bert_folder, *(str(tmp_path / name) for name in ("cmlm", "both", "nli"))]
    data = [
        ("cmlm", "--train_file", corpus["documents.txt"]),
        ("cmlm_bitext", "--train_file", corpus["documents.txt"], "--bitext_file", corpus["bitext.tsv"]),
        ("nli", "--nli_file", corpus["nli.jsonl"]),
    ]
    vectors = []
    for start, end, (stage, *files) in zip(folders, folders[1:], data, strict=False):
        run(monkeypatch, "--stage", stage, "--model_name_or_path", start, "--output_dir", end, *files)
        vectors.append(Encoder.from_pretrained(end).encode(sentences[:5]))
        results = json.loads((Path(end) / "train_results.json").read_text())
        assert min(results["cosine_after_reload"].values()) > 0.9999
        assert results["settings"]["stage"] == stage and results["corpus"]
        assert f"stage `{stage}`" in (Path(end) / "README.md").read_text()
        assert str(tmp_path) not in (Path(end) / "README.md").read_text() + json.dumps(results["settings"])
    assert not np.allclose(vectors[0], vectors[1], atol=1e-4) and not np.allclose(vectors[1], vectors[2], atol=1e-4)


def test_files_of_another_stage_are_named(corpus, caplog):
    _, data, _ = parse_cmlm_arguments(["--train_file", corpus["documents.txt"], "--bitext_file", corpus["bitext.tsv"]])
    assert read_stage_data("cmlm", data)[1] is None and "--bitext_file: not read in the stage cmlm" in caplog.text


def test_a_later_stage_keeps_the_pooling_unless_told_otherwise(bert_folder, corpus, tmp_path, monkeypatch):
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    start = ("--model_name_or_path", bert_folder, "--train_file", corpus["documents.txt"], "--pooling", "cls")
    run(monkeypatch, *start, "--output_dir", first)
    later = ("--model_name_or_path", first, "--stage", "bitext", "--bitext_file", corpus["bitext.tsv"])
    run(monkeypatch, *later, "--output_dir", second)
    run(monkeypatch, *later, "--output_dir", third, "--pooling", "max")
    assert [Encoder.from_pretrained(folder).pooling for folder in (first, second, third)] == ["cls", "cls", "max"]
    assert json.loads((Path(second) / "train_results.json").read_text())["settings"]["pooling"] == "cls"


@pytest.mark.parametrize(
    ("flags", "report"),
    [
        ("--train_file documents.txt --streaming", {}),
        ("--stage bitext --bitext_file bitext.tsv --mini_batch_size 3 --optimizer lamb", {"pairs": 100}),
        ("--train_file documents.txt --sentence_vector proj --skip_connection", {"cmlm": 40}),  # Table 7
        ("--train_file documents.txt --num_projections 0", {"cmlm": 40}),  # its control
    ],
)
@pytest.mark.usefixtures("corpus")
def test_variants_are_saved_as_they_were_trained(bert_folder, tmp_path, monkeypatch, flags, report):
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "--model_name_or_path", bert_folder, "--output_dir", "out", *flags.split())
    results = json.loads((tmp_path / "out" / "train_results.json").read_text())
    assert results["corpus"].keys() == report.keys() and min(results["cosine_after_reload"].values()) > 0.9999
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert len(modules) == (5 if "proj" in flags.split() else 2)  # three dense layers after the pooling


def test_the_bitext_loss_as_printed_is_one_flag_away(corpus):
    """Eq. (1): inner products, margin 0.3, no scale; by default cosines times 20 (LaBSE)."""
    files = ["--stage", "bitext", "--bitext_file", corpus["bitext.tsv"], "--use_cpu"]
    with pytest.raises(InputError, match="--eval_strategy: CMLM has nothing to evaluate"):
        parse_cmlm_arguments([*files, "--eval_strategy", "epoch"])
    *_, default = parse_cmlm_arguments(files)
    *_, printed = parse_cmlm_arguments([*files, "--normalize_embeddings", "false"])
    assert (default.normalize_embeddings, default.scale, default.margin) == (True, 20, 0.3)
    assert (printed.normalize_embeddings, printed.scale, printed.margin) == (False, 1, 0.3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--stage cmlm learns from documents; give --train_file or --dataset_name"),
        (["--stage", "bitext"], "--stage bitext learns from translations; give --bitext_file"),
        (["--stage", "quickthought"], "--stage quickthought learns from documents; give --train_file or --dataset_na"),
        (["--scale", "0"], "--scale must be positive, got 0.0. 20 suits cosines, 1 inner products"),
        (["--stage", "nli"], "--stage nli learns from labeled pairs; give --nli_file"),
        (["--stage", "cml"], "--stage 'cml' is unknown; one of .*; did you mean 'cmlm'"),
        (["--num_projektions", "3"], "unknown flag --num_projektions; did you mean '--num_projections'"),
        (["--num_projections", "-1"], "--num_projections must be 0 or more, got -1. The paper uses 15"),
        (["--num_projections", "0", "--skip_connection"], "--num_projections 0 leaves nothing for --skip_connection"),
        (["--mlm_probability", "0"], r"--mlm_probability must be a share in \(0, 1\], got 0.0. The paper uses 0.313"),
        (["--pooling", "pooler"], "--pooling 'pooler' is unknown; one of mean, cls, max"),
        (["--stage", "nli", "--mini_batch_size", "4"], "use --gradient_accumulation_steps instead"),
        (["--streaming", "--language_smoothing", "0.3"], "--language_smoothing needs the sizes of the files"),
    ],
)
def test_one_line_says_what_is_wrong(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_cmlm_arguments(arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--train_file", "short.txt"), "corpus file 1 has no document of two sentences"),
        (("--language", "en", "fr"), "--language: one for all files or one for each of 1, got 2: en fr"),
        (("--max_seq_length", "64"), "--max_seq_length 64 and 4 projected vectors before it .* give at most 60"),
    ],
)
def test_wrong_data_is_refused_before_training(bert_folder, corpus, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("One.\n\nTwo.\n")
    with pytest.raises(InputError, match=message):
        fixed = ("--model_name_or_path", bert_folder, "--output_dir", "out", "--train_file", "documents.txt")
        run(monkeypatch, *fixed, *flags)


# recipe: stage, steps, pairs on each of 32 devices times accumulation, from scratch; sections 3, 4.2 and 4.4
SCHEDULES = {
    "cmlm-base-en": ("cmlm", 1_000_000, 64, True),
    "cmlm-large-en": ("cmlm", 1_000_000, 64, True),
    "cmlm-multilingual": ("cmlm", 2_000_000, 64, True),
    "cmlm-multilingual-first": ("cmlm", 1_500_000, 64, True),
    "cmlm-multilingual-s1": ("bitext", 1_000_000, 64, False),
    "cmlm-multilingual-s2": ("cmlm_bitext", 2_000_000, 64, True),
    "cmlm-multilingual-s3": ("cmlm_bitext", 1_000_000, 64, False),
    "cmlm-f-mbert": ("cmlm_bitext", 1_000_000, 64, False),
}


def parse_recipe(name: str, corpus: dict[str, str]):
    data = ["--train_file", corpus["documents.txt"], "--bitext_file", corpus["bitext.tsv"], "--use_cpu"]
    data += ["--nli_file", corpus["bitext.tsv"]]
    return parse_cmlm_arguments(["--config", str(RECIPE_FOLDER / f"{name}.yaml"), *data])


@pytest.mark.parametrize("name", SCHEDULES)
def test_recipes_are_the_published_schedules(name, corpus):
    script, _, config = parse_recipe(name, corpus)
    batch = config.per_device_train_batch_size * config.gradient_accumulation_steps
    assert (config.stage, config.max_steps, batch, config.from_scratch) == SCHEDULES[name]
    assert (config.optimizer, config.learning_rate, config.adam_beta1, config.adam_beta2) == ("lamb", 1e-3, 0.9, 0.999)
    assert (config.warmup_steps, config.lr_scheduler_type, config.max_seq_length) == (10_000, "linear", 256)
    assert (config.num_projections, config.language_smoothing, config.pooling) == (15, 1, "mean")
    if "cmlm" in config.stage:
        assert (config.mlm_probability, config.swap_probability) == (0.313, 0.5)
    if "bitext" in config.stage:  # Eq. (1) as printed
        assert (config.margin, config.scale, config.normalize_embeddings) == (0.3, 1, False)
    if config.stage == "cmlm_bitext":
        assert config.bitext_weight == 0.2
    if name == "cmlm-f-mbert":
        assert script.model_name_or_path == "bert-base-multilingual-cased"


def test_every_recipe_is_checked_and_every_value_names_its_source(corpus):
    assert {path.stem for path in RECIPES} == {*SCHEDULES, "cmlm-multilingual-nli"}
    assert parse_recipe("cmlm-multilingual-nli", corpus)[2].stage == "nli"
    for path in RECIPES:
        body = path.read_text().partition("\n\n")[2].splitlines()
        assert body and all("  # " in line or line == "stage: cmlm" for line in body), path

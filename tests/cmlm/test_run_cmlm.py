"""run_cmlm.py from the command line to a checkpoint, stage after stage, and what it says when something is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import run_cmlm
from mirror.cmlm.arguments import parse_cmlm_arguments
from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder


RECIPE_FOLDER = Path(__file__).resolve().parents[2] / "recipes"
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
    run_cmlm.main()


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


def test_the_variants_of_table_7(bert_folder, corpus, tmp_path, monkeypatch):
    common = ("--model_name_or_path", bert_folder, "--train_file", corpus["documents.txt"])
    run(monkeypatch, *common, "--output_dir", str(tmp_path / "proj"), "--sentence_vector", "proj", "--skip_connection")
    results = json.loads((tmp_path / "proj" / "train_results.json").read_text())
    assert min(results["cosine_after_reload"].values()) > 0.9999
    assert (
        len(json.loads((tmp_path / "proj" / "modules.json").read_text())) == 5
    )  # three dense layers after the pooling
    run(monkeypatch, *common, "--output_dir", str(tmp_path / "control"), "--num_projections", "0")
    assert Encoder.from_pretrained(str(tmp_path / "control")).encode(["a cat"]).shape == (1, 32)


def test_a_stream_trains(bert_folder, corpus, tmp_path, monkeypatch):
    run(
        *(monkeypatch, "--model_name_or_path", bert_folder, "--train_file", corpus["documents.txt"], "--streaming"),
        *("--output_dir", str(tmp_path / "out")),
    )
    assert json.loads((tmp_path / "out" / "train_results.json").read_text())["corpus"] == {}


def test_gradient_caching_and_lamb_from_the_command_line(bert_folder, corpus, tmp_path, monkeypatch):
    run(
        *(
            monkeypatch,
            "--model_name_or_path",
            bert_folder,
            "--stage",
            "bitext",
            "--bitext_file",
            corpus["bitext.tsv"],
        ),
        *("--output_dir", str(tmp_path / "out"), "--mini_batch_size", "3", "--optimizer", "lamb"),
        *("--language_smoothing", "0.3"),
    )
    assert (tmp_path / "out" / "train_results.json").exists()


def test_the_bitext_loss_as_printed_is_one_flag_away(corpus):
    """Eq. (1): inner products, margin 0.3, no scale; by default cosines times 20 (LaBSE)."""
    files = ["--stage", "bitext", "--bitext_file", corpus["bitext.tsv"], "--use_cpu"]
    with pytest.raises(InputError, match="--eval_strategy: CMLM has nothing to evaluate on the way"):
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
        (
            ["--stage", "quickthought"],
            "--stage quickthought learns from documents; give --train_file or --dataset_name",
        ),
        (["--scale", "0"], "--scale must be above 0, got 0.0; 20 suits cosines, 1 inner products"),
        (["--stage", "nli"], "--stage nli learns from labelled pairs; give --nli_file"),
        (["--stage", "cml"], "--stage 'cml' is unknown; one of .*; did you mean 'cmlm'"),
        (["--num_projektions", "3"], "unknown flag --num_projektions; did you mean '--num_projections'"),
        (["--num_projections", "-1"], "--num_projections must be 0 or more, got -1; the paper uses 15"),
        (["--num_projections", "0", "--skip_connection"], "--num_projections 0 leaves nothing for --skip_connection"),
        (["--mlm_probability", "0"], r"--mlm_probability is a share in \(0, 1\], got 0.0; the paper uses 0.313"),
        (["--pooling", "pooler"], "--pooling 'pooler' is unknown; one of mean, cls, max"),
        (["--stage", "nli", "--mini_batch_size", "4"], "use --gradient_accumulation_steps instead"),
        (["--streaming", "--language_smoothing", "0.3"], "--language_smoothing needs the sizes of the files"),
    ],
)
def test_one_line_says_what_is_wrong(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_cmlm_arguments(arguments)
    assert "\n" not in str(caught.value)


def test_wrong_data_is_refused_before_training(bert_folder, corpus, tmp_path, monkeypatch):
    (tmp_path / "short.txt").write_text("One.\n\nTwo.\n")
    common = ("--model_name_or_path", bert_folder, "--output_dir", str(tmp_path / "out"))
    with pytest.raises(InputError, match="corpus file 1 has no document of two sentences"):
        run(monkeypatch, *common, "--train_file", str(tmp_path / "short.txt"))
    with pytest.raises(InputError, match="--language: one for all files or one for each of 1, got 2: en fr"):
        run(monkeypatch, *common, "--train_file", corpus["documents.txt"], "--language", "en", "fr")
    with pytest.raises(
        InputError,
        match="--max_seq_length 64 and 4 projected vectors before it .* the model has 64, so give at most 60",
    ):
        run(monkeypatch, *common, "--train_file", corpus["documents.txt"], "--max_seq_length", "64")
    with pytest.raises(InputError, match="100 pairs do not fill one batch of 101"):
        run(
            *(monkeypatch, *common, "--stage", "cmlm_bitext", "--train_file", corpus["documents.txt"]),
            *("--bitext_file", corpus["bitext.tsv"], "--per_device_train_batch_size", "101"),
        )


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


def test_a_recipe_of_an_unknown_model_is_one_line(corpus, tmp_path, monkeypatch):
    """The multilingual recipes start from a folder that the user makes."""
    recipe = str(RECIPE_FOLDER / "cmlm-multilingual.yaml")
    with pytest.raises(InputError, match="out/multilingual-vocabulary") as caught:
        run(
            *(monkeypatch, "--config", recipe, "--train_file", corpus["documents.txt"]),
            *("--output_dir", str(tmp_path / "out")),
        )
    assert "\n" not in str(caught.value) and not (tmp_path / "out" / "config.json").exists()

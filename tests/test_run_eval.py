"""End-to-end tests of run_eval.py: flags, exit status, output files and one-line errors."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest
import torch

import run_eval
from mirror.common.errors import InputError, run_main
from mirror.evaluation import retrieval
from mirror.evaluation.results import result_paths
from mirror.modeling.encoder import Encoder
from tests.evaluation.folder import write_tsv
from tests.processes import run_two_processes


ROOT = Path(__file__).resolve().parents[1]
OURS = {"mirror"}  # loggers whose information is shown


@pytest.fixture(scope="module")
def data_dir(sentences, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    words = sorted({word for sentence in sentences for word in sentence.split()})
    rows = [(words[n % 90], words[(n * 7 + 3) % 90], round(4 * ((n * 13) % 65) / 64, 3)) for n in range(65)]
    write_tsv(folder / "wordsim/rg65.tsv", ("word1", "word2", "score"), rows)
    for number, language in enumerate(("es", "ar")):
        scores = [min((n * 29) % 251 / 50, 5) for n in range(250)]
        rows = [("x", sentences[n % 240], sentences[(n * 11 + number) % 240], s) for n, s in enumerate(scores)]
        write_tsv(folder / f"sts/sts17_{language}.tsv", ("subset", "sentence1", "sentence2", "score"), rows)
    return folder


def evaluate(monkeypatch, *flags) -> None:
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *map(str, flags)])
    run_eval.main()


def without_seconds(path: Path) -> dict:
    record = json.loads(path.read_text(encoding="utf-8"))
    for task in record["tasks"].values():
        assert task.pop("seconds") >= 0
    return record


def test_results_json_has_all_documented_fields_and_is_reproducible(
    bert_folder, data_dir, tmp_path, monkeypatch, capsys, caplog
):
    caplog.set_level("INFO")
    flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--tasks", "rg65", "multilingual_sts"]
    flags += ["--skip_missing", "--data_dir", data_dir, "--max_seq_length", 32]
    evaluate(monkeypatch, *flags, "--output_dir", tmp_path / "one")
    table = capsys.readouterr().out
    assert f"mirror.tools.search {bert_folder}" in caplog.messages[-1]  # the next command
    record = without_seconds(tmp_path / "one" / "results.json")
    evaluate(monkeypatch, *flags, "--output_dir", tmp_path / "two")
    assert record == without_seconds(tmp_path / "two" / "results.json")
    evaluate(monkeypatch, *flags, "--output_dir", tmp_path / "one")  # again, now with the cached embeddings
    assert record == without_seconds(tmp_path / "one" / "results.json")

    assert record["model_name_or_path"] == bert_folder
    assert (record["pooling"], record["max_seq_length"], record["dtype"]) == ("mean", 32, "float32")
    assert list(record["tasks"]) == ["rg65", "sts17_es", "sts17_ar"]
    assert record["missing"] == ["sts_ru"]
    assert record["group_members_missing"] == {"multilingual_sts": ["sts_ru"]}
    scores = [record["tasks"][name]["main_score"] for name in ("sts17_es", "sts17_ar")]
    assert record["groups"]["multilingual_sts"] == pytest.approx(sum(scores) / 2)
    for task in record["tasks"].values():
        assert -1 <= task["main_score"] <= 1 and task["main_score"] != 0 and task["num_examples"] in (65, 250)
        assert {"metric", "protocol", "data_sha256"} <= task.keys()
    assert f"{record['tasks']['rg65']['main_score']:.4f}" in table
    for name in ("results.md", "results.csv", "results.tex", "run.json", "scores.png", "embeddings"):
        assert (tmp_path / "one" / name).exists()


def test_several_models_are_shown_side_by_side(bert_folder, data_dir, tmp_path, monkeypatch, capsys, caplog):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    other = tmp_path / "bert-base-spanish-wwm-uncased"  # has the name of a published system, so its row is found
    model = AutoModelForMaskedLM.from_pretrained(bert_folder)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight += torch.randn_like(model.bert.embeddings.word_embeddings.weight)
    model.save_pretrained(other)
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(other)
    flags = ["--models", bert_folder, other, "--pooling", "cls", "--tasks", "rg65", "sts17_es"]
    with caplog.at_level(logging.INFO):
        evaluate(monkeypatch, *flags, "--data_dir", data_dir, "--output_dir", tmp_path / "out", "--no_cache")
    assert {record.name.partition(".")[0] for record in caplog.records if record.levelno < logging.WARNING} <= OURS
    (files,) = (message for message in caplog.messages if message.startswith("Saved results to "))
    stems = {line.split()[0]: line.split()[1:] for line in files.splitlines()[1:]}
    named = {Path(first).with_suffix(s) for first, more in stems.items() for s in (Path(first).suffix, *more)}
    assert {tmp_path / "out" / path for path in named} == {p for p in (tmp_path / "out").rglob("[!_]*") if p.is_file()}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rg65", "sts17_es"]
    first, second = Path(bert_folder).name, other.name
    labels = [first, second, f"published: {second} cls", "difference", f"change from {first}", "change in percent"]
    assert [line.strip().split("  ")[0] for line in lines[1:]] == labels
    assert lines[3].split()[-1] == "0.5260"
    paths = (tmp_path / "out" / name / "results.json" for name in (first, second))
    one, two = (json.loads(path.read_text())["tasks"]["rg65"]["main_score"] for path in paths)
    assert one != two


def test_two_encoders_score_bli_and_are_named_in_the_results(bert_folder, tmp_path, monkeypatch):
    """An encoder for each language; with the same model twice the score is that of one encoder."""
    words = [f"{a}{b}" for a in ("cat", "dog", "bird", "fish") for b in range(750)]
    for name, chosen in (("train1k", words[:1000]), ("test2k", words[1000:])):
        rows = [(word, word[::-1]) for word in chosen]
        write_tsv(tmp_path / f"data/bli/en-fr.{name}.tsv", ("source", "target"), rows)
    flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--tasks", "bli_en_fr", "--no_cache"]
    flags += ["--max_seq_length", 8, "--batch_size", 512, "--data_dir", tmp_path / "data"]
    evaluate(monkeypatch, *flags, "--output_dir", tmp_path / "one")
    evaluate(monkeypatch, *flags, "--output_dir", tmp_path / "two", "--second_model_name_or_path", bert_folder)
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert two["second_model_name_or_path"] == bert_folder and "second_model_name_or_path" not in one
    assert two["tasks"]["bli_en_fr"]["train1k"] == one["tasks"]["bli_en_fr"]["train1k"]
    assert "one encoder for both languages" in one["tasks"]["bli_en_fr"]["protocol"]
    assert "an encoder for each language" in two["tasks"]["bli_en_fr"]["protocol"]


def test_a_second_run_uses_the_cache_of_the_first(bert_folder, data_dir, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)  # outside of a git repository, where git does not complain
    flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--data_dir", data_dir]
    evaluate(monkeypatch, *flags, "--tasks", "sts17_es", "--output_dir", tmp_path / "one", "--no_cache")
    assert not (tmp_path / "one" / "embeddings").exists()
    flags += ["--cache_dir", tmp_path / "cache"]
    evaluate(monkeypatch, *flags, "--tasks", "sts17_es", "--output_dir", tmp_path / "one")
    monkeypatch.setattr(Encoder, "_encode_unique", None)
    evaluate(monkeypatch, *flags, "--tasks", "sts17_es", "--output_dir", tmp_path / "two", "--truncate_dim", 8)
    assert json.loads((tmp_path / "two" / "results.json").read_text())["truncate_dim"] == 8
    assert "truncate_dim" not in json.loads((tmp_path / "one" / "results.json").read_text())
    assert (tmp_path / "one" / "run.json").exists() and "fatal" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tasks", "rg56"], "unknown task 'rg56'; did you mean 'rg65'"),
        (["--tasks", "men"], r"task men needs .*men3000\.tsv, which is missing"),
        (["--tasks", "men", "rw", "--skip_missing"], r"data for none of --tasks men rw; make it with: python \S+ --tasks men rw"),
        (["--tasks", "rg65", "--data_dir", "nowhere"], "--data_dir nowhere: no such folder"),
        (["--tasks", "rg65", "--pooling", "median"], "unknown pooling 'median'"),
        (["--tasks", "rg65", "--truncate_dim", "1000"], "--truncate_dim 1000: the vectors have 32"),
        (["--tasks", "rg65", "--truncate_dim", "none"], "--truncate_dim: 'none' is not a positive number"),
        (["--tasks", "rg65", "--dtype", "int8"], "--dtype: invalid choice"),
        (["--tasks", "rg65", "--models", "a"], "give either --model_name_or_path or --models"),
        (["--tasks", "rg65", "--second_model_name_or_path", "a"], "is for the tasks bli_..., and none of them is in --tasks"),
        (["--tasks", "rg65", "--bli_self_learning"], "--bli_self_learning is for the tasks bli_..., and none"),
        (["--tasks", "rg65", "--bel_add_mentions"], "--bel_add_mentions is for the tasks bel_..., and none"),
        (["--tasks", "rg65", "--senteval_dir", "/nope"], "--senteval_dir is for the tasks transfer_..., and none"),
        (["--tasks", "rg65", "--published", "bert-base"], "--published: no row of 'bert-base'"),
        (["--tasks", "rg65", "--fit_on", "nowhere.txt"], "--fit_on nowhere.txt: no such file"),
        (["--tasks", "rg65", "--fit_on", __file__], "--fit_on is for --remove_components; give both or none"),
        (["--tasks", "rg65", "--max_seq_length", "2"], "--max_seq_length 2: two special tokens and a word need 3"),
        (["--tasks", "rg65", "--output_dir", __file__], "--output_dir .* cannot be a folder: File exists"),
        (["--task", "rg65"], "unknown flag --task; did you mean '--tasks'"),
        ([], "--tasks is missing"),
    ],
)  # fmt: skip
def test_errors_are_one_line(bert_folder, data_dir, tmp_path, monkeypatch, flags, message):
    common = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--data_dir", data_dir]
    with pytest.raises(InputError, match=message) as error:
        evaluate(monkeypatch, *common, "--output_dir", tmp_path / "out", *flags)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_wrong_name_is_reported_before_another_model_is_scored(bert_folder, data_dir, tmp_path, monkeypatch):
    flags = ["--tasks", "rg65", "--pooling", "mean", "--data_dir", data_dir, "--output_dir", tmp_path / "out"]
    with pytest.raises(InputError, match="cannot load model '/absent': there is no such folder"):
        evaluate(monkeypatch, "--models", bert_folder, "/absent", *flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", [("m 1", "m_1"), ("a/x", "a x", "b/x", "a/x"), ("M", "m")])
def test_two_models_never_write_to_one_folder(names, tmp_path):
    with pytest.raises(InputError, match=r"--models '.*' and '.*' would both write to .*; score one of them with"):
        result_paths(names, tmp_path)


def test_a_masked_lm_without_pooling_is_refused(bert_folder, data_dir, tmp_path, monkeypatch, capsys):
    flags = f"--model_name_or_path {bert_folder} --tasks rg65 --data_dir {data_dir} --output_dir {tmp_path}/out"
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *flags.split()])
    with pytest.raises(SystemExit, match="2"):
        run_main(run_eval.main)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error:"))
    assert "plain masked LM" in line and "--pooling" in line


def test_the_list_of_tasks_needs_no_model(data_dir, monkeypatch, capsys):
    monkeypatch.setattr(retrieval, "check_pairs", lambda part: None)  # or it reads every package of this machine
    evaluate(monkeypatch, "--list_tasks", "--data_dir", data_dir)
    out = capsys.readouterr().out
    assert re.search(r"x rg65\b", out) and re.search(r"[^x] men\b", out) and "multilingual_sts" in out


@pytest.mark.slow
def test_two_processes_write_one_result(bert_folder, data_dir, tmp_path, monkeypatch):
    flags = ["--model_name_or_path", bert_folder, "--pooling", "mean", "--tasks", "rg65", "--data_dir", str(data_dir)]
    evaluate(monkeypatch, *flags, "--output_dir", tmp_path / "one")
    done = run_two_processes("run_eval.py", *flags, "--output_dir", str(tmp_path / "two"))
    assert len(done.stdout.strip().splitlines()) == 2  # one table, printed by the main process
    one, two = (without_seconds(tmp_path / name / "results.json")["tasks"]["rg65"] for name in ("one", "two"))
    assert two["main_score"] == pytest.approx(one["main_score"], abs=1e-4)

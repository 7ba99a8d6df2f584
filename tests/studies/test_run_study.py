"""End-to-end tests of run_study.py: cells run once, each failure is one line, a dry run writes nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import run_eval
import run_study
from mirror.common.errors import InputError, run_main
from mirror.studies import execution, plan, processes, shared_cells
from mirror.studies.catalogue import STUDIES
from mirror.studies.cells import RATE, Cell, Claim, SecondEncoder, Study, main_scores
from mirror.training.arguments import parse_arguments
from tests.evaluation.folder import write_tsv


STUDY = Study(
    "A small study",
    (
        Cell("before", ("rg65",), pooling="mean"),
        Cell("after", ("rg65",), ("texts.txt",), "word", {RATE: 2.5}, drophead=True),
    ),
    main_scores(("rg65",)),
    published={"bert-base-uncased": {"after": {"rg65": 0.25}}},
    claims=(Claim("after", "before", "rg65"),),
)
# Fake scripts that log how they were called; the trained "model" stores its seed, which becomes the score.
FAKE_MIRROR = """
import json, pathlib, sys
args = sys.argv[1:]
value = lambda flag: args[args.index(flag) + 1]
here = pathlib.Path(__file__).parent
with (here / "calls.txt").open("a") as calls:
    calls.write("mirror " + " ".join(args) + "\\n")
if (here / ("fail" + value("--seed"))).exists():
    sys.exit("Traceback\\nerror: no luck with this seed")
folder = pathlib.Path(value("--output_dir"))
folder.mkdir()
(folder / "seed").write_text(value("--seed"))
versions = {"python": "3.14", "torch": "9.1", "transformers": "8.2", "sentence-transformers": "7.3"}
record = {"method": "mirror", "metrics": {}, "run": {}, "corpus": {}, "settings": {}, "cosine_after_reload": {}}
record |= {"hardware": "1 thread of an abacus", "versions": versions}
(folder / "train_results.json").write_text(json.dumps(record))
"""
FAKE_EVAL = """
import json, pathlib, sys
args = sys.argv[1:]
value = lambda flag: args[args.index(flag) + 1]
with (pathlib.Path(__file__).parent / "calls.txt").open("a") as calls:
    calls.write("eval " + " ".join(args) + "\\n")
seed = pathlib.Path(value("--model_name_or_path")) / "seed"
score = int(seed.read_text()) / 100 if seed.exists() else 0.1
folder = pathlib.Path(value("--output_dir"))
folder.mkdir(exist_ok=True)
(folder / "results.json").write_text(json.dumps({"tasks": {"rg65": {"main_score": score}}}))
"""


@pytest.fixture
def workplace(sentences, tmp_path, monkeypatch) -> Path:
    """Create a data folder with one task and one corpus, and declare the study `small`."""
    write_inputs(tmp_path, sentences)
    monkeypatch.setitem(STUDIES, "small", STUDY)
    monkeypatch.setattr(run_study, "prepare_environment", lambda num_processes: None)  # torch is imported already
    return tmp_path


def write_inputs(folder: Path, sentences: list[str]) -> None:
    words = sorted({word for sentence in sentences for word in sentence.split()})
    rows = [(words[n % 90], words[(n * 7 + 3) % 90], round(4 * ((n * 13) % 65) / 64, 3)) for n in range(65)]
    write_tsv(folder / "data/wordsim/rg65.tsv", ("word1", "word2", "score"), rows)
    (folder / "data/mirror_corpus").mkdir()
    (folder / "data/mirror_corpus/texts.txt").write_text("\n".join([*sentences, sentences[0], ""]))


@pytest.fixture
def fakes(workplace, monkeypatch) -> Path:
    (workplace / "run_mirror.py").write_text(FAKE_MIRROR)
    (workplace / "run_eval.py").write_text(FAKE_EVAL)
    monkeypatch.setattr(processes, "ROOT", workplace)
    return workplace


@pytest.fixture
def published_model(bert_folder, tmp_path) -> str:
    """Return a folder with the name of a published checkpoint."""
    return shutil.copytree(bert_folder, tmp_path / "models/bert-base-uncased")


def study(monkeypatch, workplace: Path, model: str, *flags) -> None:
    common = ["--data_dir", workplace / "data", "--output_dir", workplace / "out", "--model_name_or_path", model]
    argv = ["run_study.py", "small", *common, *flags]
    monkeypatch.setattr(sys, "argv", [str(item) for item in argv])
    run_study.main()


def calls(workplace: Path) -> list[str]:
    return (workplace / "calls.txt").read_text().splitlines()


def test_each_cell_is_run_once_and_reported(published_model, fakes, monkeypatch, capsys):
    study(monkeypatch, fakes, published_model, "--max_cells", 2, "--seeds", 33, 44, 55)
    assert len(calls(fakes)) == 3  # the base model is scored; the first seed is trained and scored
    assert "Not done: after-seed44, after-seed55." in (fakes / "out/table.md").read_text()
    study(monkeypatch, fakes, published_model, "--num_processes", 2, "--seeds", 33, 44, 55)
    assert len(calls(fakes)) == 7
    study(monkeypatch, fakes, published_model, "--seeds", 33, 44, 55)  # no cell is left to run
    assert len(calls(fakes)) == 7

    first = next(call for call in calls(fakes) if call.startswith("mirror"))
    for flags in ("--seed 33", "--level word", "--learning_rate 5e-05", "--drophead_rate 0.2"):
        assert flags in first
    page = (fakes / "out/table.md").read_text()
    assert "| after | 0.4400 ± 0.1100 |\n| published | 0.2500 |\n| difference | +0.1900 |" in page
    # mean .34, standard deviation .11, half the interval 4.3027 x .11 / sqrt(3)
    assert (
        "| after above before: rg65 |  | +0.3400 (+0.0667 to +0.6133) | agrees |\n\nVerdict: agrees (1 of 1).\n"
        in page
    )
    run_on = "\n- 1 thread of an abacus, python 3.14, torch 9.1, transformers 8.2, sentence-transformers 7.3\n"
    assert page.count(run_on) == 1
    assert "Not done" not in page and capsys.readouterr().out.count("| before | 0.1000 |") == 3
    assert (fakes / "out/figure.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((fakes / "out/study.json").read_text())
    assert (facts["study"], facts["model"]) == ("small", str(published_model))
    assert facts["published"] == {"after": {"rg65": 0.25}} and facts["notes"] in page
    assert "<svg" in (fakes / "out/figure.svg").read_text()
    assert len((fakes / "out/results.csv").read_text().splitlines()) == 5
    assert not list((fakes / "out").glob("*/model"))


def test_a_failed_cell_is_one_line_does_not_stop_the_others_and_is_retried(bert_folder, fakes, monkeypatch, capsys):
    (fakes / "fail33").touch()
    with pytest.raises(SystemExit, match="2"):
        run_main(lambda: study(monkeypatch, fakes, bert_folder, "--seeds", 33, 44))
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: 1 of 3 cells failed: after-seed33; run the same command again"
    )
    assert "| after | 0.4400 |" in (fakes / "out/table.md").read_text()
    assert not (fakes / "out/after-seed33/cell.json").exists()
    (fakes / "fail33").unlink()
    done = len(calls(fakes))
    study(monkeypatch, fakes, bert_folder, "--seeds", 33, 44, "--keep_models")
    assert [call.split()[0] for call in calls(fakes)[done:]] == ["mirror", "eval"]
    assert (fakes / "out/after-seed33/model/seed").exists()


def test_the_line_of_a_failed_cell_contains_the_reason(bert_folder, fakes, monkeypatch, caplog):
    (fakes / "fail33").touch()
    with caplog.at_level("INFO"), pytest.raises(InputError):
        study(monkeypatch, fakes, bert_folder, "--seeds", 33)
    (line,) = (record.message for record in caplog.records if "FAILED" in record.message)
    assert "after-seed33 FAILED: run_mirror.py exited with 1: no luck with this seed (full log: " in line


def test_a_cell_that_two_studies_share_is_run_once(bert_folder, fakes, monkeypatch):
    """Found by content: row, part and folders may differ; another model, corpus or data set may not."""
    cache = ["--seeds", 33, "--cache", fakes / "cells"]
    study(monkeypatch, fakes, bert_folder, *cache)
    assert len(calls(fakes)) == 3 and len(list((fakes / "cells").glob("*.json"))) == 2
    cells = (*STUDY.cells[:1], replace(STUDY.cells[1], row="another name", part="part"))
    monkeypatch.setitem(STUDIES, "small", replace(STUDY, cells=cells))
    moved = shutil.copytree(bert_folder, fakes / "moved")
    study(monkeypatch, fakes, moved, *cache, "--output_dir", fakes / "other")
    assert len(calls(fakes)) == 3
    assert "| another name | 0.3300 |" in (fakes / "other/table.md").read_text()
    study(monkeypatch, fakes, moved, *cache, "--output_dir", fakes / "other")  # and are this study's own from then on
    assert len(calls(fakes)) == 3

    (moved / "another_file").touch()
    (fakes / "data/mirror_corpus/texts.txt").write_text("other\ntexts\n")
    for function in (plan.corpus_facts, plan.folder_content):
        function.cache_clear()  # as in a new process
    study(monkeypatch, fakes, bert_folder, *cache, "--output_dir", fakes / "other corpus")
    assert len(calls(fakes)) == 5  # the base model is the same
    study(monkeypatch, fakes, moved, *cache, "--output_dir", fakes / "other model")
    assert len(calls(fakes)) == 8
    rows = (fakes / "data/wordsim/rg65.tsv").read_text()
    (fakes / "data/wordsim/rg65.tsv").write_text(rows.replace("0.0", "0.1", 1))
    shared_cells._data.cache_clear()
    study(monkeypatch, fakes, moved, *cache, "--output_dir", fakes / "other data")
    assert len(calls(fakes)) == 11


def test_a_run_can_select_its_checkpoint_in_a_study_that_does_not_ask_for_it(bert_folder, fakes, monkeypatch):
    study(monkeypatch, fakes, bert_folder, "--seeds", 33, "--", "--select_by", "own_text", "--validation_samples", 50)
    assert any("--select_by own_text" in call for call in calls(fakes))
    assert set(json.loads((fakes / "out/after-seed33/cell.json").read_text())["tasks"]) == {"rg65"}


def test_a_cache_that_cannot_be_written_is_refused_before_any_cell_runs(bert_folder, fakes, monkeypatch):
    (fakes / "file").touch()
    with pytest.raises(InputError, match=r"--cache .*file cannot be a folder: File exists; choose another path"):
        study(monkeypatch, fakes, bert_folder, "--cache", fakes / "file")
    assert not (fakes / "calls.txt").exists()


def test_a_study_goes_on_in_a_folder_that_was_moved(bert_folder, fakes, monkeypatch):
    study(monkeypatch, fakes, bert_folder, "--seeds", 33)
    (fakes / "out").rename(fakes / "elsewhere")
    study(monkeypatch, fakes, bert_folder, "--seeds", 33, "--output_dir", fakes / "elsewhere")
    assert len(calls(fakes)) == 3


def test_a_model_is_known_by_its_content(bert_folder, fakes, monkeypatch):
    """From another clone, by another path; but not with other weights under the same path."""
    moved = shutil.copytree(bert_folder, fakes / "moved")
    study(monkeypatch, fakes, bert_folder, "--seeds", 33)
    study(monkeypatch, fakes, moved, "--seeds", 33)
    monkeypatch.chdir(fakes)
    study(monkeypatch, fakes, "moved", "--seeds", 33)
    assert len(calls(fakes)) == 3
    (moved / "model.safetensors").write_bytes(b"other weights")
    plan.folder_content.cache_clear()  # as in a new process
    with pytest.raises(InputError, match="was created with another --model_name_or_path"):
        study(monkeypatch, fakes, moved, "--seeds", 33)


KILLED = "import os, signal\nos.kill({}, signal.SIGKILL)"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (KILLED.format("os.getpid()"), "run_mirror.py exited with -9: $ run_mirror.py "),
        (KILLED.format("os.getppid()"), "ended by SIGKILL: $ run_mirror.py "),
        ("import sys\nsys.exit(3)", "run_mirror.py exited with 3: $ run_mirror.py "),
        ("print('half')\n1 / 0", "run_mirror.py exited with 1: ZeroDivisionError: division by zero"),
    ],
)
def test_a_crash_costs_one_cell(bert_folder, fakes, monkeypatch, caplog, script, reason):
    (fakes / "run_mirror.py").write_text(f"import sys\nif '33' in sys.argv:\n    exec({script!r})\n{FAKE_MIRROR}")
    with caplog.at_level("INFO"), pytest.raises(InputError, match="1 of 3 cells failed: after-seed33"):
        study(monkeypatch, fakes, bert_folder, "--seeds", 33, 44)
    assert f"after-seed33 FAILED: {reason}" in caplog.text
    assert "| after | 0.4400 |" in (fakes / "out/table.md").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_what_is_done_and_ends_the_scripts(bert_folder, fakes, monkeypatch, caplog, number):
    """The second cell sends the signal to the study, and would take a minute."""
    waits = (
        f"import os, sys, time\nif '44' in sys.argv:\n    os.kill({os.getpid()}, {int(number)})\n    time.sleep(60)\n"
    )
    (fakes / "run_mirror.py").write_text(waits + FAKE_MIRROR)
    start, before = time.monotonic(), signal.getsignal(number)
    with caplog.at_level("INFO"), pytest.raises(SystemExit, match=str(128 + number)):
        study(monkeypatch, fakes, bert_folder, "--seeds", 33, 44, 55)
    assert time.monotonic() - start < 30 and not multiprocessing.active_children()
    assert "stopped; 2 of 4 cells are done; run the same command again for the rest" in caplog.text
    assert "| after | 0.3300 |" in (fakes / "out/table.md").read_text()  # as it stood
    assert signal.getsignal(number) is before
    (fakes / "run_mirror.py").write_text(FAKE_MIRROR)
    study(monkeypatch, fakes, bert_folder, "--seeds", 33, 44, 55)
    assert "| after | 0.4400 ± 0.1100 |" in (fakes / "out/table.md").read_text()


def test_a_signal_during_a_fork_is_not_lost(tmp_path, monkeypatch):
    """Python drops an exception in what runs after a fork, and it runs signal handlers there; any thread receives signals."""
    idle = threading.Event()
    threading.Thread(target=idle.wait, daemon=True).start()
    monkeypatch.setattr(processes, "environments", lambda count: [{}] * count)
    armed = [True]
    os.register_at_fork(after_in_parent=lambda: armed and armed.pop() and os.kill(os.getpid(), signal.SIGTERM))
    start = time.monotonic()
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        processes.run_in_processes([partial(time.sleep, 20)], [tmp_path / "log.txt"], 1, lambda *_: None)
    idle.set()
    assert time.monotonic() - start < 10 and not multiprocessing.active_children()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(processes.SIGNALS)


def test_a_dry_run_writes_nothing_and_estimates_the_duration(bert_folder, fakes, monkeypatch, capsys, caplog):
    with caplog.at_level("INFO"):
        study(monkeypatch, fakes, bert_folder, "--dry_run", "--max_train_samples", 100)
    assert capsys.readouterr().out.split() == ["before", "after-seed33", "after-seed44", "after-seed55"]
    # 3 seeds x 100 texts x 2 epochs at 200 texts/s, plus 4 x 60 s to score: 243 s
    assert (
        "4 cells: 0 done, 4 to run now with 6 training steps, about 4 min (200 texts/s in training and 60 s to score a "
        "cell, assumed)" in caplog.text
    )
    assert not (fakes / "out").exists() and not (fakes / "calls.txt").exists()


def test_a_folder_with_another_run_is_refused(bert_folder, fakes, monkeypatch):
    study(monkeypatch, fakes, bert_folder, "--seeds", 33)
    with pytest.raises(InputError, match=r"created with another --max_steps; give another --output_dir or delete"):
        study(monkeypatch, fakes, bert_folder, "--seeds", 33, "--", "--max_steps", 3)
    (fakes / "data/mirror_corpus/texts.txt").write_text("another corpus\n")
    plan.corpus_facts.cache_clear()  # as in a new process
    with pytest.raises(InputError, match=r"created with another texts\.txt"):
        study(monkeypatch, fakes, bert_folder, "--seeds", 33)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--", "--seed", "3"], "--seed after -- is set by run_study.py itself"),
        (["--", "--max_train_samples", "3"], "--max_train_samples must be given before the --"),
        (["--", "--max_steps"], "--max_steps after --: expected a number, got ''"),
        (["--", "--num_train_epochs", "two"], "--num_train_epochs after --: expected a number, got 'two'"),
        (
            ["--", "--per_device_train_batch_size", "0"],
            "--per_device_train_batch_size after --: expected a number of at least 1, got '0'",
        ),
        (["--", "stray"], "only flags of run_mirror.py or run_cmlm.py may follow --; 'stray' is not a flag"),
        (
            ["--corpus_dir", "nowhere"],
            r"no corpus nowhere/texts.txt \(in a checkout, python data_scripts/sample_sentences.py creates it\); --skip_missing",
        ),
        (["--rows", "befor"], "small has no row 'befor'; did you mean 'before'[?] .rows: 'before', 'after'."),
        (["--language_models", "fra"], "'fra' is not PART=MODEL"),
        (["--language_models", "fra=M"], "fra=M: this study has no fra; all its cells have one model"),
        (["--paper_models"], "the paper has one model for all cells of 'A small study'"),
        (["--", "--config", "mine.yaml"], "--config after -- is set by run_study.py itself"),
        (["--data_dir", "nowhere", "--corpus_dir", "elsewhere", "CORPUS"], "--data_dir nowhere: no such folder"),
        (["--model_name_or_path", "no/such-model"], "--model_name_or_path no/such-model"),
        (["--skip_missing", "--corpus_dir", "nowhere", "--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_errors_are_one_line_and_raised_before_any_cell_runs(bert_folder, fakes, monkeypatch, flags, message):
    flags = [str(fakes / "data/mirror_corpus") if flag == "CORPUS" else flag for flag in flags]
    with pytest.raises(InputError, match=message) as error:
        study(monkeypatch, fakes, bert_folder, *flags)
    assert "\n" not in str(error.value) and not (fakes / "out").exists()


def test_rows_are_run_alone_and_then_belong_to_the_whole_study(bert_folder, fakes, monkeypatch):
    study(monkeypatch, fakes, bert_folder, "--seeds", 33, "--rows", "before")
    assert [call.split()[0] for call in calls(fakes)] == ["eval"]
    page = (fakes / "out/table.md").read_text()
    assert "| before | 0.1000 |" in page and "| after" not in page
    study(monkeypatch, fakes, bert_folder, "--seeds", 33)
    assert [call.split()[0] for call in calls(fakes)] == ["eval", "mirror", "eval"]
    assert "| before | 0.1000 |\n| after | 0.3300 |" in (fakes / "out/table.md").read_text()


def test_flags_that_a_study_varies_are_refused(bert_folder, fakes, monkeypatch):
    cells = tuple(Cell(str(rate), ("rg65",), ("texts.txt",), flags={"dropout_rate": rate}) for rate in (0.1, 0.2))
    monkeypatch.setitem(STUDIES, "small", Study("S", cells, main_scores(("rg65",))))
    with pytest.raises(InputError, match="--dropout_rate after -- is varied by this study"):
        study(monkeypatch, fakes, bert_folder, "--", "--dropout_rate", "0.3")


def test_a_missing_corpus_is_reported_and_skipped(bert_folder, fakes, monkeypatch):
    study(monkeypatch, fakes, bert_folder, "--skip_missing", "--corpus_dir", "nowhere", "elsewhere")
    page = (fakes / "out/table.md").read_text()
    assert "- Left out of after: no corpus nowhere/texts.txt" in page
    assert "| before | 0.1000 |" in page


def test_cells_that_lack_the_same_data_share_one_line(bert_folder, fakes, monkeypatch):
    cells = (*STUDY.cells, Cell("other", ("stsb_dev", "rg65")), Cell("none", ("stsb_dev",)))
    monkeypatch.setitem(STUDIES, "small", replace(STUDY, cells=cells))
    study(monkeypatch, fakes, bert_folder, "--seeds", 33, "--skip_missing")
    assert "\n- Left out of other, none: no data for stsb_dev\n" in (fakes / "out/table.md").read_text()
    monkeypatch.setitem(STUDIES, "small", replace(STUDY, cells=cells[3:]))
    with pytest.raises(InputError, match="no cell of small can be run: left out of none: no data for stsb_dev"):
        study(monkeypatch, fakes, bert_folder, "--skip_missing")


def test_a_corpus_that_is_too_small_is_an_error(bert_folder, fakes, monkeypatch):
    cells = (Cell("500", ("rg65",), ("texts.txt",), flags={"max_train_samples": 500}),)
    monkeypatch.setitem(STUDIES, "small", Study("S", cells, main_scores(("rg65",))))
    with pytest.raises(InputError, match=r"texts\.txt: 240 distinct texts, 500 are needed"):
        study(monkeypatch, fakes, bert_folder)


SENTENCES = Study("Sentences", (Cell("after", ("rg65",), ("texts.txt",)),), main_scores(("rg65",)))


def trained_with(workplace: Path, number: int = 0) -> dict:
    """Parse the flags of a call of run_mirror.py by its own parser."""
    calls_of_mirror = [call.split()[1:] for call in calls(workplace) if call.startswith("mirror ")]
    script, data, config = parse_arguments(calls_of_mirror[number])
    return vars(script) | vars(data) | vars(config)


def test_a_published_model_is_trained_by_its_recipe_and_the_page_says_so(published_model, fakes, monkeypatch):
    monkeypatch.setitem(STUDIES, "small", SENTENCES)
    study(monkeypatch, fakes, published_model, "--seeds", 33, "--", "--warmup_steps", 2)
    settings = trained_with(fakes)
    assert (settings["pooling"], settings["pad_to"], settings["keep_duplicates"]) == ("mean_padded", 50, True)
    assert settings["model_name_or_path"] == str(published_model) and settings["seed"] == 33
    assert (
        "\n- Settings as published: recipes/sentence-bert.yaml, then --warmup_steps 2.\n"
        in (fakes / "out/table.md").read_text()
    )
    record = json.loads((fakes / "out/after-seed33/cell.json").read_text())
    assert record["texts"] == 241  # the repeated one too


def test_modern_takes_this_projects_defaults(published_model, fakes, monkeypatch):
    monkeypatch.setitem(STUDIES, "small", SENTENCES)
    study(monkeypatch, fakes, published_model, "--seeds", 33, "--modern")
    settings = trained_with(fakes)
    assert (settings["pooling"], settings["pad_to"], settings["keep_duplicates"]) == (None, None, False)
    assert "Settings: this project's defaults (--modern)" in (fakes / "out/table.md").read_text()
    with pytest.raises(InputError, match="created with another --dropout_rate, --keep_duplicates, "):
        study(monkeypatch, fakes, published_model, "--seeds", 33)


def test_a_model_that_no_recipe_names_is_trained_with_the_defaults_and_not_compared(bert_folder, fakes, monkeypatch):
    study(monkeypatch, fakes, bert_folder, "--seeds", 33)
    page = (fakes / "out/table.md").read_text()
    assert f"there is no recipe for {bert_folder} (word, drophead)." in page and "published |" not in page
    settings = trained_with(fakes)
    assert (settings["drophead_rate"], settings["dropout_rate"]) == (0.2, 0.0)  # the published rate of BERT


PAIR = Study(
    "A pair of languages",
    (
        Cell("before", ("rg65",), pooling="cls", part="en_fr", language="en", second=SecondEncoder("fr")),
        Cell("after", ("rg65",), ("texts.txt",), "word", part="en_fr", language="en",
             second=SecondEncoder("fr", ("french.txt",))),
    ),
    main_scores(("rg65",)),
)  # fmt: skip


def test_each_language_has_its_own_model_words_and_encoder(bert_folder, published_model, fakes, monkeypatch):
    monkeypatch.setitem(STUDIES, "small", PAIR)
    (fakes / "data/mirror_corpus/french.txt").write_text("un\ndeux\ntrois\n")
    study(
        monkeypatch, fakes, bert_folder, "--seeds", 33, "--keep_models", "--language_models", f"fr={published_model}"
    )
    before, first, _, after = calls(fakes)
    assert f"--model_name_or_path {bert_folder} " in before
    assert f"--second_model_name_or_path {published_model}" in before
    assert f"--model_name_or_path {bert_folder} --train_file {fakes}/data/mirror_corpus/texts.txt" in first
    assert trained_with(fakes, 1)["train_file"] == [f"{fakes}/data/mirror_corpus/french.txt"]
    assert trained_with(fakes, 1)["model_name_or_path"] == str(published_model)
    cell = fakes / "out/after-en_fr-seed33"
    assert (
        f"--model_name_or_path {cell}/model " in after and f"--second_model_name_or_path {cell}/second_model" in after
    )
    assert "second run_mirror.py" in json.loads((cell / "cell.json").read_text())["identity"]
    page = (fakes / "out/table.md").read_text()
    assert "Settings as published: recipes/word-bert.yaml." in page and f"for {bert_folder} (word)" in page


def test_a_language_that_the_study_does_not_have_is_reported(bert_folder, fakes, monkeypatch):
    monkeypatch.setitem(STUDIES, "small", PAIR)
    with pytest.raises(InputError, match="fra=M: this study has no fra; did you mean 'fr'.*; it has en, fr"):
        study(monkeypatch, fakes, bert_folder, "--language_models", "fra=M")
    with pytest.raises(InputError, match="--language_models fr=no/such-model: "):
        study(monkeypatch, fakes, bert_folder, "--language_models", "fr=no/such-model")


def test_a_recipe_without_a_model_is_named(fakes, monkeypatch, tmp_path):
    from mirror.studies import recipes

    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/word-x.yaml").write_text("level: word\n")
    monkeypatch.setattr(recipes, "RECIPES", tmp_path / "recipes")
    recipes.all_recipes.cache_clear()
    with pytest.raises(InputError, match=r"word-x\.yaml has no model_name_or_path"):
        recipes.find_recipe("bert-base-uncased", "word")
    (tmp_path / "recipes/word-x.yaml").unlink()
    with pytest.raises(InputError, match="no recipes in .*; install the package again"):
        recipes.find_recipe("bert-base-uncased", "word")


def test_processes_share_cores_and_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    processes.prepare_environment(3)
    assert processes.os.environ["OMP_NUM_THREADS"] == "2"
    assert [share["CUDA_VISIBLE_DEVICES"] for share in processes.environments(3)] == ["2", "3", "2"]


def test_the_estimate_uses_the_speed_of_finished_cells(bert_folder, fakes, monkeypatch):
    setup = plan.Setup(bert_folder, fakes / "data", (fakes / "data/mirror_corpus",), fakes / "out", (33, 44))
    jobs, left_out = plan.make_jobs(STUDY, setup)
    assert [job.texts for job in jobs] == [0, 480, 480] and left_out == []  # 240 distinct texts, two epochs
    assert pickle.loads(pickle.dumps(jobs)) == jobs  # for processes that are not forked
    done = [{"texts": 480, "seconds_training": 48, "seconds_scoring": 10}]
    seconds, basis = execution.estimated_seconds(jobs[1:], done, num_processes=2)
    assert seconds == pytest.approx(48 + 10)
    assert execution.estimated_seconds(jobs[2:], done, num_processes=2)[0] == seconds  # one cell is not shared
    assert basis == "10 texts/s in training and 10 s to score a cell, measured on 1 finished cell"


def test_the_base_model_is_scored_with_the_settings_of_its_checkpoints(bert_folder, fakes, monkeypatch):
    """Same maximum length, and the pooling of the cell, passed by flags that the real run_eval.py accepts."""
    study(monkeypatch, fakes, bert_folder, "--max_cells", 1, "--", "--max_seq_length", 24)
    monkeypatch.setattr(sys, "argv", calls(fakes)[0].replace("eval ", "run_eval.py ", 1).split())
    args = run_eval.parse_arguments()
    assert (args.model_name_or_path, args.tasks, args.pooling) == (bert_folder, ["rg65"], "mean")
    assert (args.max_seq_length, args.no_cache, args.published) == (24, True, "none")


@pytest.mark.slow
def test_a_cell_is_bit_for_bit_that_of_two_commands(bert_folder, workplace, tmp_path):
    """In a process of its own, because this one has threads."""
    code = (
        "import sys; from tests.studies import test_run_study as t; from mirror.studies.catalogue import STUDIES; "
        "from dataclasses import replace; import run_study; from mirror.common.errors import run_main; "
        "STUDIES['small'] = replace(t.STUDY, cells=t.STUDY.cells[1:]); run_main(run_study.main)"
    )
    flags = [
        "small",
        "--model_name_or_path",
        bert_folder,
        "--data_dir",
        "data",
        "--output_dir",
        "out",
        "--seeds",
        "33",
    ]
    flags += [
        "--keep_models",
        "--",
        "--max_steps",
        "2",
        "--per_device_train_batch_size",
        "20",
        "--max_seq_length",
        "24",
    ]
    several_threads = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    in_repository = {"env": several_threads | {"PYTHONPATH": str(processes.ROOT)}, "check": True, "cwd": workplace}
    subprocess.run([sys.executable, "-c", code, *flags], **in_repository)
    record = json.loads((workplace / "out/after-seed33/cell.json").read_text())
    trained = json.loads((workplace / "out/after-seed33/model/train_results.json").read_text())["settings"]
    assert record["texts"] == 40 and trained["seed"] == 33 and trained["learning_rate"] == pytest.approx(5e-5)
    assert trained["drophead_rate"] == 0.2 and trained["dropout_rate"] == 0.0 and trained["max_steps"] == 2

    here, commands = workplace / "out/after-seed33", (workplace / "out/after-seed33/log.txt").read_text().splitlines()
    here = here.rename(workplace / "by_the_study")
    for line in (line for line in commands if line.startswith("$ ")):
        script, *arguments = line.removeprefix("$ ").split()
        subprocess.run([sys.executable, processes.ROOT / script, *arguments], **in_repository)
    again = workplace / "out/after-seed33"
    assert (here / "model/model.safetensors").read_bytes() == (again / "model/model.safetensors").read_bytes()
    first, second = (json.loads((place / "scores/results.json").read_text()) for place in (here, again))
    first["tasks"]["rg65"].pop("seconds"), second["tasks"]["rg65"].pop("seconds")
    assert first == second and record["tasks"]["rg65"]["main_score"] == second["tasks"]["rg65"]["main_score"]


def test_a_part_of_a_study_has_its_own_model_unless_another_is_named(
    bert_folder, published_model, fakes, monkeypatch, tmp_path
):
    cells = (Cell("after", ("rg65",), ("texts.txt",), language="mine"),)
    models = {"mine": str(published_model)}
    monkeypatch.setitem(STUDIES, "small", Study("S", cells, main_scores(("rg65",)), models=models))
    study(monkeypatch, fakes, bert_folder, "--seeds", 33)
    named = ["--language_models", f"mine={bert_folder}", "--output_dir", tmp_path / "named"]
    study(monkeypatch, fakes, bert_folder, "--seeds", 33, *named)
    assert [trained_with(fakes, n)["model_name_or_path"] for n in (0, 1)] == [str(published_model), bert_folder]


def test_the_base_of_a_cell_that_is_an_encoder_is_scored_with_its_own_pooling(
    bert_folder, fakes, monkeypatch, tmp_path
):
    base = shutil.copytree(bert_folder, tmp_path / "encoder")
    (base / "mirror_config.json").write_text(json.dumps({"pooling": "max"}))
    monkeypatch.setitem(STUDIES, "small", Study("S", (Cell("before", ("rg65",)),), main_scores(("rg65",))))
    study(monkeypatch, fakes, base)
    assert "--pooling max " in calls(fakes)[0]

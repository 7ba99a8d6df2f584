"""End-to-end tests of run_study.py: cells run once, each failure is one line, a dry run writes nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import run_study
from mirror.common.errors import InputError, run_main
from studies import jobs, runner, setup
from studies.study import STUDIES, Cell
from tests.evaluation.folder import write_tsv
from tests.studies.fakes import FAKE_MIRROR, SENTENCES, STUDY, calls, declare, run


def new_process() -> None:
    """Forget the content of files, as a new process does."""
    for function in (setup.corpus_facts, setup.model_content, jobs.data_of):
        function.cache_clear()


# ---- Cells and table ---------------------------------------------------------------------------------------------------


def test_each_cell_is_run_once_and_reported(published_model, workplace, monkeypatch, capsys):
    run(monkeypatch, workplace, published_model, "--max_cells", 2, "--seeds", 33, 44, 55)
    assert len(calls(workplace)) == 3  # the base model is scored; the first seed is trained and scored
    assert "Not done: after-seed44, after-seed55." in (workplace / "out/table.md").read_text()
    run(monkeypatch, workplace, published_model, "--seeds", 33, 44, 55)
    assert len(calls(workplace)) == 7
    run(monkeypatch, workplace, published_model, "--seeds", 33, 44, 55)  # no cell is left to run
    assert len(calls(workplace)) == 7

    first = next(" ".join(call) for call in calls(workplace) if call[0] == "mirror")
    for flags in ("--seed 33", "--level word", "--learning_rate 5e-05", "--drophead_rate 0.2"):
        assert flags in first
    page = (workplace / "out/table.md").read_text()
    assert "| after | 0.4400 ± 0.1100 |\n| published | 0.2500 |\n| difference | +0.1900 |" in page
    # mean .34, standard deviation .11, half the interval 4.3027 x .11 / sqrt(3)
    line = "| after above before: rg65 |  | +0.3400 (+0.0667 to +0.6133) | as in the paper |\n"
    assert f"{line}\nVerdict: agrees (1 as in the paper).\n" in page
    run_on = "\n- 1 thread of an abacus, python 3.14, torch 9.1, transformers 8.2, sentence-transformers 7.3\n"
    assert page.count(run_on) == 1
    assert "Not done" not in page and capsys.readouterr().out.count("| before | 0.1000 |") == 3
    assert (workplace / "out/figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (workplace / "out/figure.svg").read_text()
    facts = json.loads((workplace / "out/study.json").read_text())
    assert (facts["study"], facts["model"], facts["model_type"]) == ("small", str(published_model), "bert")
    assert facts["published"] == {"after": {"rg65": 0.25}} and facts["notes"] in page
    assert len((workplace / "out/results.csv").read_text().splitlines()) == 5
    assert not list((workplace / "out").glob("*/model"))


def test_a_failed_cell_does_not_stop_the_others_and_is_retried(bert_folder, workplace, monkeypatch, capsys, caplog):
    (workplace / "fail33").touch()
    with caplog.at_level("INFO"), pytest.raises(SystemExit, match="2"):
        run_main(lambda: run(monkeypatch, workplace, bert_folder, "--seeds", 33, 44))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "error: 1 of 3 cells failed: after-seed33; run the same command again"
    (line,) = (record.message for record in caplog.records if "FAILED" in record.message)
    assert "after-seed33 FAILED: no luck with this seed (full log: " in line
    assert "| after | 0.4400 |" in (workplace / "out/table.md").read_text()
    assert not (workplace / "out/after-seed33/cell.json").exists()
    (workplace / "fail33").unlink()
    done = len(calls(workplace))
    run(monkeypatch, workplace, bert_folder, "--seeds", 33, 44, "--keep_models")
    assert [call[0] for call in calls(workplace)[done:]] == ["mirror", "eval"]
    assert (workplace / "out/after-seed33/model/seed").exists()


def test_a_dry_run_writes_nothing(bert_folder, workplace, monkeypatch, capsys, caplog):
    with caplog.at_level("INFO"):
        run(monkeypatch, workplace, bert_folder, "--dry_run")
    assert capsys.readouterr().out.split() == ["before", "after-seed33", "after-seed44", "after-seed55"]
    message = "4 cells: 0 done, 4 to run now, which takes an unknown time until the first cell is done"
    assert message in caplog.text and not (workplace / "out").exists() and not calls(workplace)


def test_a_study_has_its_own_number_of_seeds(bert_folder, workplace, monkeypatch, capsys):
    monkeypatch.setitem(STUDIES, "small", replace(STUDY, seeds=10))
    run(monkeypatch, workplace, bert_folder, "--dry_run")
    seeds = range(33, 133, 11)
    assert capsys.readouterr().out.split() == ["before", *(f"after-seed{seed}" for seed in seeds)]


def test_the_words_of_a_task_are_counted_in_the_corpus_of_each_row(bert_folder, workplace, monkeypatch):
    """Figure 8's blue bars. A corpus that is missing has none."""
    rows = [("red", "green", 1), ("Red", "blue", 2), ("null", "gray", 3)]
    write_tsv(workplace / "data/multisimlex/ENG.tsv", ("word1", "word2", "score"), rows)
    for name, words in (("10.txt", "red\nRED\nblue\nwhite\n"), ("20.txt", "null\n")):
        (workplace / "data/mirror_corpus" / name).write_text(words)
    cells = tuple(Cell(row, ("rg65",), (f"{row}.txt",), "word") for row in ("10", "20", "30"))
    declare(monkeypatch, *cells, title="Figure: ranks", figure="curve", ranks="multisimlex/ENG.tsv")
    run(monkeypatch, workplace, bert_folder, "--seeds", 33, "--skip_missing")
    assert json.loads((workplace / "out/study.json").read_text())["ranks"] == {"10": 2, "20": 1}
    assert "words of the test set" in (workplace / "out/figure.svg").read_text()


# ---- The same work as before -------------------------------------------------------------------------------------------


def test_a_cell_that_two_studies_share_is_run_once(bert_folder, workplace, monkeypatch, caplog):
    """Found by content: row, part and folders may differ; another model, corpus or data set may not."""
    cache = ["--seeds", 33, "--cache", workplace / "cells"]
    run(monkeypatch, workplace, bert_folder, *cache)
    assert len(calls(workplace)) == 3 and len(list((workplace / "cells").glob("*.json"))) == 2
    declare(monkeypatch, STUDY.cells[0], replace(STUDY.cells[1], row="another name", part="part"))
    moved = shutil.copytree(bert_folder, workplace / "moved")
    for _ in range(2):  # and they are this study's own from then on
        caplog.clear()
        with caplog.at_level("INFO"):
            run(monkeypatch, workplace, moved, *cache, "--output_dir", workplace / "other")
        assert len(calls(workplace)) == 3 and "2 cells: 2 done, 0 to run now" in caplog.text
    assert "| another name | 0.3300 |" in (workplace / "other/table.md").read_text()

    (moved / "another_file").touch()
    (workplace / "data/mirror_corpus/texts.txt").write_text("other\ntexts\n")
    new_process()
    run(monkeypatch, workplace, bert_folder, *cache, "--output_dir", workplace / "other corpus")
    assert len(calls(workplace)) == 5  # the base model is the same
    run(monkeypatch, workplace, moved, *cache, "--output_dir", workplace / "other model")
    assert len(calls(workplace)) == 8
    rows = (workplace / "data/wordsim/rg65.tsv").read_text()
    (workplace / "data/wordsim/rg65.tsv").write_text(rows.replace("0.0", "0.1", 1))
    new_process()
    run(monkeypatch, workplace, moved, *cache, "--output_dir", workplace / "other data")
    assert len(calls(workplace)) == 11
    monkeypatch.setattr(jobs, "versions", lambda: {"torch": "9.9"})
    run(monkeypatch, workplace, moved, *cache, "--output_dir", workplace / "other library")
    assert len(calls(workplace)) == 14


@pytest.mark.parametrize(
    ("flags", "file", "what"),
    [
        (["--", "--max_steps", 3], None, "run_mirror.py --max_steps"),
        ([], "data/mirror_corpus/texts.txt", "texts.txt"),
        ([], "data/wordsim/rg65.tsv", "data of rg65"),
        ([], "models/bert-base-uncased/model.safetensors", "run_eval.py --model_name_or_path"),
        (["--modern"], None, "run_mirror.py --dropout_rate, .*"),
    ],
)
def test_a_folder_with_another_run_is_refused(published_model, workplace, monkeypatch, flags, file, what):
    declare(monkeypatch, STUDY.cells[0], SENTENCES)
    run(monkeypatch, workplace, published_model, "--seeds", 33)
    if file:
        content = (workplace / file).read_bytes()
        (workplace / file).write_bytes(content.replace(b"0.0", b"0.1", 1) if "rg65" in file else content + b"\nmore\n")
        new_process()
    with pytest.raises(InputError, match=f"created with another {what}; give another --output_dir or delete"):
        run(monkeypatch, workplace, published_model, "--seeds", 33, *flags)


def test_two_runs_in_one_folder_are_refused(bert_folder, workplace, monkeypatch):
    code = "import sys; from mirror.common.files import lock_output_dir as lock; lock(sys.argv[1]); print(); input()"
    (workplace / "out").mkdir()
    command, pipe = [sys.executable, "-c", code, str(workplace / "out")], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=Path(run_study.__file__).parent) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match=f"out is in use by process {other.pid} .*; wait for its end"):
            run(monkeypatch, workplace, bert_folder)
        other.communicate(b"\n")
    run(monkeypatch, workplace, bert_folder, "--seeds", 33)
    assert len(calls(workplace)) == 3


# ---- Processes ---------------------------------------------------------------------------------------------------------

CRASHES = {  # by seed: what happens, and how it is reported
    "33": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL: $ run_mirror.py "),
    "55": ("sys.exit(3)", "$ run_mirror.py "),
    "66": ("print('half')\n1 / 0", "ZeroDivisionError: division by zero"),
}


def test_a_crash_costs_one_cell(bert_folder, workplace, real_processes, monkeypatch, caplog):
    crashes = {seed: script for seed, (script, _) in CRASHES.items()}
    crash = f"import sys\nfor seed in {crashes!r}.keys() & sys.argv:\n    exec({crashes!r}[seed])\n"
    (workplace / "run_mirror.py").write_text(crash + FAKE_MIRROR)
    with caplog.at_level("INFO"), pytest.raises(InputError, match="3 of 5 cells failed: after-seed"):
        run(monkeypatch, workplace, bert_folder, "--seeds", 33, 44, 55, 66, "--num_processes", 2)
    for seed, (_, reason) in CRASHES.items():
        assert f"after-seed{seed} FAILED: {reason}" in caplog.text
    assert caplog.text.count("SIGKILL often means that memory ran out") == 1
    assert "| after | 0.4400 |" in (workplace / "out/table.md").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_keeps_what_is_done(bert_folder, workplace, real_processes, monkeypatch, caplog, number):
    """The second cell sends the signal to the study, and would take a minute."""
    waits = (
        f"import os, sys, time\nif '44' in sys.argv:\n    os.kill({os.getpid()}, {int(number)})\n    time.sleep(60)\n"
    )
    (workplace / "run_mirror.py").write_text(waits + FAKE_MIRROR)
    start, before = time.monotonic(), signal.getsignal(number)
    with caplog.at_level("INFO"), pytest.raises(SystemExit, match=str(128 + number)):
        run(monkeypatch, workplace, bert_folder, "--seeds", 33, 44, 55)
    assert time.monotonic() - start < 50  # the cells have ended
    assert "stopped; 2 of 4 cells are done; run the same command again for the rest" in caplog.text
    assert "| after | 0.3300 |" in (workplace / "out/table.md").read_text()  # as it stood
    assert signal.getsignal(number) is before
    (workplace / "run_mirror.py").write_text(FAKE_MIRROR)
    run(monkeypatch, workplace, bert_folder, "--seeds", 33, 44)
    assert "| after | 0.3850 ± 0.0778 |" in (workplace / "out/table.md").read_text()


@pytest.mark.slow
def test_a_cell_that_outlives_its_study_is_not_run_twice(bert_folder, workplace, real_processes, monkeypatch, caplog):
    waits = "import pathlib, sys, time\npathlib.Path(sys.argv[0]).with_name('begun').touch()\ntime.sleep(60)\n"
    run(monkeypatch, workplace, bert_folder, "--seeds", 33, "--rows", "before")
    (workplace / "run_mirror.py").write_text(waits)
    place = setup.Setup(bert_folder, workplace / "data", (workplace / "data/mirror_corpus",), workplace / "out", (33,))
    job = jobs.make_jobs(STUDY, place)[0][1]
    other = runner.start_cell(job.write(keep_models=False), {})
    while not (workplace / "begun").exists():
        assert other.poll() is None
        time.sleep(0.02)
    with caplog.at_level("INFO"), pytest.raises(InputError, match="1 of 1 cells failed"):
        run(monkeypatch, workplace, bert_folder, "--seeds", 33)
    assert f"after-seed33 is in use by process {other.pid}" in caplog.text
    other.kill()
    other.wait()


# ---- Bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--", "--seed", "3"], "--seed after -- is set by run_study.py itself"),
        (["--", "--config", "mine.yaml"], "--config after -- is set by run_study.py itself"),
        (["--", "--max_train_samples", "3"], "--max_train_samples must be given before the --"),
        (["--", "--bff16"], "unknown flag --bff16"),
        (["--", "--max_steps", "two"], "argument --max_steps/--max-steps: invalid int value: 'two'"),
        (["--", "stray"], "only flags of run_mirror.py or run_cmlm.py may follow --; 'stray' is not a flag"),
        (
            ["--corpus_dir", "nowhere"],
            r"no corpus nowhere/texts.txt \(docs/studies/README.md .*; --skip_missing leaves",
        ),
        (["--cache", "FILE"], r"--cache .*texts.txt cannot be a folder: File exists; choose another path"),
        (["--rows", "befor"], "small has no row 'befor'; did you mean 'before'[?] .rows: 'before', 'after'."),
        (["--parts", "word"], "small has no part 'word' .it has no parts."),
        (["--language_models", "fra"], "'fra' is not PART=MODEL"),
        (["--language_models", "fra=M"], "fra=M: this study has no fra; all its cells have one model"),
        (["--paper_models"], "the paper has one model for all cells of 'A small study'"),
        (["--data_dir", "nowhere", "--corpus_dir", "elsewhere", "CORPUS"], "--data_dir nowhere: no such folder"),
        (["--model_name_or_path", "no/such-model"], "--model_name_or_path no/such-model"),
        (["--skip_missing", "--corpus_dir", "nowhere", "--bogus"], "unknown flag --bogus"),
    ],
)
def test_errors_are_one_line_and_raised_before_any_cell_runs(bert_folder, workplace, monkeypatch, flags, message):
    corpus = workplace / "data/mirror_corpus"
    places = {"CORPUS": corpus, "FILE": corpus / "texts.txt"}
    with pytest.raises(InputError, match=message) as error:
        run(monkeypatch, workplace, bert_folder, *(places.get(flag, flag) for flag in flags))
    assert "\n" not in str(error.value) and not list((workplace / "out").glob("[!_]*")) and not calls(workplace)


def test_flags_that_a_study_varies_and_corpora_that_are_too_small_are_refused(bert_folder, workplace, monkeypatch):
    declare(monkeypatch, *(replace(SENTENCES, row=str(rate), flags={"dropout_rate": rate}) for rate in (0.1, 0.2)))
    for flag in ("--dropout_rate", "--dropout-rate", "--dropout-rate=0.3"):
        with pytest.raises(InputError, match="--dropout_rate after -- is varied by this study"):
            run(monkeypatch, workplace, bert_folder, "--", flag, *(["0.3"] if "=" not in flag else []))
    with pytest.raises(InputError, match="--train_file after -- is set by run_study.py itself"):
        run(monkeypatch, workplace, bert_folder, "--", "--train-file", "other.txt")
    declare(monkeypatch, replace(SENTENCES, flags={"max_train_samples": 500}))
    with pytest.raises(InputError, match=r"texts\.txt: 240 distinct texts, 500 are needed"):
        run(monkeypatch, workplace, bert_folder)

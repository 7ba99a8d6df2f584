from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import run_eval
from mirror.common.errors import InputError
from mirror.evaluation import run
from mirror.evaluation.run import (
    Progress,
    all_groups,
    all_tasks,
    dataset_of,
    default_data_dir,
    listing,
    make_plan,
    resolve,
)
from mirror.evaluation.task import DataFile, Task, preparation
from tests.evaluation.folder import on_a_circle, pairs, write_tsv


ROOT = Path(__file__).resolve().parents[2]
PAIRS = DataFile("words.tsv", ("word1", "word2", "score"), rows=(2,), score_range=(0, 10))
HEADER = ("word1", "word2", "score")


def test_quotes_na_and_line_separators_are_text_and_blank_lines_are_skipped(tmp_path):
    text = 'word1\tword2\tscore\n"null\tNA\t1\n\na\u2028b\t\t2\n'
    (tmp_path / "words.tsv").write_text(text, encoding="utf-8")
    assert PAIRS.read(tmp_path) == {"word1": ['"null', "a\u2028b"], "word2": ["NA", ""], "score": ["1", "2"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("word1\tword2\nx\ty\n", r"words\.tsv: no column 'score'; the header has \['word1', 'word2'\]"),
        ("", "no column 'word1'"),
        ("word1\tword2\tscore\na\tb\t1\nc\td\n", "line 3: 2 fields, expected 3"),
        ("word1\tword2\tscore\na\tb\t1\n", "has 1 rows, expected 2"),
        ("word1\tword2\tscore\n\na\tb\t1\nc\td\t11\n", r"line 4: score '11' is not a number in \[0, 10\]"),
        ("word1\tword2\tscore\na\tb\tnan\nc\td\t1\n", "line 2: score 'nan'"),
        ("word1\tword2\tscore\na\tb\thigh\nc\td\t1\n", "line 2: score 'high'"),
    ],
)
def test_the_message_names_the_damage(tmp_path, text, message):
    (tmp_path / "words.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        PAIRS.read(tmp_path)


def test_a_missing_file_and_one_in_another_encoding(tmp_path):
    command = r"python \S*data_scripts/prepare_eval_data\.py --tasks TASK --output_dir"
    with pytest.raises(InputError, match=rf"words\.tsv is missing; make it with: {command}"):
        PAIRS.read(tmp_path)
    (tmp_path / "words.tsv").write_bytes(b"word1\tword2\tscore\n\xe9t\xe9\tb\t1\n")
    with pytest.raises(InputError, match=r"not UTF-8 \(byte 18\)"):
        PAIRS.read(tmp_path)


def test_the_command_that_makes_the_data_works_where_the_script_is(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert preparation(["sts", "men"], Path("my data")) == (
        "python data_scripts/prepare_eval_data.py --tasks sts men --output_dir 'my data'"
    )
    monkeypatch.chdir(tmp_path)
    script = preparation(["sts"], Path("data")).split()[1]
    assert Path(script).resolve() == ROOT / "data_scripts/prepare_eval_data.py"
    monkeypatch.setattr("mirror.evaluation.task.__file__", str(tmp_path / "site-packages/mirror/evaluation/task.py"))
    assert preparation(["sts"], Path("data")).endswith("(in a clone of the repository; pip installs no data_scripts)")


def test_the_hash_covers_every_file_in_order(tmp_path):
    first, second = (write_tsv(tmp_path / name, HEADER, [(name, "b", 1)] * 2) for name in ("x.tsv", "y.tsv"))
    files = (DataFile("x.tsv", HEADER), DataFile("y.tsv", HEADER))
    task = Task("t", "m", "p", files, score=lambda encode, data_dir: {})
    assert task.data_sha256(tmp_path) == hashlib.sha256(first.read_bytes() + second.read_bytes()).hexdigest()
    second.unlink()
    assert task.missing_files(tmp_path) == [str(second)]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return all_tasks(tmp_path_factory.mktemp("empty"))


def test_the_papers_averages_are_over_their_own_members(tasks):
    groups = all_groups(tasks)
    assert groups["sts"] == ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
    assert groups["multilingual_sts"] == ["sts17_es", "sts17_ar", "sts_ru"]
    assert groups["word"] == ["simlex999", "simverb3500", "men", "ws353", "rw", "rg65", "mturk287", "mturk771"]
    assert [len(groups[name]) for name in ("transfer", "bel", "bli", "xlbel")] == [9, 5, 6, 10]
    assert all(name == task.name and task.metric and task.protocol for name, task in tasks.items())


def test_groups_and_tasks_resolve_in_order_each_once(tasks):
    names = [task.name for task in resolve(["stsb", "multilingual_sts", "sts17_es", "stsb"], tasks)]
    assert names == ["stsb", "sts17_es", "sts17_ar", "sts_ru"]
    for wrong, right in (("simlex99", "simlex999"), ("multilingual-sts", "multilingual_sts")):
        with pytest.raises(InputError, match=f"unknown task '{wrong}'; did you mean '{right}'"):
            resolve([wrong], tasks)


def test_the_listing_marks_available_tasks(tmp_path):
    write_tsv(tmp_path / "wordsim/rg65.tsv", HEADER, pairs(65, top=4))
    text = listing(all_tasks(tmp_path), tmp_path)
    assert "group word, 1 of 8 available" in text and "in no group, 2 of" in text
    marked = {name: mark for mark, name in re.findall(rf"([x ]) ({'|'.join(all_tasks(tmp_path))})\b", text)}
    assert [name for name, mark in marked.items() if mark == "x"] == ["rg65", "docs_search", "docs_search_dev"]
    assert marked.keys() == all_tasks(tmp_path).keys()
    assert "accuracy: * -> eng, nearest by cosine" in text and text.count("one Spearman rho") == 6
    assert max(len(line) for line in text.splitlines() if line.startswith("    ")) <= 104


def test_every_task_has_the_name_of_its_data_set(tmp_path):
    sets = {name: task.dataset_fields() for name, task in all_tasks(tmp_path).items()}
    assert not [task for task, fields in sets.items() if fields["dataset_name"] == task]
    # The Hub joins results of one type, configuration and split under one name.
    keys = ("dataset_type", "dataset_config", "dataset_split")
    places = {tuple(fields.get(key) for key in keys) for fields in sets.values()}
    assert len(places) == len({fields["dataset_name"] for fields in sets.values()}) == len(sets)
    values = ("STS 2012", "mteb/sts12-sts", "default", "test")
    assert dataset_of("sts12") == sets["sts12"] == dict(zip(("dataset_name", *keys), values, strict=True))
    assert dataset_of("mine") == {"dataset_name": "mine", "dataset_type": "mine"}


def test_a_new_task_is_one_module_and_one_line(bert_folder, tmp_path, monkeypatch):
    """Run, table, model card and plot find the task of a new family without any other change."""
    file = DataFile("colors/pairs.tsv", ("name", "color"))
    write_tsv(tmp_path / "data" / file.path, file.columns, [("the cat", "red"), ("a dog", "blue")])

    def score(encode, data_dir):
        norms = np.linalg.norm(encode(file.read(data_dir)["name"]), axis=1)
        return {"main_score": float(norms.min() / norms.max()), "num_examples": 2}

    def plot(results, folder):
        scores = {model: entry["main_score"] for model, entry in results.items()}
        (folder / "colors.txt").write_text(str(scores), encoding="utf-8")
        return [folder / "colors.txt"]

    colors = ModuleType("colors")
    colors.tasks = lambda data_dir, options: [
        Task(
            name="colors", metric="ratio", protocol="smallest by largest norm", files=(file,), score=score,
            groups=("art",), dataset="Colors of Things", hub=("me/colors", "default", "test"), plot=plot,
        )
    ]  # fmt: skip
    families = run.families()
    monkeypatch.setattr(run, "families", lambda: (*families, colors))

    out = tmp_path / "out"
    flags = (
        f"--model_name_or_path {bert_folder} --pooling mean --tasks art --data_dir {tmp_path}/data --output_dir {out}"
    )
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *flags.split()])
    run_eval.main()
    record = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert record["groups"] == {"art": record["tasks"]["colors"]["main_score"]}
    assert "| colors | ratio | 2 | smallest by largest norm |" in (out / "results.md").read_text(encoding="utf-8")
    assert str(record["tasks"]["colors"]["main_score"]) in (out / "colors.txt").read_text(encoding="utf-8")
    assert dataset_of("colors")["dataset_type"] == "me/colors"
    assert "group art, 1 of 1 available" in listing(all_tasks(tmp_path / "data"), tmp_path / "data")


@pytest.fixture
def data_dir(tmp_path):
    write_tsv(tmp_path / "wordsim/rg65.tsv", HEADER, pairs(65, top=4))
    write_tsv(tmp_path / "wordsim/mturk287.tsv", HEADER, pairs(287)[::-1])
    for language in ("es", "ar"):
        write_tsv(tmp_path / f"sts/sts17_{language}.tsv", ("sentence1", "sentence2", "score"), pairs(250))
    write_tsv(tmp_path / "sts/sts_ru.tsv", ("sentence1", "sentence2", "score"), pairs(20))
    return tmp_path


def test_an_entry_has_all_documented_fields(data_dir, monkeypatch):
    monkeypatch.setenv("MIRROR_DATA_DIR", str(data_dir))
    assert default_data_dir() == data_dir
    result = make_plan(["rg65"]).run(on_a_circle)
    entry = result["tasks"]["rg65"]
    assert {"main_score", "metric", "protocol", "num_examples", "seconds", "data_sha256"} <= entry.keys()
    assert (entry["main_score"], entry["metric"]) == (pytest.approx(1), "spearman_cosine")
    assert result["groups"] == {} and result["missing"] == []


def test_a_complete_group_is_averaged_even_if_its_members_were_named(data_dir):
    for names in (["multilingual_sts"], ["sts_ru", "sts17_ar", "sts17_es"]):
        result = make_plan(names, data_dir).run(on_a_circle)
        assert result["groups"] == {"multilingual_sts": pytest.approx(1)}
        assert result["group_members_missing"] == {}


def test_an_incomplete_group_is_averaged_only_if_requested_and_lists_missing_members(data_dir):
    result = make_plan(["word"], data_dir, skip_missing=True).run(on_a_circle)
    assert result["group_members"]["word"] == ["rg65", "mturk287"]
    scores = [task["main_score"] for task in result["tasks"].values()]
    assert result["groups"]["word"] == pytest.approx(sum(scores) / 2)
    assert result["missing"] == ["simlex999", "simverb3500", "men", "ws353", "rw", "mturk771"]
    assert result["group_members_missing"]["word"] == result["missing"]
    assert make_plan(["rg65", "mturk287"], data_dir).run(on_a_circle)["groups"] == {}


def test_missing_data_is_an_error_before_anything_is_encoded(data_dir):
    def encode(texts):
        raise AssertionError("encoded before the data was checked")

    command = r"python \S+prepare_eval_data\.py --tasks rg65 men --output_dir \S+, or .*--skip_missing"
    with pytest.raises(InputError, match=rf"task men needs .*men3000\.tsv, which is missing; make it with: {command}"):
        make_plan(["rg65", "men"], data_dir).run(encode)
    message = "--data_dir nowhere: no such folder, and task rg65 needs .* make it with: python"
    with pytest.raises(InputError, match=message):
        make_plan(["rg65"], "nowhere", skip_missing=True).run(encode)


def test_a_damaged_file_is_an_error_even_with_skip_missing(data_dir):
    write_tsv(data_dir / "wordsim/rg65.tsv", HEADER, pairs(64, top=4))
    with pytest.raises(InputError, match=r"rg65\.tsv has 64 rows, expected 65"):
        make_plan(["sts17_es", "word"], data_dir, skip_missing=True)


def test_scores_outlive_a_task_that_fails_and_are_used_by_the_next_run(data_dir, tmp_path):
    plan, calls = make_plan(["rg65", "mturk287"], data_dir), []

    def fail_on_the_second_task(texts):
        calls.append(1)
        if len(calls) > 1:  # a task encodes all its words at once
            raise InputError("no vectors today")
        return on_a_circle(texts)

    progress = Progress(tmp_path / "unfinished.json", {"model": "a"})
    with pytest.raises(InputError, match="no vectors today"):
        plan.run(fail_on_the_second_task, progress=progress)
    kept = Progress(tmp_path / "unfinished.json", {"model": "a"})
    assert list(kept.tasks) == ["rg65"]
    calls.clear()
    scored = plan.run(lambda texts: calls.append(1) or on_a_circle(texts), progress=kept)
    assert list(scored["tasks"]) == ["rg65", "mturk287"] and len(calls) == 1
    assert not Progress(tmp_path / "unfinished.json", {"model": "b"}).tasks
    write_tsv(data_dir / "wordsim/rg65.tsv", HEADER, pairs(65, top=4)[::-1])  # other data: scored again
    calls.clear()
    make_plan(["rg65"], data_dir).run(lambda texts: calls.append(1) or on_a_circle(texts), progress=kept)
    assert calls
    kept.finish()
    assert not (tmp_path / "unfinished.json").exists()


@pytest.mark.filterwarnings("ignore")
def test_data_that_cannot_be_read_or_scored_is_one_line(data_dir, monkeypatch):
    write_tsv(data_dir / "qnli/dev.tsv", ("question", "sentence", "label"), [("a 1", "b 2", "entailment")] * 5463)
    with pytest.raises(InputError, match="task qnli: the score is nan, because its labels or scores are all the same"):
        make_plan(["qnli"], data_dir).run(on_a_circle)

    def unreadable(self, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.read_text", unreadable)
    with pytest.raises(InputError, match=r"rg65.tsv: \[Errno 13\] Permission denied"):
        make_plan(["rg65"], data_dir)

from __future__ import annotations

import pytest

from mirror.common.errors import InputError
from mirror.evaluation.progress import Progress
from mirror.evaluation.run import default_data_dir, groups_to_report, make_plan
from mirror.evaluation.sts import WORDS
from tests.evaluation.folder import on_a_circle, pairs, write_tsv


def run(encode, names, data_dir, **options) -> dict:
    return make_plan(names, data_dir, **options).run(encode)


@pytest.fixture
def data_dir(tmp_path):
    write_tsv(tmp_path / "wordsim/rg65.tsv", (*WORDS, "score"), pairs(65, top=4))
    write_tsv(tmp_path / "wordsim/mturk287.tsv", (*WORDS, "score"), pairs(287)[::-1])
    for language in ("es", "ar"):
        write_tsv(tmp_path / f"sts/sts17_{language}.tsv", ("sentence1", "sentence2", "score"), pairs(250))
    write_tsv(tmp_path / "sts/sts_ru.tsv", ("sentence1", "sentence2", "score"), pairs(20))
    return tmp_path


def test_an_entry_has_all_documented_fields(data_dir):
    result = run(on_a_circle, ["rg65"], data_dir)
    entry = result["tasks"]["rg65"]
    assert {"main_score", "metric", "protocol", "num_examples", "seconds", "data_sha256"} <= entry.keys()
    assert entry["main_score"] == pytest.approx(1)
    assert entry["metric"] == "spearman_cosine"
    assert len(entry["data_sha256"]) == 64
    assert result["groups"] == {}
    assert result["missing"] == []


def test_a_complete_group_is_averaged_even_if_its_members_were_named(data_dir):
    for names in (["multilingual_sts"], ["sts_ru", "sts17_ar", "sts17_es"]):
        result = run(on_a_circle, names, data_dir)
        assert result["groups"] == {"multilingual_sts": pytest.approx(1)}
        assert result["group_members_missing"] == {}


def test_an_incomplete_group_is_averaged_only_if_requested_and_lists_missing_members(data_dir):
    result = run(on_a_circle, ["word"], data_dir, skip_missing=True)
    assert result["group_members"]["word"] == ["rg65", "mturk287"]
    assert result["groups"]["word"] == pytest.approx(
        (result["tasks"]["rg65"]["main_score"] + result["tasks"]["mturk287"]["main_score"]) / 2
    )
    assert result["missing"] == ["simlex999", "simverb3500", "men", "ws353", "rw", "mturk771"]
    assert result["group_members_missing"]["word"] == result["missing"]
    assert run(on_a_circle, ["rg65", "mturk287"], data_dir)["groups"] == {}


def test_missing_data_is_an_error_before_anything_is_encoded(data_dir):
    def encode(texts):
        raise AssertionError("encoded before the data was checked")

    with pytest.raises(
        InputError,
        match=r"task men needs .*men3000\.tsv, which is missing; make it with: "
        r"python \S+prepare_eval_data\.py --tasks rg65 men --output_dir \S+, or .*--skip_missing",
    ):
        run(encode, ["rg65", "men"], data_dir)
    with pytest.raises(
        InputError, match=r"--data_dir nowhere: no such folder, and task rg65 needs .* make it with: python"
    ):
        run(encode, ["rg65"], "nowhere", skip_missing=True)


def test_a_damaged_file_is_an_error_even_with_skip_missing(data_dir):
    write_tsv(data_dir / "wordsim/rg65.tsv", (*WORDS, "score"), pairs(64, top=4))
    with pytest.raises(InputError, match=r"rg65\.tsv has 64 rows, expected 65"):
        make_plan(["sts17_es", "word"], data_dir, skip_missing=True)


def test_prepared_tasks_score_an_encoder_during_training(data_dir, monkeypatch):
    monkeypatch.setenv("MIRROR_DATA_DIR", str(data_dir))
    assert default_data_dir() == data_dir
    (task,) = make_plan(["rg65"]).tasks
    assert task.name == "rg65"
    assert task.score(on_a_circle)["main_score"] == pytest.approx(1)


def test_groups_to_report():
    groups = {"g": ["a", "b"], "h": ["c"], "i": ["d"]}
    assert groups_to_report(["g", "c"], ["a", "c"], groups) == {"g": ["a"], "h": ["c"]}
    assert groups_to_report(["i"], ["a"], groups) == {}


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
    write_tsv(data_dir / "wordsim/rg65.tsv", (*WORDS, "score"), pairs(65, top=4)[::-1])  # other data: scored again
    calls.clear()
    make_plan(["rg65"], data_dir).run(lambda texts: calls.append(1) or on_a_circle(texts), progress=kept)
    assert calls
    kept.finish()
    assert not (tmp_path / "unfinished.json").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_score_that_is_no_number_is_refused(data_dir):
    write_tsv(data_dir / "qnli/dev.tsv", ("question", "sentence", "label"), [("a 1", "b 2", "entailment")] * 5463)
    with pytest.raises(
        InputError, match=r"task qnli: the score is nan, because its labels or scores are all the same"
    ):
        run(on_a_circle, ["qnli"], data_dir)


def test_data_that_cannot_be_read_is_one_line(data_dir, monkeypatch):
    def unreadable(self, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.read_text", unreadable)
    with pytest.raises(InputError, match=r"rg65.tsv: \[Errno 13\] Permission denied"):
        make_plan(["rg65"], data_dir)

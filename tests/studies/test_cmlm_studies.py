"""CMLM's studies: chains of stages, each run once, resumed and shared; every study is run to its table with fake scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mirror.common.errors import InputError, run_main
from mirror.evaluation import plots
from mirror.tools.train_cmlm import parse_cmlm_arguments
from studies import cell, jobs, runner, setup
from studies.jobs import as_arguments, make_jobs
from studies.setup import Setup
from studies.study import STUDIES, Cell, Study
from tests.evaluation.folder import write_tsv
from tests.studies.fakes import RG65, calls, run, start_here, value, write_inputs


CMLM_STUDIES = [name for name in STUDIES if name.startswith("cmlm_")]


@pytest.fixture
def workplace(sentences, tmp_path, monkeypatch) -> Path:
    """Corpora of two languages, fake scripts in cells that run in this process, and data for every task."""
    write_inputs(tmp_path, sentences)
    for name in ("documents/en.txt", "documents/fi.txt", "bitext/fi-en.tsv", "nli/xnli.tsv"):
        (tmp_path / "corpora" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpora" / name).write_text(f"a few words of {name}\n")
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "start_cell", start_here)
    monkeypatch.setattr(plots, "FORMATS", (".png",))
    monkeypatch.setattr(jobs, "data_of", lambda tasks, *_: {task: ["protocol", "sha"] for task in tasks})
    return tmp_path


def study(monkeypatch, workplace: Path, name: str, model: str, *flags) -> str:
    """Run a study with one seed and return its page."""
    parts = sorted({cell.part for cell in STUDIES[name].cells if cell.part})
    if parts and "--language_models" not in flags:
        flags = ("--language_models", *(f"{part}={model}" for part in parts), *flags)
    run(monkeypatch, workplace, model, "--corpus_dir", workplace / "corpora", "--seeds", 33, *flags, name=name)
    return (workplace / "out" / "table.md").read_text(encoding="utf-8")


def stages(workplace: Path) -> list[list[str]]:
    return [call for call in calls(workplace) if call[0] == "cmlm"]


def names_of(found: list[list[str]]) -> list[str]:
    return sorted(Path(value(call, "--output_dir")).name.removesuffix("-seed33") for call in found)


@pytest.mark.parametrize("name", CMLM_STUDIES)
def test_every_study_is_run_to_its_table_and_figure(bert_folder, workplace, monkeypatch, name):
    page = study(monkeypatch, workplace, name, bert_folder)
    for row in STUDIES[name].rows:
        assert f"\n| {row} | 0." in page, row
    assert "Not done" not in page and "Left out" not in page
    assert (workplace / "out" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert not (workplace / "out" / "stages").exists()


def test_cells_share_the_stages_they_have_in_common_and_keep_them_for_other_rows(bert_folder, workplace, monkeypatch):
    """S1 and S3 begin with the same 1.5 million steps, and S3+NLI goes on from S3."""
    study(monkeypatch, workplace, "cmlm_table3", bert_folder, "--rows", "S3", "mBERT")
    assert names_of(stages(workplace)) == ["first", "first+cmlm_br"]
    study(monkeypatch, workplace, "cmlm_table3", bert_folder)
    names = ["f_mbert+mBERT", "first", "first+br", "first+cmlm_br", "first+cmlm_br+nli", "s2"]
    assert names_of(stages(workplace)) == names
    assert not (workplace / "out" / "stages").exists()
    by_name = {names_of([call])[0]: call for call in stages(workplace)}
    assert Path(value(by_name["first+cmlm_br"], "--model_name_or_path")).name == "first-seed33"
    assert value(by_name["first"], "--model_name_or_path") == bert_folder
    steps = [value(by_name[name], "--max_steps") for name in ("first", "first+br", "s2")]
    assert steps == ["1500000", "1000000", "2000000"]
    assert by_name["first"][by_name["first"].index("--language") :][1:3] == ["en", "fi"]


def test_stages_are_shared_by_studies_and_one_with_a_changed_byte_is_made_again(bert_folder, workplace, monkeypatch):
    shared = ["--stages_dir", workplace / "shared"]
    study(monkeypatch, workplace, "cmlm_table6", bert_folder, *shared)
    assert len(stages(workplace)) == 2
    study(monkeypatch, workplace, "cmlm_figure2", bert_folder, *shared, "--output_dir", workplace / "figure2")
    assert len(stages(workplace)) == 2
    file = workplace / "shared" / "first+cmlm_br-seed33" / "train_results.json"
    file.write_text(file.read_text().replace("an abacus", "an abacuz"))
    study(monkeypatch, workplace, "cmlm_figure3", bert_folder, *shared, "--output_dir", workplace / "figure3")
    assert len(stages(workplace)) == 3 and "an abacus" in file.read_text()


def test_a_stage_that_fails_is_resumed_and_the_stages_before_it_are_kept(bert_folder, workplace, monkeypatch, capsys):
    (workplace / "fail-nli").touch()
    with pytest.raises(SystemExit, match="2"):
        run_main(lambda: study(monkeypatch, workplace, "cmlm_table3", bert_folder))
    assert "1 of 6 cells failed: S3_NLI-seed33; run the same command again" in capsys.readouterr().err
    (workplace / "fail-nli").unlink()
    done = len(stages(workplace))
    page = study(monkeypatch, workplace, "cmlm_table3", bert_folder)
    (again,) = stages(workplace)[done:]
    assert value(again, "--stage") == "nli" and value(again, "--resume_from_checkpoint") == "true"
    assert "| S3+NLI | 0." in page


def test_a_model_of_another_paper_is_left_out_unless_it_is_named(bert_folder, workplace, monkeypatch):
    page = study(monkeypatch, workplace, "cmlm_table2", bert_folder, "--language_models", f"mBERT={bert_folder}")
    reason = "Left out of XLM-R-XLM-R: another model than the study's; name it with --language_models XLM-R=MODEL"
    assert reason in page and "| mBERT | 0." in page and "| XLM-R | 0." not in page


def make(name: str, model: str, workplace: Path, **fields) -> list[jobs.Job]:
    models = {cell.part: model for cell in STUDIES[name].cells if cell.part}
    places = (workplace, (workplace / "corpora",), workplace / "out", (33,), workplace / "stages")
    found, left_out = make_jobs(STUDIES[name], Setup(model, *places, language_models=models, **fields))
    assert not left_out
    return found


@pytest.mark.parametrize("modern", [False, True])
def test_one_folder_is_one_stage_in_all_studies(bert_folder, workplace, modern):
    """So that --stages_dir can be shared; Table 7's N = 15 is Table 1's CMLM base. run_cmlm.py takes every command."""
    identities = {}
    for name in CMLM_STUDIES:
        for stage in (each for job in make(name, bert_folder, workplace, modern=modern) for each in job.runs):
            if stage.folder not in identities:
                parse_cmlm_arguments([*as_arguments(stage.flags), "--use_cpu"])
            assert identities.setdefault(stage.folder, stage.identity) == stage.identity, (name, stage.folder)
    assert len(identities) == 5 + 2 + 6 + 6  # Tables 1, 2, 3 and 7; the others share these


# ---- Bad input ---------------------------------------------------------------------------------------------------------


def refused(monkeypatch, workplace: Path, model: str, message: str, *flags, name: str = "cmlm_table7") -> None:
    with pytest.raises(InputError, match=message) as caught:
        study(monkeypatch, workplace, name, model, *flags)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--", "--num_projections", 3], "--num_projections after -- is varied by this study; leave it out"),
        (["--", "--temprature", 3], "unknown flag --temprature"),
        (["--corpus_dir", "nowhere"], r"no documents/en\.\* in nowhere \(docs/studies/README.md explains"),
        (["--corpus_dir", "nowhere", "--skip_missing"], "no cell of cmlm_table7 can be run: left .*: no documents/en"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_run(bert_folder, workplace, monkeypatch, flags, message):
    refused(monkeypatch, workplace, bert_folder, message, *flags)
    assert not (workplace / "out").exists() and not calls(workplace)


def test_stages_of_other_flags_or_data_are_refused(bert_folder, workplace, monkeypatch):
    shared = ["--stages_dir", workplace / "shared"]
    study(monkeypatch, workplace, "cmlm_table7", bert_folder, *shared)
    other = [*shared, "--output_dir", workplace / "other"]
    message = r"en_n1-seed33\.json was created with another en_n1 --max_steps; give another --stages_dir or"
    refused(monkeypatch, workplace, bert_folder, message, *other, "--", "--max_steps", 3)
    text = (workplace / "corpora/documents/en.txt").read_text()
    (workplace / "corpora/documents/en.txt").write_text(text[::-1])  # of the same size
    setup.content_of.cache_clear()  # as in a new process
    refused(monkeypatch, workplace, bert_folder, "created with another documents/en.txt", *other)
    assert not (workplace / "other").exists()


def test_a_stage_whose_removal_was_interrupted_keeps_its_record(tmp_path, monkeypatch):
    """Otherwise the next run would refuse the folder as one that it did not make."""
    cell.remove_stages(tmp_path / "none")  # no error
    folder = tmp_path / "stages"
    for name in ("a-seed1", "b-seed1"):
        (folder / name).mkdir(parents=True)
        (folder / f"{name}.json").touch()
    removed = []
    monkeypatch.setattr(cell.shutil, "rmtree", lambda folder, ignore_errors: removed.append(folder))
    cell.remove_stages(folder)
    assert sorted(removed[:-1]) == [folder / "a-seed1", folder / "b-seed1"] and removed[-1] == folder


def test_a_stage_without_a_checkpoint_starts_again(bert_folder, workplace, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_study.py"])
    stage = make("cmlm_table7", bert_folder, workplace)[0].runs[0]
    command = jobs.command(stage.script, stage.flags)
    stage.folder.mkdir(parents=True)
    (stage.folder / "half.txt").touch()
    with pytest.raises(InputError, match="en_n1-seed33 was not made by run_study.py; give another --stages_dir"):
        cell.finish_stage(stage.folder, stage.identity, command)
    record = stage.folder.with_name("en_n1-seed33.json")
    record.write_text(json.dumps({"identity": stage.identity}))
    cell.finish_stage(stage.folder, stage.identity, command)
    (call,) = stages(workplace)
    assert "--resume_from_checkpoint" not in call and not (stage.folder / "half.txt").exists()
    cell.finish_stage(stage.folder, stage.identity, command)  # finished
    assert len(stages(workplace)) == 1


# ---- The real scripts --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_chain_is_trained_and_scored_by_the_real_scripts(bert_folder, sentences, tmp_path, monkeypatch):
    """S3+NLI: documents and translations of two languages, then labeled pairs."""
    write_inputs(tmp_path, sentences)
    pairs = list(zip(sentences[:60], sentences[60:120], strict=True))
    documents = "\n\n".join("\n".join(sentences[start : start + 6]) for start in range(0, 240, 6))
    (tmp_path / "corpora/documents").mkdir(parents=True)
    for language in ("en", "fi"):
        (tmp_path / "corpora/documents" / f"{language}.txt").write_text(documents)
    write_tsv(tmp_path / "corpora/bitext" / "fi-en.tsv", ("fi", "en"), pairs)
    labels = ("entailment", "neutral", "contradiction")
    rows = [(*pair, labels[n % 3]) for n, pair in enumerate(pairs)]
    write_tsv(tmp_path / "corpora/nli" / "xnli.tsv", ("premise", "hypothesis", "label"), rows)
    chain = STUDIES["cmlm_table3"].cells[3].chain
    cells = (Cell("S3+NLI", ("rg65",), chain=chain),)
    monkeypatch.setitem(STUDIES, "small", Study("S", cells, RG65, name="small", is_cmlm=True))
    flags = "--max_steps 2 --max_seq_length 16 --per_device_train_batch_size 8 --num_projections 3 --disable_tqdm true"
    own = ["--corpus_dir", tmp_path / "corpora", "--seeds", 33, "--modern", "--keep_models", "--"]
    run(monkeypatch, tmp_path, bert_folder, *own, *flags.split())

    record = json.loads((tmp_path / "out" / "S3_NLI-seed33" / "cell.json").read_text())
    assert f"| S3+NLI | {record['tasks']['rg65']['main_score']:.4f} |" in (tmp_path / "out" / "table.md").read_text()
    folders = [tmp_path / "out" / "stages" / f"first{rest}-seed33" for rest in ("", "+cmlm_br", "+cmlm_br+nli")]
    settings = [json.loads((folder / "train_results.json").read_text())["settings"] for folder in folders]
    assert [each["stage"] for each in settings] == ["cmlm", "cmlm_bitext", "nli"]
    assert record["run_on"]


def test_a_stage_that_would_discard_the_weights_of_the_one_before_is_refused(bert_folder, workplace, monkeypatch):
    message = "--from_scratch would discard the weights that stage 'br' starts from; leave it out"
    refused(monkeypatch, workplace, bert_folder, message, "--", "--from_scratch", name="cmlm_table3")

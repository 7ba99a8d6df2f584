"""CMLM's studies: chains of stages, each run once, resumed and shared; every study is run to its table with fake scripts."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import run_study
from mirror.cmlm.arguments import parse_cmlm_arguments
from mirror.common.errors import InputError, run_main
from mirror.studies import chains, execution, processes, stage_runs
from mirror.studies.catalogue import STUDIES
from mirror.studies.cells import Study, main_scores
from mirror.studies.chains import ChainCell, Stage
from mirror.studies.setup import Setup, paper_models
from mirror.studies.table import published_beside
from tests.evaluation.folder import write_tsv
from tests.studies.test_run_study import write_inputs


CMLM_STUDIES = [name for name in STUDIES if name.startswith("cmlm_")]
# Fake scripts that log how they were called. A stage fails if a file says so, after its first checkpoint.
FAKE_CMLM = """
import hashlib, json, pathlib, sys
args = sys.argv[1:]
value = lambda flag: args[args.index(flag) + 1]
here = pathlib.Path(__file__).parent
with (here / "calls.txt").open("a") as calls:
    calls.write(" ".join(args) + "\\n")
def write(folder, name, content):
    (folder / name).write_text(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content.encode()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({name: entry}))
folder = pathlib.Path(value("--output_dir"))
if (here / ("fail-" + value("--stage"))).exists():
    checkpoint = folder / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    write(checkpoint, "weights", "half")
    sys.exit("error: the power went out")
folder.mkdir(exist_ok=True)
(folder / "parent").write_text(value("--model_name_or_path"))
versions = {name: "1" for name in ("python", "torch", "transformers", "sentence-transformers")}
record = {"method": "cmlm", "metrics": {}, "run": {}, "corpus": {}, "settings": {}, "cosine_after_reload": {}}
write(folder, "train_results.json", json.dumps(record | {"hardware": "an abacus", "versions": versions}))
"""
FAKE_EVAL = """
import json, pathlib, sys
args = sys.argv[1:]
value = lambda flag: args[args.index(flag) + 1]
start = args.index("--tasks") + 1
tasks = args[start : args.index("--data_dir")]
score = 0.7 if "--remove_components" in args else 0.5
fields = ["main_score", "own_language", "accuracy", "accuracy_from_english", "accuracy_mean"]
fields += ["accuracy_" + language for language in ("en", "de", "fr", "jp")]
result = dict.fromkeys(fields, score) | {"languages": ["de", "fr", "zh"], "matrix": [[0.2, 0.5, 0.3]] * 3}
result["points"] = {"fra": [[[0, 1], [1, 0]], [[0.5, 1], [1, 0.2]]]}
folder = pathlib.Path(value("--output_dir"))
folder.mkdir(exist_ok=True)
(folder / "results.json").write_text(json.dumps({"tasks": {task: result for task in tasks}}))
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """Corpora of two languages, fake scripts, and data for every task."""
    for name in ("documents/en.txt", "documents/fi.txt", "bitext/fi-en.tsv", "nli/xnli.tsv"):
        (tmp_path / "corpora" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpora" / name).write_text("a few words\n")
    (tmp_path / "run_cmlm.py").write_text(FAKE_CMLM)
    (tmp_path / "run_eval.py").write_text(FAKE_EVAL)
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    monkeypatch.setattr(chains, "_tasks_with_data", lambda tasks, *_: tasks)
    return tmp_path


def study(monkeypatch, workplace: Path, name: str, model: str, *flags) -> str:
    """Run a study with one seed; returns the page."""
    parts = {cell.part for cell in STUDIES[name].cells if cell.part}
    argv = ["run_study.py", name, "--model_name_or_path", model, "--corpus_dir", workplace / "corpora", "--seeds", 33]
    argv += ["--output_dir", workplace / "out", "--data_dir", workplace]
    if parts and "--language_models" not in flags:
        argv += ["--language_models", *(f"{part}={model}" for part in sorted(parts))]
    monkeypatch.setattr(sys, "argv", [str(item) for item in (*argv, *flags)])
    run_study.main()
    return (workplace / "out" / "table.md").read_text(encoding="utf-8")


def calls(workplace: Path) -> list[list[str]]:
    path = workplace / "calls.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def value(call: list[str], flag: str) -> str:
    return call[call.index(flag) + 1]


def stages_run(workplace: Path) -> list[str]:
    return sorted(Path(value(call, "--output_dir")).name for call in calls(workplace))


@pytest.mark.parametrize("name", CMLM_STUDIES)
def test_every_study_is_run_to_its_table_and_figure(bert_folder, workplace, monkeypatch, name):
    page = study(monkeypatch, workplace, name, bert_folder)
    for row in STUDIES[name].rows:
        assert f"\n| {row} | 0." in page, row
    assert "Not done" not in page and "Left out" not in page
    assert (workplace / "out" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert not (workplace / "out" / "stages").exists()


def test_there_is_a_study_for_every_table_and_figure_with_results():
    assert set(CMLM_STUDIES) == {*(f"cmlm_table{number}" for number in range(1, 8)), "cmlm_figure2", "cmlm_figure3"}


def test_cells_share_the_stages_that_they_have_in_common(bert_folder, workplace, monkeypatch):
    """S1 and S3 begin with the same 1.5 million steps, and S3+NLI goes on from S3."""
    study(monkeypatch, workplace, "cmlm_table3", bert_folder)
    names = ["f_mbert+mBERT", "first+br", "first+cmlm_br+nli", "first+cmlm_br", "first", "s2"]
    assert stages_run(workplace) == [f"{name}-seed33" for name in names]
    by_name = {Path(value(call, "--output_dir")).name: call for call in calls(workplace)}
    assert Path(value(by_name["first+cmlm_br-seed33"], "--model_name_or_path")).name == "first-seed33"
    assert value(by_name["first-seed33"], "--model_name_or_path") == bert_folder
    assert [value(by_name[f"{name}-seed33"], "--max_steps") for name in ("first", "first+br", "s2")] == [
        "1500000", "1000000", "2000000"
    ]  # fmt: skip
    assert by_name["first-seed33"][by_name["first-seed33"].index("--language") :][1:3] == ["en", "fi"]


def test_the_stages_of_some_rows_are_kept_for_the_others(bert_folder, workplace, monkeypatch):
    study(monkeypatch, workplace, "cmlm_table3", bert_folder, "--rows", "S3", "mBERT")
    assert stages_run(workplace) == ["first+cmlm_br-seed33", "first-seed33"]
    study(monkeypatch, workplace, "cmlm_table3", bert_folder)
    assert len(stages_run(workplace)) == len(set(stages_run(workplace))) == 6
    assert not (workplace / "out" / "stages").exists()


def test_stages_are_shared_by_studies_in_one_folder(bert_folder, workplace, monkeypatch):
    shared = ["--stages_dir", workplace / "shared"]
    study(monkeypatch, workplace, "cmlm_table6", bert_folder, *shared)
    done = len(calls(workplace))
    (workplace / "out").rename(workplace / "table6")
    study(monkeypatch, workplace, "cmlm_figure2", bert_folder, *shared)
    assert len(calls(workplace)) == done == 2
    assert (workplace / "shared" / "first+cmlm_br-seed33" / "train_results.json").is_file()


def test_a_shared_stage_with_a_changed_byte_is_made_again(bert_folder, workplace, monkeypatch):
    shared = ["--stages_dir", workplace / "shared"]
    study(monkeypatch, workplace, "cmlm_table6", bert_folder, *shared)
    done = len(calls(workplace))
    (workplace / "out").rename(workplace / "table6")
    file = workplace / "shared" / "first+cmlm_br-seed33" / "train_results.json"
    file.write_text(file.read_text().replace("an abacus", "an abacuz"))
    study(monkeypatch, workplace, "cmlm_figure2", bert_folder, *shared)
    assert len(calls(workplace)) == done + 1 and "an abacus" in file.read_text()


def test_a_stage_that_fails_is_resumed_and_the_stages_before_it_are_kept(bert_folder, workplace, monkeypatch, capsys):
    (workplace / "fail-nli").touch()
    with pytest.raises(SystemExit, match="2"):
        run_main(lambda: study(monkeypatch, workplace, "cmlm_table3", bert_folder))
    assert "1 of 6 cells failed: S3_NLI-seed33; run the same command again" in capsys.readouterr().err
    (workplace / "fail-nli").unlink()
    done = len(calls(workplace))
    page = study(monkeypatch, workplace, "cmlm_table3", bert_folder)
    (again,) = calls(workplace)[done:]
    assert value(again, "--stage") == "nli" and value(again, "--resume_from_checkpoint") == "true"
    assert "| S3+NLI | 0." in page


def test_a_model_of_another_paper_is_left_out_unless_it_is_named(bert_folder, workplace, monkeypatch):
    page = study(monkeypatch, workplace, "cmlm_table2", bert_folder, "--language_models", f"mBERT={bert_folder}")
    assert (
        "Left out of XLM-R-XLM-R: another model than the study's; name it with --language_models XLM-R=MODEL" in page
    )
    assert "| mBERT | 0." in page and "| XLM-R | 0." not in page


def runs_of(name: str, model: str, workplace: Path, modern: bool = False) -> list[chains.StageRun]:
    models = {cell.part: model for cell in STUDIES[name].cells if cell.part}
    setup = Setup(
        *(model, workplace, (workplace / "corpora",), workplace / "out", (33,)), language_models=models, modern=modern
    )
    jobs, left_out = chains.make_chain_jobs(STUDIES[name], setup, workplace / "stages")
    assert not left_out
    return [run for job in jobs for run in job.stages]


@pytest.mark.parametrize("name", CMLM_STUDIES)
def test_every_stage_is_a_command_that_run_cmlm_takes(bert_folder, workplace, name):
    for run in runs_of(name, bert_folder, workplace):
        *_, config = parse_cmlm_arguments([*execution.as_arguments(run.flags), "--use_cpu"])
        assert config.seed == 33
        assert run.texts == config.max_steps * 2048 // 32 or config.stage == "nli"


@pytest.mark.parametrize("modern", [False, True])
def test_one_folder_is_one_stage_in_all_studies(bert_folder, workplace, modern):
    """So that --stages_dir can be shared; Table 7's N = 15 is Table 1's CMLM base."""
    identities = {}
    for name in CMLM_STUDIES:
        for run in runs_of(name, bert_folder, workplace, modern):
            assert identities.setdefault(run.folder, run.identity) == run.identity, (name, run.folder)
    assert len(identities) == 5 + 2 + 6 + 6  # Tables 1, 2, 3 and 7; the others share these


def test_published_numbers_stand_beside_the_papers_models_and_baselines_follow():
    def beside(name: str, model: str) -> dict:
        setup = Setup(model, Path(), (), Path(), (), language_models=paper_models(STUDIES[name]))
        return published_beside(STUDIES[name], setup.checkpoint_of)

    table1 = beside("cmlm_table1", "bert-base-uncased")
    assert set(table1) == set(STUDIES["cmlm_table1"].rows)
    assert (table1["CMLM base"]["average"], table1["CMLM large"]["transfer_sickr"]) == (0.86, 0.845)
    assert STUDIES["cmlm_table1"].baselines["SBERT (MNLI + SNLI)"]["average"] == 0.859
    table3 = beside("cmlm_table3", "out/multilingual-vocabulary")
    assert (table3["S3+NLI"]["average"], table3["f-mBERT"]["xeval_sw"]) == (0.84, 0.733)
    assert STUDIES["cmlm_table3"].baselines.keys() == {"LASER", "mUSE"}
    assert beside("cmlm_table5", "out/multilingual-vocabulary")["CMLM+BR"]["tatoeba_jav"] == 0.834
    assert "CMLM" not in beside("cmlm_table4", "bert-base-uncased")


# ---- Bad input ---------------------------------------------------------------------------------------------------------


def refused(monkeypatch, workplace: Path, model: str, message: str, *flags, name: str = "cmlm_table7") -> None:
    with pytest.raises(InputError, match=message) as caught:
        study(monkeypatch, workplace, name, model, *flags)
    assert "\n" not in str(caught.value)


def declare(monkeypatch, *stages: Stage) -> None:
    monkeypatch.setitem(
        STUDIES, "small", Study("S", (ChainCell("S3", ("rg65",), chain=stages),), main_scores(("rg65",)))
    )


def test_stages_that_do_not_fit_are_refused(bert_folder, workplace, monkeypatch):
    first = Stage("first", "cmlm-multilingual-first")
    declare(monkeypatch, first, Stage("both", "cmlm-multilingual-s3", {"num_projections": 4}))
    message = "S3: stage 'both' does not fit 'first', from which it starts: --num_projections 15 and 4"
    refused(monkeypatch, workplace, bert_folder, message, name="small")
    declare(monkeypatch, first, Stage("again", "cmlm-multilingual"))
    message = "S3: stage 'again' does not fit 'first', from which it starts: --from_scratch would discard its weights"
    refused(monkeypatch, workplace, bert_folder, message, name="small")
    assert not (workplace / "out").exists()


def test_a_recipe_that_is_missing_or_no_recipe_of_cmlm_is_named(bert_folder, workplace, monkeypatch):
    declare(monkeypatch, Stage("first", "cmlm-none"))
    refused(monkeypatch, workplace, bert_folder, r"recipes/cmlm-none\.yaml: .*No such file", name="small")
    declare(monkeypatch, Stage("first", "word-bert"))
    refused(monkeypatch, workplace, bert_folder, r"recipes/word-bert\.yaml: no stage of run_cmlm\.py", name="small")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--", "--num_projections", 3], "--num_projections after -- is varied by this study; leave it out"),
        (["--", "--stage", "nli"], "--stage after -- is set by run_study.py itself; leave it out"),
        (["--", "--max_train_samples", 3], "--max_train_samples must be given before the --"),
        (
            ["--corpus_dir", "nowhere"],
            r"no documents/en\.\* in nowhere \(docs/studies/README.md explains the folder\)",
        ),
        (
            ["--corpus_dir", "nowhere", "--skip_missing"],
            "no cell of cmlm_table7 can be run: left out of .*: no documents/en",
        ),
    ],
)
def test_bad_input_is_one_line_before_anything_is_run(bert_folder, workplace, monkeypatch, flags, message):
    refused(monkeypatch, workplace, bert_folder, message, *flags)
    assert not (workplace / "out").exists() and not calls(workplace)


def test_stages_of_other_flags_or_data_are_refused(bert_folder, workplace, monkeypatch):
    shared = ["--stages_dir", workplace / "shared"]
    study(monkeypatch, workplace, "cmlm_table7", bert_folder, *shared)
    other = [*shared, "--output_dir", workplace / "other"]
    message = (
        r"en_N_=_1-seed33\.json was created with another --max_steps; give another --stages_dir or --output_dir, or"
    )
    refused(monkeypatch, workplace, bert_folder, message, *other, "--", "--max_steps", 3)
    (workplace / "corpora/documents/en.txt").write_text("other words\n\nand more\n")
    chains.content_of.cache_clear()  # as in a new process
    refused(monkeypatch, workplace, bert_folder, "created with another documents/en.txt", *other)
    assert not (workplace / "other").exists()


def test_removing_stages_that_are_not_there_is_no_error(tmp_path):
    stage_runs.remove_stages(tmp_path / "none")


def test_a_stage_whose_removal_was_interrupted_keeps_its_record(tmp_path, monkeypatch):
    """Otherwise the next run would refuse the folder as one that it did not make."""
    stages = tmp_path / "stages"
    for name in ("a-seed1", "b-seed1"):
        (stages / name).mkdir(parents=True)
        (stages / f"{name}.json").touch()
    removed = []
    monkeypatch.setattr(stage_runs.shutil, "rmtree", lambda folder, ignore_errors: removed.append(folder))
    stage_runs.remove_stages(stages)
    assert sorted(removed[:-1]) == [stages / "a-seed1", stages / "b-seed1"] and removed[-1] == stages


def test_a_stage_without_a_checkpoint_starts_again(bert_folder, workplace, tmp_path):
    setup = Setup(bert_folder, workplace, (workplace / "corpora",), workplace / "out", (33,))
    jobs, _ = chains.make_chain_jobs(STUDIES["cmlm_table7"], setup, tmp_path / "stages")
    (run,) = jobs[0].stages
    run.folder.mkdir(parents=True)
    (run.folder / "half.txt").touch()
    scripts = []
    with pytest.raises(InputError, match="en_N_=_1-seed33 was not made by run_study.py; give another --stages_dir"):
        stage_runs.finish_stages([run], scripts.append)
    run.record.write_text(json.dumps(run.identity))
    stage_runs.finish_stages([run], lambda script, flags: scripts.append((script, flags)))
    assert scripts == [("run_cmlm.py", run.flags)] and not run.folder.exists()
    assert json.loads(run.record.read_text()) == run.identity


def test_a_bare_flag_is_compared_too(bert_folder, workplace, tmp_path):
    extra = {"skip_connection": [], "from_scratch": ["false"]}
    setup = Setup(bert_folder, workplace, (workplace / "corpora",), workplace / "out", (33,), extra=extra)
    jobs, _ = chains.make_chain_jobs(STUDIES["cmlm_figure2"], setup, tmp_path / "stages")
    assert [run.stage.name for run in jobs[0].stages] == ["first", "cmlm_br"]
    assert (jobs[0].steps, jobs[1].steps) == (2_500_000, 0)  # the second cell shares the stages of the first


# ---- The real scripts --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_chain_of_three_stages_is_trained_and_scored_by_the_real_scripts(
    bert_folder, sentences, tmp_path, monkeypatch
):
    """S3+NLI: documents and translations of two languages, then labelled pairs; in this process, to save its start."""

    def in_process(job, script: str, flags: dict) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [script, *execution.as_arguments(flags)])
            importlib.import_module(script.removesuffix(".py")).main()

    def one_by_one(jobs, num_processes, keep_models, ended) -> dict:
        for job in jobs:
            job.folder.mkdir(parents=True)
            execution.run_job(job, keep_models)
            ended(job, "")
        return {}

    monkeypatch.setattr(execution, "_run_script", in_process)
    monkeypatch.setattr(execution, "run_jobs", one_by_one)
    write_inputs(tmp_path, sentences)
    pairs = list(zip(sentences[:60], sentences[60:120], strict=True))
    documents = "\n\n".join("\n".join(sentences[start : start + 6]) for start in range(0, 240, 6))
    for language in ("en", "fi"):
        (tmp_path / "documents").mkdir(exist_ok=True)
        (tmp_path / "documents" / f"{language}.txt").write_text(documents)
    write_tsv(tmp_path / "bitext" / "fi-en.tsv", ("fi", "en"), pairs)
    labels = ("entailment", "neutral", "contradiction")
    write_tsv(tmp_path / "nli" / "xnli.tsv", ("premise", "hypothesis", "label"),
              [(*pair, labels[n % 3]) for n, pair in enumerate(pairs)])  # fmt: skip
    chain = STUDIES["cmlm_table3"].cells[3].chain
    monkeypatch.setitem(
        STUDIES, "small", Study("S", (ChainCell("S3+NLI", ("rg65",), chain=chain),), main_scores(("rg65",)))
    )
    flags = "--max_steps 2 --max_seq_length 16 --per_device_train_batch_size 8 --num_projections 3 --disable_tqdm true"
    argv = [
        "run_study.py",
        "small",
        "--model_name_or_path",
        bert_folder,
        "--corpus_dir",
        tmp_path,
        "--seeds",
        33,
        "--modern",
    ]
    argv += ["--data_dir", tmp_path / "data", "--output_dir", tmp_path / "out", "--keep_models", "--", *flags.split()]
    monkeypatch.setattr(sys, "argv", [str(item) for item in argv])
    run_study.main()

    record = json.loads((tmp_path / "out" / "S3_NLI-seed33" / "cell.json").read_text())
    assert f"| S3+NLI | {record['tasks']['rg65']['main_score']:.4f} |" in (tmp_path / "out" / "table.md").read_text()
    folders = [tmp_path / "out" / "stages" / f"first{rest}-seed33" for rest in ("", "+cmlm_br", "+cmlm_br+nli")]
    settings = [json.loads((folder / "train_results.json").read_text())["settings"] for folder in folders]
    assert [each["stage"] for each in settings] == ["cmlm", "cmlm_bitext", "nli"]
    assert record["run_on"] and record["texts"] == 3 * 2 * 8


def test_a_stage_is_that_of_the_content_of_its_data(bert_folder, workplace, tmp_path):
    """Not of its size: a file in another order is other data."""

    def identity() -> dict:
        chains.content_of.cache_clear()  # as in a new process
        setup = Setup(bert_folder, workplace, (workplace / "corpora",), workplace / "out", (33,))
        jobs, _ = chains.make_chain_jobs(STUDIES["cmlm_table7"], setup, tmp_path / "stages")
        return jobs[0].stages[0].identity

    first = identity()
    path = next((workplace / "corpora" / "documents").iterdir())
    content = path.read_bytes()
    path.write_bytes(content[::-1])
    assert identity() != first
    path.write_bytes(content)
    assert identity() == first

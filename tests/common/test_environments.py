"""Commands on machines without a home, with closed or ASCII streams, or in a deleted folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirror.modeling.backbone import load_backbone
from mirror.modeling.save_checkpoint import save_encoder
from tests.documents import ROOT


TEXTS = ["the cat sees a bird", "a café in the river city", "snow on the mountain"]
MOVED = ("HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME")
START = """\
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from mirror.common.errors import InputError, run_main
def main():
{body}
run_main(main)
"""


@pytest.fixture(scope="module")
def encoder(bert_folder, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("environments") / "out"
    save_encoder(folder, *load_backbone(bert_folder, "mean"), "mean", max_seq_length=24)
    return str(folder)


@pytest.fixture
def files(tmp_path) -> Path:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    rows = ["sentence1\tsentence2\tscore", *(f"{text}\t{TEXTS[0]}\t{n}" for n, text in enumerate(TEXTS))]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path


def run(*command: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess:
    """Run a Python command with these variables. `shell` is appended, such as `>&-` for a closed stdout."""
    variables = {key: value for key, value in os.environ.items() if key not in MOVED}
    call = ["bash", "-c", f'exec "$@" {shell}', "bash", sys.executable, *command]
    return subprocess.run(call, env=variables | {"PYTHONPATH": str(ROOT)} | environment, capture_output=True)


def run_body(body: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess:
    """Run a script whose `main` has this body. It imports nothing heavy."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return run("-c", START.format(root=str(ROOT), body=indented), shell=shell, **environment)


def search(encoder: str, files: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    command = ("-m", "mirror.tools.search", encoder, str(files / "texts.txt"), "café", "--top_k", "1")
    return run(*command, *flags, **environment)


@pytest.mark.slow
def test_a_scoring_run_needs_no_home(encoder, files):
    scored = ["--model_name_or_path", encoder, "--tasks", str(files / "pairs.tsv"), "--output_dir", str(files / "o")]
    done = run(str(ROOT / "run_eval.py"), *scored, "--no_cache", HOME=f"{files}/texts.txt/home")
    assert done.returncode == 0, done.stderr
    assert (files / "o" / "results.json").exists()


@pytest.mark.parametrize(
    ("variable", "folder", "blamed"),
    [
        pytest.param("HOME", "home", "home/.cache/huggingface/datasets", marks=pytest.mark.slow),
        pytest.param("HF_HOME", "", "datasets", marks=pytest.mark.slow),
        ("HF_DATASETS_CACHE", "a/b", "a/b"),
    ],
)
def test_a_cache_that_cannot_be_made_is_blamed_and_not_the_texts(encoder, files, variable, folder, blamed):
    place = f"{files}/pairs.tsv/{folder}".rstrip("/")
    done = search(encoder, files, **{variable: place})
    line = f"error: the datasets cache {files}/pairs.tsv/{blamed} cannot be written (Not a directory); "
    assert (done.returncode, done.stderr.decode()) == (2, f"{line}set HF_DATASETS_CACHE to another folder\n")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("open({place!r} + '/x', 'w')", "{place}/x: Not a directory; check this path and your rights"),
        ("open('/', 'w')", "/: Is a directory; check this path and your rights"),
        ("os.mkdir('deleted'); os.chdir('deleted'); os.rmdir('../deleted'); run_main(main)",
         "the current folder does not exist any more; cd to another one"),
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_used_is_one_line(body, line, files, monkeypatch):
    monkeypatch.chdir(files)
    place = str(files / "texts.txt")
    done = run_body(body.format(place=place))
    assert (done.returncode, done.stderr.decode()) == (2, f"error: {line.format(place=place)}\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_file_of_the_program(closed, files, monkeypatch):
    monkeypatch.chdir(files)
    body = """\
with open("out.txt", "w") as file:
    print("printed"); print("logged", file=sys.stderr); os.write(1, b"1"); os.write(2, b"2")
    assert file.fileno() > 2 and sys.stdin.read() == ""
raise InputError("wrong")"""
    done = run_body(body, closed if "<" in closed else f"{closed} </dev/null")
    assert done.returncode == 2 and (files / "out.txt").read_text() == ""
    assert ("error: wrong" in done.stderr.decode()) == ("2>" not in closed)


LOCALES = [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES)
def test_output_for_programs_is_utf_8_whatever_the_locale_says(encoder, files, locale):
    done = search(encoder, files, **locale)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("utf-8").split("\t")[3] == f"{TEXTS[1]}\n"


@pytest.mark.slow
@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize("what", ["dataset", "model"])
def test_an_unreachable_hub_is_tried_once(encoder, files, what, offline):
    flags = ["--dataset_name", "no/data"] if what == "dataset" else ["--input_file", str(files / "texts.txt")]
    flags += ["--model_name_or_path", "no/model" if what == "model" else encoder, "--output_dir", str(files / "out")]
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": offline}
    done = run(str(ROOT / "run_encode.py"), *flags, **hub, HF_DATASETS_CACHE=str(files / "cache"))
    lines = done.stderr.decode().splitlines()
    reason = "HF_HUB_OFFLINE is set" if offline == "1" else "http://127.0.0.1:9 cannot be reached"
    start = "cannot load model 'no/model': it is not cached, and" if what == "model" else "--dataset_name no/data:"
    assert done.returncode == 2 and lines[-1].startswith(f"error: {start} {reason}; give a folder, or to train leave")
    logged = [line for line in lines if line.startswith(("http", "the Hub"))]
    assert len(logged) == (offline == "0") and (not logged or "cannot be reached ([Errno 111]" in logged[0])


@pytest.mark.parametrize("locale", [{}, *LOCALES])
def test_printed_is_utf_8_and_what_it_does_not_hold_as_an_escape(locale):
    done = run_body(r'print("a\udce9b \u00e9")', **locale)
    assert (done.returncode, done.stdout) == (0, rb"a\udce9b " + "é\n".encode())


@pytest.mark.slow
def test_a_good_run_that_scores_needs_no_home_and_says_nothing_on_stderr_if_asked(bert_folder, files, sentences):
    (files / "texts.txt").write_text("\n".join(sentences[:20]) + "\n")
    flags = ["--model_name_or_path", bert_folder, "--train_file", str(files / "texts.txt"), "--report_to", "none"]
    flags += ["--max_steps", "1", "--per_device_train_batch_size", "10", "--output_dir", str(files / "out")]
    flags += ["--log_level", "error", "--disable_tqdm", "true", "--max_seq_length", "16"]
    flags += ["--eval_tasks", str(files / "pairs.tsv")]
    places = {"HOME": f"{files}/texts.txt/home", "HF_DATASETS_CACHE": str(files / "cache")}
    done = run(str(ROOT / "run_mirror.py"), *flags, **places)
    assert (done.returncode, done.stderr.decode()) == (0, "")

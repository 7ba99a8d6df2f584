"""Tests of run_mirror.py: exit 0 and a loadable checkpoint, or exit 2 and one line that says what to fix."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import BartConfig

from mirror.common.errors import InputError, run_main
from mirror.modeling.encoder import Encoder
from run_mirror import main


ROOT = Path(__file__).resolve().parents[1]


def run_mirror(*argv: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "run_mirror.py"), *argv]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def corpus(sentences, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "texts.txt"
    path.write_text("\n".join(sentences + sentences[:7]) + "\n\n")
    return str(path)


@pytest.fixture(scope="module")
def trained(bert_folder, corpus, tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run, and its log."""
    folder = tmp_path_factory.mktemp("out") / "encoder"
    flags = f"--model_name_or_path {bert_folder} --train_file {corpus} --output_dir {folder} --level sentence"
    flags += " --pooling mean --bf16 --per_device_train_batch_size 40 --max_seq_length 24 --save_strategy epoch"
    handler, logger = logging.StreamHandler(io.StringIO()), logging.getLogger("mirror")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["run_mirror.py", *flags.split()])
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        main()
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    return folder, handler.stream.getvalue()


def test_the_report_is_shown_and_kept(trained):
    folder, said = trained
    assert "duplicates           7 dropped" in said
    assert "40 texts per step on 1 process(es), each compared with 40 by nt_xent, bfloat16 (requested)" in said
    results = json.loads((folder / "train_results.json").read_text())
    assert results["corpus"]["rows"] == 240 and results["corpus"]["blank_rows_dropped"] == 1
    assert results["metrics"]["train_loss"] > 0 and min(results["cosine_after_reload"].values()) > 0.9999
    assert results["settings"]["learning_rate"] == 2e-5
    assert Encoder.from_pretrained(str(folder)).pooling == "mean"


def test_an_output_folder_with_a_run_in_it_is_left_alone(trained, bert_folder, corpus, monkeypatch):
    folder, _ = trained
    before = (folder / "model.safetensors").read_bytes()
    flags = ["--model_name_or_path", bert_folder, "--train_file", corpus, "--output_dir", str(folder)]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *flags])
    message = "holds another run; continue it with --resume_from_checkpoint true, or overwrite it with --force"
    with pytest.raises(InputError, match=message):
        main()
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--per_device_train_batch_size", "500"], "240 distinct texts do not fill one batch of 500"),
        (["--pooling", "avg"], "--pooling 'avg' is unknown; one of cls, mean"),
        (["--max_seq_length", "65"], "--max_seq_length 65 is more than the 64 positions of the model"),
        (["--model_name_or_path", "BART"], "not a bidirectional encoder"),
        (["--model_name_or_path", "no/such-model"], "cannot load model 'no/such-model'"),
        (["--resume_from_checkpoint", "true"], "--resume_from_checkpoint: no checkpoint in"),
        (["--streaming"], "set the number of steps with --max_steps"),
        (["--eval_tasks", "stsb_dve"], "did you mean 'stsb_dev'"),
        (["--eval_tasks", "stsb_dev", "--data_dir", "nowhere"], "--data_dir nowhere: no such folder"),
        (["--save_strategy", "sometimes"], "sometimes"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(flags, message, bert_folder, corpus, tmp_path, monkeypatch, capsys):
    if "BART" in flags:
        BartConfig().save_pretrained(tmp_path / "bart")
        flags = ["--model_name_or_path", str(tmp_path / "bart")]
    defaults = {"--model_name_or_path": bert_folder, "--train_file": corpus, "--output_dir": str(tmp_path / "out")}
    argv = [item for flag, value in defaults.items() if flag not in flags for item in (flag, value)]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *argv, *flags])
    with pytest.raises(SystemExit) as stopped:
        run_main(main)
    lines = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert lines[-1].startswith("error: ") and message in lines[-1]
    assert not (tmp_path / "out" / "config.json").exists()


def contents(folder: Path) -> dict[Path, bytes]:
    """Return all files but the lock, which names the process."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "_lock")
    return {path: path.read_bytes() for path in files}


@pytest.mark.slow
def test_resuming_a_finished_run_says_so_and_changes_nothing(bert_folder, corpus, tmp_path):
    flags = ["--model_name_or_path", bert_folder, "--train_file", corpus, "--output_dir", str(tmp_path / "out")]
    flags += (
        "--per_device_train_batch_size 40 --max_steps 4 --save_strategy steps --save_steps 2 --logging_steps 1".split()
    )
    assert run_mirror(*flags).returncode == 0
    before = contents(tmp_path / "out")
    again = run_mirror(*flags, "--resume_from_checkpoint", "true")
    assert again.returncode == 0 and "holds a complete run of 4 steps: nothing to do" in again.stderr
    assert contents(tmp_path / "out") == before
    (tmp_path / "out" / "train_results.json").unlink()  # as if it had been killed before its end
    assert run_mirror(*flags, "--resume_from_checkpoint", "true").returncode == 0
    assert json.loads((tmp_path / "out" / "train_results.json").read_text())["metrics"]["train_loss"] > 0


@pytest.mark.slow
def test_no_reader_warns_of_a_checkpoint(trained):
    """transformers and sentence-transformers expect a pooler, whether it is used or not."""
    folder, _ = trained
    code = f"""
from transformers import AutoModel, pipeline
from sentence_transformers import SentenceTransformer
AutoModel.from_pretrained({str(folder)!r})
pipeline("feature-extraction", {str(folder)!r})
SentenceTransformer({str(folder)!r})
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert not any(word in done.stderr for word in ("MISSING", "UNEXPECTED", "newly initialized", "pooler")), (
        done.stderr
    )

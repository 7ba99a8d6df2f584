"""The command itself: exit 0 and a loadable checkpoint, or exit 2 and one line that says what to fix."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from transformers import GPT2Config, GPT2LMHeadModel

from mirror.common.errors import InputError, run_main
from mirror.modeling.encoder import Encoder
from mirror.tools.demo import base_model
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
def trained(bert_folder, corpus, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    folder = tmp_path_factory.mktemp("out") / "encoder"
    done = run_mirror(
        *("--model_name_or_path", bert_folder, "--train_file", corpus, "--output_dir", str(folder)),
        *("--level", "sentence", "--pooling", "mean", "--bf16", "--per_device_train_batch_size", "40"),
        *("--max_seq_length", "24", "--save_strategy", "epoch"),
    )
    assert done.returncode == 0, done.stderr
    return folder, done


def test_the_checkpoint_loads_everywhere(trained):
    folder, _ = trained
    assert Encoder.from_pretrained(str(folder)).pooling == "mean"
    assert SentenceTransformer(str(folder)).encode(["a cat"]).shape == (1, 32)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json"):
        assert (folder / name).is_file()


def test_the_report_is_shown_and_kept(trained):
    folder, done = trained
    assert "duplicates           7 dropped" in done.stderr
    assert "80 anchors x 79 candidates per step on 1 process(es), bfloat16 (as asked)" in done.stderr
    results = json.loads((folder / "train_results.json").read_text())
    assert results["corpus"]["rows"] == 240 and results["corpus"]["blank_rows_dropped"] == 1
    assert results["metrics"]["train_loss"] > 0 and min(results["cosine_after_reload"].values()) > 0.9999
    assert results["settings"]["learning_rate"] == 2e-5


def test_a_run_ends_with_commands_that_parse(trained, bert_folder):
    """Paths are filled in; each command is one that its script takes."""
    folder, done = trained
    lines = done.stderr[done.stderr.index("next:") :].splitlines()[1:5]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert [command[2].rpartition(".")[2] for command in commands if command[1] == "-m"] == ["search", "demo", "push"]
    assert all(str(folder) in command for command in commands) and bert_folder in commands[1]
    for command in commands:
        named_twice = [sys.executable, *command[1:], "--no_such_flag"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        failed = subprocess.run(named_twice, cwd=ROOT, capture_output=True, text=True, env=environment)
        assert failed.stderr.strip() == "error: unrecognized arguments: --no_such_flag; --help lists the flags"


def test_the_card_is_true_and_tells_no_path(trained, bert_folder):
    folder, _ = trained
    card = (folder / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "- mirror-bert" in card
    assert "240 distinct" in card and "nt_xent, temperature 0.04" in card
    written = card + (folder / "mirror_config.json").read_text() + (folder / "train_results.json").read_text()
    assert str(Path(bert_folder).parent) not in written and "texts.txt" in written


def test_the_demo_finds_the_local_base_model(trained, bert_folder):
    folder, _ = trained
    assert Path(base_model(folder)) == Path(bert_folder).resolve()


def test_an_output_folder_with_a_run_in_it_is_left_alone(trained, bert_folder, corpus):
    folder, _ = trained
    before = (folder / "model.safetensors").read_bytes()
    flags = ["--model_name_or_path", bert_folder, "--train_file", corpus, "--output_dir", str(folder)]
    done = run_mirror(*flags)
    assert done.returncode == 2
    assert (
        "holds another run; continue it with --resume_from_checkpoint true, or overwrite it with --force"
        in done.stderr
    )
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train_file", "absent.txt"], "absent.txt: no such file"),
        (["--per_device_train_batch_size", "500"], "240 distinct texts do not fill one batch of 500"),
        (["--pooling", "avg"], "--pooling 'avg' is unknown; one of cls, mean"),
        (["--max_seq_length", "65"], "--max_seq_length 65 is more than the 64 positions of the model"),
        (["--model_name_or_path", "GPT2"], "not a bidirectional encoder"),
        (["--model_name_or_path", "no/such-model"], "cannot load model 'no/such-model'"),
        (["--resume_from_checkpoint", "true"], "--resume_from_checkpoint: no checkpoint in"),
        (["--streaming"], "set the length of the training with --max_steps"),
        (["--eval_tasks", "stsb_dve"], "did you mean 'stsb_dev'"),
        (["--temprature", "1"], "unknown flag --temprature; did you mean '--temperature'?"),
        (["--save_strategy", "sometimes"], "sometimes"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    flags, message, bert_folder, corpus, tokenizer, tmp_path, monkeypatch, capsys
):
    if "GPT2" in flags:
        GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=50)).save_pretrained(tmp_path / "gpt2")
        tokenizer.save_pretrained(tmp_path / "gpt2")
        flags = ["--model_name_or_path", str(tmp_path / "gpt2")]
    defaults = {"--model_name_or_path": bert_folder, "--train_file": corpus, "--output_dir": str(tmp_path / "out")}
    argv = [item for flag, value in defaults.items() if flag not in flags for item in (flag, value)]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *argv, *flags])
    with pytest.raises(SystemExit) as stopped:
        run_main(main)
    lines = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert lines[-1].startswith("error: ") and message in lines[-1]
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["stsb_dve"], "unknown task 'stsb_dve'; did you mean 'stsb_dev'"),
        (["stsb_dev", "--data_dir", "nowhere"], "--data_dir nowhere: no such folder"),
    ],
)
def test_tasks_are_checked_before_the_texts_are_read(flags, message, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("mirror.data.corpus.load_training_corpus", lambda source: pytest.fail("read"))
    output = ["--output_dir", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", "--train_file", corpus, *output, "--eval_tasks", *flags])
    with pytest.raises(InputError, match=message):
        main()
    assert not (tmp_path / "out").exists()


def test_help_teaches():
    done = run_mirror("--help")
    assert done.returncode == 0
    for phrase in ("accelerate launch --config_file", "--span_mask_length", "false negatives", "0.2 for words"):
        assert phrase in done.stdout


@pytest.mark.slow
def test_accelerate_launch_with_a_config(bert_folder, corpus, tmp_path):
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/cpu.yaml"]
    flags = ["--model_name_or_path", bert_folder, "--train_file", corpus, "--output_dir", str(tmp_path / "out")]
    flags += ["--level", "word", "--max_seq_length", "24", "--per_device_train_batch_size", "60", "--max_steps", "2"]
    done = subprocess.run([*launch, "run_mirror.py", *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert Encoder.from_pretrained(str(tmp_path / "out")).pooling == "cls"


def contents(folder: Path) -> dict[Path, bytes]:
    """Of all files but the lock, which names the process."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "_lock")
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

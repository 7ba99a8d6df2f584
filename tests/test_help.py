"""Tests that --help and wrong arguments are answered without torch, whose import takes seconds, and that flags have help."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys

import pytest

import mirror
from tests.documents import ROOT


PROGRAMS = (
    *("run_mirror", "run_cmlm", "run_eval", "run_encode", "run_study"),
    *(
        f"mirror.tools.{path.stem}"
        for path in sorted(ROOT.glob("mirror/tools/*.py"))
        if "\ndef main(" in path.read_text()
    ),
)
TRAINING = ("run_mirror", "run_cmlm", "mirror.tools.train", "mirror.tools.train_cmlm")
MISTAKES = (
    ("run_mirror --trian_file a.txt", "unknown flag --trian_file; did you mean '--train_file'?"),
    ("run_mirror --learning_rate fast", "invalid float value: 'fast'"),
    ("run_mirror --level paragraph", "--level 'paragraph' is unknown"),
    ("run_mirror --loss nt_xnt", "did you mean 'nt_xent'?"),
    ("run_mirror --packing never", "--packing 'never' is unknown"),
    ("run_mirror --select_by alignment", "--select_by 'alignment' is unknown; one of own_text"),
    ("run_mirror --config absent.yaml", "--config absent.yaml: no such file, and no published recipe"),
    ("run_mirror --config wrd-bert.yaml", "did you mean 'word-bert'?"),
    ("run_mirror --config recipes/word-bert.yaml --train_file absent.txt", "absent.txt: no such file"),
    ("run_mirror --config elsewhere/word-bert.yaml", "--config elsewhere/word-bert.yaml: [Errno 2] No such file"),
    ("run_mirror --temperature 1 2", "--temperature takes one value, got 1 2"),
    ("run_mirror --level word --prompt a word", "--prompt takes one value, got a word"),
    ("run_mirror --pair_separator=a b", "--pair_separator takes one value, got a b"),
    ("run_mirror texts.txt", "unexpected argument 'texts.txt': it follows no flag"),
    ("run_cmlm --margin 0.1 0.2", "--margin takes one value, got 0.1 0.2"),
    ("run_encode --output_dir o --model_name_or_path m --streaming true", "--streaming takes no value, got true"),
    ("mirror.tools.search model texts.txt how to", "unexpected argument 'to'; put a text with spaces in quotes"),
    ("run_mirror --train_file absent.txt --seed 3 --no_dataloader_pin_memory", "absent.txt: no such file"),
    ("run_mirror --prompt a --prompt_name query", "give --prompt or --prompt_name, not both"),
    ("run_cmlm --stage cml", "did you mean 'cmlm'?"),
    ("run_cmlm --train_file absent.txt", "absent.txt: no such file"),
    ("run_cmlm --stage bitext --bitext_file absent.tsv", "absent.tsv: no such file"),
    ("run_eval --taks sts", "unknown flag --taks; did you mean '--tasks'?"),
    ("run_eval --dtype int8", "invalid choice: 'int8'"),
    ("run_eval --models m --tasks sts --output_dir o --fit_on absent.txt", "--fit_on absent.txt: no such file"),
    ("run_encode --model_name_or_path m --output_dir o --input_file absent.txt", "absent.txt: no such file"),
    ("run_study table3", "--model_name_or_path is missing"),
    ("mirror.tools.search model absent.txt query", "absent.txt: no such file"),
    ("mirror.tools.push absent", "absent: no config.json"),
    ("mirror.tools.card absent", "absent: no readable train_results.json"),
    ("mirror.tools.whitening --model_name_or_path absent --text_file a --output_dir o", "absent: no modules.json"),
    ("mirror.tools.demo", "arguments are required: OUT"),
    ("mirror.tools.onnx --int4", "--help lists the flags"),
)
# Runs programs of this project one after another in one process, and stops at the first that imports torch.
RUN = """\
import contextlib, importlib, io, sys
from mirror.common.errors import InputError
for line in sys.stdin.read().splitlines():
    program, *argv = line.split(" ")
    sys.argv = [program, *argv]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            importlib.import_module(program).main()
    except (InputError, SystemExit) as error:
        said.write(str(error))
    assert "torch" not in sys.modules, line
    print(" ".join(said.getvalue().split()))
"""


def run_without_torch(lines: list[str], folder) -> list[str]:
    """Return what each command line answers, on one line."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{RUN}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, input="\n".join(lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_help_the_version_and_mistakes_need_no_torch(tmp_path):
    lines = [f"{name} {flag}" for flag in ("--help", "--version") for name in PROGRAMS]
    answers = run_without_torch([*lines, *(line for line, _ in MISTAKES)], tmp_path)
    count = len(PROGRAMS)
    for program, text in zip(PROGRAMS, answers[:count], strict=True):
        assert "--help" in text and ("--help_all" in text) == (program in TRAINING), program
    versions = {answer.partition(" of ")[2] for answer in answers[count : 2 * count]}
    assert versions == {f"mirror-encoders {mirror.__version__} 0"}
    assert [pair for pair in zip(answers[2 * count :], MISTAKES, strict=True) if pair[1][1] not in pair[0]] == []
    assert list(tmp_path.iterdir()) == []


def parser_of(program: str, monkeypatch) -> argparse.ArgumentParser:
    """Return the parser that prints the help of a program."""
    found = []
    monkeypatch.setattr(argparse.ArgumentParser, "print_help", lambda self, file=None: found.append(self))
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    with pytest.raises(SystemExit):
        importlib.import_module(program).main()
    return found[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_has_help_and_a_default(program, monkeypatch):
    parser = parser_of(program, monkeypatch)
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    assert [action.dest for action in shown if not action.help] == []
    text = parser.format_help()
    for action in shown:
        if action.option_strings and not action.required and action.nargs != 0:
            start = text.index(f"\n  {action.option_strings[0]} ")
            assert "default" in text[start:].split("\n  -")[1].lower(), action.dest


def test_help_all_adds_the_flags_of_the_library_once(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", "--help_all"])
    with pytest.raises(SystemExit):
        importlib.import_module("run_mirror").main()
    text = capsys.readouterr().out
    ours, theirs = text.split("TrainingArguments of transformers:")
    assert "  --temperature X" in ours and " --adam_beta1 X" in theirs
    assert " --learning_rate X" in ours and " --learning_rate X" not in theirs

"""Tests that a wrong model path gives the same line in every script."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from tests.evaluation.folder import pairs, write_tsv


MODEL = "out/no/such/model"
COMMANDS = {
    "run_mirror": "--model_name_or_path {model} --train_file {texts} --output_dir {out}",
    "run_cmlm": "--model_name_or_path {model} --train_file {texts} --output_dir {out}",
    "run_eval": "--model_name_or_path {model} --tasks rg65 --data_dir {data} --pooling mean --output_dir {out}",
    "run_encode": "--model_name_or_path {model} --input_file {texts} --output_dir {out}",
    "mirror.tools.search": "{model} {texts} query",
    "mirror.tools.demo": "{model} --before {model} --texts {texts}",
}


@pytest.mark.parametrize("module", COMMANDS)
def test_every_script_says_the_same(module, tmp_path: Path, monkeypatch):
    (tmp_path / "a.txt").write_text("a cat\na dog\n")
    write_tsv(tmp_path / "wordsim/rg65.tsv", ("word1", "word2", "score"), pairs(65, top=4))
    command = COMMANDS[module].format(model=MODEL, texts=tmp_path / "a.txt", data=tmp_path, out=tmp_path / "out")
    monkeypatch.setattr(sys, "argv", [module, *command.split()])
    with pytest.raises(InputError) as caught:
        import_module(module).main()
    assert str(caught.value) == f"cannot load model '{MODEL}': there is no such folder, and it is not a Hub id"

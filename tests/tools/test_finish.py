"""The end of a run: a check that fails costs nothing, the Python API leaves a finished run, and the next commands work."""

from __future__ import annotations

import errno
import shlex
import sys

import numpy as np
import pytest
from datasets import Dataset

import run_mirror
from mirror import MirrorConfig, MirrorTrainer
from mirror.common.errors import InputError
from mirror.common.files import is_complete, write_manifest
from mirror.modeling.encoder import Encoder
from mirror.tools import card
from mirror.training.card import name_on_unedited_card
from mirror.training.finish import after_encoding, after_scoring, after_training
from mirror.training.record import LOCAL_BASE, RunRecord
from tests.documents import ROOT, Block
from tests.test_docs import complaints


def train(monkeypatch, bert_folder, texts, output_dir, *more: str) -> None:
    (output_dir.parent / "texts.txt").write_text("\n".join(texts))
    flags = ["--model_name_or_path", bert_folder, "--train_file", str(output_dir.parent / "texts.txt")]
    flags += ["--pooling", "mean", "--per_device_train_batch_size", "40", "--max_steps", "1", "--disable_tqdm", "true"]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *flags, "--output_dir", str(output_dir), *more])
    run_mirror.main()


def test_the_python_api_leaves_a_folder_that_the_tools_take(bert_folder, sentences, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    config = MirrorConfig(
        output_dir=str(tmp_path / "out"), pooling="mean", max_seq_length=24, per_device_train_batch_size=40, max_steps=2,
        validation_samples=40, disable_tqdm=True,
    )  # fmt: skip
    trainer = MirrorTrainer(model=bert_folder, args=config, train_dataset=sentences)
    trainer.train()
    expected = trainer.encoder(training=False).encode(sentences[:9])
    trainer.finish()
    out = tmp_path / "out"
    assert is_complete(out) and name_on_unedited_card(out) == "out"
    np.testing.assert_allclose(Encoder.from_pretrained(str(out)).encode(sentences[:9]), expected, atol=1e-5)
    record = RunRecord.load(out)
    assert record.metrics == trainer.train_metrics and record.metrics["train_loss"] > 0
    assert record.own_text == trainer.measured["own_text"] and min(record.cosine_after_reload.values()) > 0.9999
    assert any("on your text" in line for line in caplog.messages) and caplog.messages[-1].startswith("next:")
    monkeypatch.setattr(sys, "argv", ["mirror.tools.card", str(out), "--hub_model_id", "me/mine"])
    card.main()
    assert name_on_unedited_card(out) == "me/mine" and is_complete(out)


def test_a_library_that_differs_loses_nothing_of_the_run(bert_folder, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr("mirror.modeling.save_checkpoint.MINIMUM_COSINE", 2)  # which no library reaches
    message = r"reads differently in transformers .*; the encoder, its record and its card"
    with pytest.raises(InputError, match=message):
        train(monkeypatch, bert_folder, sentences, tmp_path / "out")
    assert RunRecord.load(tmp_path / "out").cosine_after_reload == {}
    assert (tmp_path / "out" / "README.md").exists()
    assert Encoder.from_pretrained(str(tmp_path / "out")).encode(["a cat"]).shape == (1, 32)


def test_the_note_of_the_base_model_is_of_this_run(bert_folder, sentences, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("mirror.training.finish.note_local_base", fail)
        train(monkeypatch, bert_folder, sentences, out)
    assert is_complete(out) and f"{out} has no {LOCAL_BASE}: [Errno 5] Input/output error" in caplog.text
    (out / LOCAL_BASE).write_text("of an earlier run")
    with monkeypatch.context() as patch:
        patch.setattr("mirror.training.finish.note_local_base", lambda *_: None)  # as for a model of the Hub
        train(monkeypatch, bert_folder, sentences, out, "--force")
    assert is_complete(out) and not (out / LOCAL_BASE).exists()


def test_nothing_of_an_earlier_run_stays_in_the_folder(bert_folder, sentences, tmp_path, monkeypatch):
    """An earlier layer would change the embeddings, and earlier settings would hide this run's."""
    out = tmp_path / "out"
    texts = [f"the [MASK] and [SEP] {text}" for text in sentences]  # special tokens are trained on and verified too
    train(monkeypatch, bert_folder, texts, out)
    assert min(RunRecord.load(out).cosine_after_reload.values()) > 0.9999
    (out / "9_Dense").mkdir()
    (out / "9_Dense" / "config.json").write_text("{}")
    (out / "training_settings.json").write_text("{}")
    write_manifest(out)
    (out / "mine.txt").write_text("a note")
    train(monkeypatch, bert_folder, sentences, out, "--force")
    assert is_complete(out) and (out / "mine.txt").exists()
    assert not (out / "9_Dense" / "config.json").exists() and not (out / "training_settings.json").exists()


# ---- The next commands: each is one that its program takes, or runs ----


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run, in a folder with a space in its name."""
    monkeypatch.chdir(ROOT)
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "train_results.json").touch()
    return str(folder)


def commands(text: str) -> list[list[str]]:
    heading, *lines = text.splitlines()
    assert heading == "next:"
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("started_as", ["/somewhere/run_mirror.py", "/usr/bin/mirror-train"])
def test_every_next_command_is_taken_by_its_program(run, tmp_path, monkeypatch, started_as):
    monkeypatch.setattr(sys, "argv", [started_as])
    results = [tmp_path / "a" / "results.json", tmp_path / "b" / "results.json"]
    texts = (
        after_training(run, "me/base"),
        after_training(run, "me/base", ["my texts.csv", "--text_column", "title", "body"]),
        after_scoring(["me/base", run], results),
        after_scoring(["me/base"], results[:1]),
    )
    for text in texts:
        assert complaints([Block("next", 1, "bash", text.replace("next:\n", ""))], tmp_path) == ""
        assert ("python " in text) == started_as.endswith(".py")
    assert "/my run' 'my texts.csv' 'a query' --text_column title body " in texts[1]


def test_the_scores_of_a_run_go_on_its_card(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_eval.py"])
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    refresh, push = commands(after_scoring(["me/base", run], [before, after]))[1:]
    assert refresh[2:] == ["mirror.tools.card", run, "--results", str(before), str(after)]
    assert push[2:4] == ["mirror.tools.push", run]
    (refresh,) = [words for words in commands(after_scoring([run], [after])) if "mirror.tools.card" in words]
    assert refresh[-2:] == ["--results", str(after)]


def test_a_model_that_says_no_pooling_is_searched_with_that_of_the_scores(run, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mirror-eval"])
    search, _ = commands(after_scoring(["bert-base-uncased"], [], "cls"))
    assert search == ["mirror-search", "bert-base-uncased", "my_texts.txt", "a query", "--pooling", "cls"]
    assert "--pooling" not in commands(after_scoring(["bert-base-uncased", run], [], "cls"))[0]


def test_the_vectors_are_read_by_the_command_that_is_printed(tmp_path, capsys):
    folder = tmp_path / "the vectors"
    folder.mkdir()
    Dataset.from_dict({"row": [0, 1]}).to_parquet(folder / "shard-000000.parquet")
    ((program, flag, code),) = commands(after_encoding(str(folder)))
    assert (program, flag) == ("python", "-c")
    exec(code, {})
    assert "num_rows: 2" in capsys.readouterr().out

"""The end of a training: a check that fails costs nothing of the run."""

from __future__ import annotations

import errno
import sys

import pytest

import run_mirror
from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.training.manifest import is_complete, write_manifest
from mirror.training.run_record import LOCAL_BASE, RunRecord


def train(monkeypatch, bert_folder, texts, output_dir, *more: str) -> None:
    (output_dir.parent / "texts.txt").write_text("\n".join(texts))
    flags = ["--model_name_or_path", bert_folder, "--train_file", str(output_dir.parent / "texts.txt")]
    flags += ["--pooling", "mean", "--per_device_train_batch_size", "40", "--max_steps", "1", "--disable_tqdm", "true"]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *flags, "--output_dir", str(output_dir), *more])
    run_mirror.main()


def test_a_reader_that_differs_loses_nothing_of_the_run(bert_folder, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr("mirror.modeling.checkpoint.MINIMUM_COSINE", 2)  # which no reader reaches
    with pytest.raises(
        InputError, match=r"reads differently in transformers .*; the encoder, its record and its card"
    ):
        train(monkeypatch, bert_folder, sentences, tmp_path / "out")
    assert RunRecord.load(tmp_path / "out").cosine_after_reload == {}
    assert (tmp_path / "out" / "README.md").exists()
    assert Encoder.from_pretrained(str(tmp_path / "out")).encode(["a cat"]).shape == (1, 32)


def test_the_note_of_the_base_model_is_saved_with_the_encoder(bert_folder, sentences, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(InputError, match=f"^cannot save {out}: .*Input/output error"):
        patch.setattr("mirror.tools.finish_run.note_local_base", fail)
        train(monkeypatch, bert_folder, sentences, out)
    assert not is_complete(out)
    (out / LOCAL_BASE).write_text("of an earlier run")
    with monkeypatch.context() as patch:
        patch.setattr("mirror.tools.finish_run.note_local_base", lambda *_: None)  # as for a model of the Hub
        train(monkeypatch, bert_folder, sentences, out, "--force")
    assert is_complete(out) and not (out / LOCAL_BASE).exists()


def test_a_corpus_of_special_tokens_is_trained_on_and_verified(bert_folder, sentences, tmp_path, monkeypatch):
    texts = [f"the [MASK] and [SEP] {text}" for text in sentences]
    train(monkeypatch, bert_folder, texts, tmp_path / "out")
    assert min(RunRecord.load(tmp_path / "out").cosine_after_reload.values()) > 0.9999


def test_nothing_of_an_earlier_run_stays_in_the_folder(bert_folder, sentences, tmp_path, monkeypatch):
    """A layer of it would change the embeddings, its settings would hide this run's."""
    out = tmp_path / "out"
    train(monkeypatch, bert_folder, sentences, out)
    (out / "9_Dense").mkdir()
    (out / "9_Dense" / "config.json").write_text("{}")
    (out / "training_settings.json").write_text("{}")
    write_manifest(out)
    (out / "mine.txt").write_text("a note")
    train(monkeypatch, bert_folder, sentences, out, "--force")
    assert is_complete(out) and (out / "mine.txt").exists()
    assert not (out / "9_Dense" / "config.json").exists() and not (out / "training_settings.json").exists()

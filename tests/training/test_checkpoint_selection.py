"""Label-free choice of a checkpoint: what is measured, on what, and that the best one is kept."""

from __future__ import annotations

import json
import sys

import pytest

from mirror.common.errors import InputError
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.training.config import MirrorConfig
from mirror.training.selection import combine_scorers
from run_mirror import main
from tests.tiny_trainer import make_trainer


@pytest.fixture
def encoder(bert_folder):
    return Encoder(*load_backbone(bert_folder, "mean"), "mean", 24)


def test_the_checkpoint_of_the_best_score_is_kept(bert_folder, sentences, tmp_path, monkeypatch):
    texts = [f"{text} {sentences[number - 1]}" for number, text in enumerate(sentences)]  # of six words and more
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    flags = ["--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt", "--max_seq_length", 24]
    flags += ["--output_dir", tmp_path / "out", "--per_device_train_batch_size", 20, "--num_train_epochs", 2]
    flags += ["--select_by", "--validation_samples", 60, "--eval_steps", 3]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, flags), "--learning_rate", "5e-2"])
    main()
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    curve = {row["step"]: row["eval_own_text"] for row in history if "eval_own_text" in row}
    assert list(curve) == [3, 6, 9, 12, 15, 18]
    best = max(curve, key=curve.get)
    assert best != 18  # or the last one would do as well
    kept, chosen = (
        Encoder.from_pretrained(str(folder)).encode(sentences[:4])
        for folder in (tmp_path / "out", tmp_path / "out" / f"checkpoint-{best}")
    )
    assert (kept == chosen).all()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"select_by": "loss"}, "--select_by 'loss' is unknown; one of own_text"),
        ({"validation_samples": 1}, "--validation_samples must be 0 or at least 2, got 1"),
        ({"select_by": "own_text", "validation_samples": 0}, "needs held-out texts"),
    ],
)
def test_what_is_wrong_is_said(flags, message):
    with pytest.raises(InputError, match=message):
        MirrorConfig(**flags)


def test_a_score_that_is_no_number_is_refused(encoder):
    score = combine_scorers(None, lambda encoder: {"mine": float("nan")})
    with pytest.raises(InputError, match="the score mine is nan, with which no checkpoint can be chosen"):
        score(encoder)


def test_an_evaluation_without_a_score_is_refused(bert_folder, sentences, tmp_path):
    names = [" ".join(text.split()[:3]) for text in sentences]
    with pytest.raises(
        InputError, match="--eval_strategy steps: no test fits the texts that are held out; leave it out"
    ):
        make_trainer(bert_folder, names, tmp_path, eval_strategy="steps", eval_steps=2, validation_samples=60)

"""Label-free choice of a checkpoint: what is measured, on what, and that the best one is kept."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from datasets import Dataset

from mirror.common.errors import InputError
from mirror.data.views import TwoViewDataset
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.training.config import MirrorConfig
from mirror.training.selection import alignment_uniformity_scorer, combine_scorers, noisy_views
from run_mirror import main


@pytest.fixture
def held_out(tokenizer, sentences):
    views = MirrorConfig(span_mask_min_chars=10, max_seq_length=24, seed=1).view_settings(tokenizer)
    return TwoViewDataset(Dataset.from_dict({"text": sentences[:70]}), tokenizer, views)


@pytest.fixture
def encoder(bert_folder):
    return Encoder(*load_backbone(bert_folder, "mean"), "mean", 24)


def test_the_noise_is_the_same_each_time_and_leaves_the_generator_alone(encoder, held_out):
    before = torch.get_rng_state()
    first, second = noisy_views(encoder, held_out)
    assert torch.equal(torch.get_rng_state(), before) and not encoder.model.training
    again, _ = noisy_views(encoder, held_out)
    assert torch.equal(first, again) and first.shape == (70, 32)
    quiet = torch.tensor(encoder.encode(held_out.texts["text"][:]))
    assert (first - quiet).abs().max() > 0.01  # dropout is on
    assert not torch.equal(first, second)


def test_the_criterion_is_the_sum_of_both_by_their_definitions(encoder, held_out):
    scores = alignment_uniformity_scorer(held_out)(encoder)
    first, second = (torch.nn.functional.normalize(side, dim=1) for side in noisy_views(encoder, held_out))
    pairs = torch.cdist(first, first)[torch.triu(torch.ones(70, 70), 1) == 1].square()
    assert scores["alignment"] == pytest.approx((first - second).square().sum(1).mean().item(), rel=1e-4)
    assert scores["uniformity"] == pytest.approx((-2 * pairs).exp().mean().log().item(), rel=1e-4)
    assert scores["alignment_uniformity"] == pytest.approx(scores["alignment"] + scores["uniformity"])


def test_the_checkpoint_of_the_lowest_sum_is_kept(bert_folder, sentences, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    flags = ["--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt", "--max_seq_length", 24]
    flags += ["--output_dir", tmp_path / "out", "--per_device_train_batch_size", 20, "--num_train_epochs", 2]
    flags += ["--select_by", "alignment_uniformity", "--validation_samples", 40, "--eval_steps", 4]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, flags), "--learning_rate", "3e-2"])
    main()
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    curve = {row["step"]: row["eval_alignment_uniformity"] for row in history if "eval_alignment_uniformity" in row}
    assert list(curve) == [4, 8, 12, 16, 20]
    best = min(curve, key=curve.get)
    assert best != 20  # or the last one would do as well
    kept, chosen = (
        Encoder.from_pretrained(str(folder)).encode(sentences[:4])
        for folder in (tmp_path / "out", tmp_path / "out" / f"checkpoint-{best}")
    )
    assert (kept == chosen).all()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"select_by": "loss"}, "--select_by 'loss' is unknown; one of own_text, alignment_uniformity"),
        ({"validation_samples": 1}, "--validation_samples must be 0 or at least 2, got 1"),
        ({"select_by": "alignment_uniformity", "validation_samples": 0}, "needs held-out texts"),
    ],
)
def test_what_is_wrong_is_said(flags, message):
    with pytest.raises(InputError, match=message):
        MirrorConfig(**flags)


def test_a_score_that_is_no_number_is_refused(encoder):
    score = combine_scorers(None, lambda encoder: {"mine": float("nan")})
    with pytest.raises(InputError, match="the score mine is nan, with which no checkpoint can be chosen"):
        score(encoder)

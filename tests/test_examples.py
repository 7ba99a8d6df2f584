"""The examples run, and what they show is true: their losses and noise are used, named, and resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from examples import dclr, own_loss_and_noise
from mirror.training.losses import info_nce
from tests.tiny_trainer import make_trainer, run_whole_and_resumed


TINY = {"per_device_train_batch_size": 20, "max_steps": 2, "max_seq_length": 24, "bf16": False, "pooling": "mean"}


@pytest.mark.parametrize(
    ("example", "loss", "noise"), [(own_loss_and_noise, "triplet_margin", "first_letters"), (dclr, "DCLR", "span")]
)
def test_an_example_leaves_a_finished_run(example, loss, noise, bert_folder, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    example.main(str(tmp_path / "texts.txt"), str(tmp_path / "out"), bert_folder, **TINY)
    settings = json.loads((tmp_path / "out" / "train_results.json").read_text())["settings"]
    assert (settings["loss"], settings["augmentation"]) == (loss, noise)
    card = (tmp_path / "out" / "README.md").read_text()
    assert loss in card and "nt_xent" not in card


def test_the_own_loss_and_noise_do_what_they_say():
    first, second = torch.eye(3), torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0, 0, 1.0]])
    assert own_loss_and_noise.triplet_margin(first, first) == 0
    # The hardest text is as near as the second view, not as near, and nearer by 1: margins .3, 0 and 1.3.
    assert own_loss_and_noise.triplet_margin(first, second).item() == pytest.approx((0.3 + 0.3 + 0) / 3)
    assert own_loss_and_noise.first_letters("red bird", np.random.default_rng(1)) in ("r bird", "red b")


def test_dclr_is_info_nce_with_noise_and_resumes_to_the_last_bit(bert_folder, sentences, tmp_path):
    first, second = torch.randn(6, 8), torch.randn(6, 8)
    noise = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    expected = info_nce(first, second, 0.05, negatives=noise, false_negative_cosine=0.9)
    assert torch.equal(dclr.DCLR()(first, second), expected) and expected > info_nce(first, second, 0.05)
    whole, again = run_whole_and_resumed(bert_folder, sentences, tmp_path, loss_module=dclr.DCLR)
    assert whole.loss.step == again.loss.step == 9
    assert make_trainer(bert_folder, sentences, tmp_path / "x", loss_module=dclr.DCLR()).settings["loss"] == "DCLR"

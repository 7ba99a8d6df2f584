"""The example runs, and what it shows is true: its loss and noise are used and named."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from examples import own_loss_and_noise


TINY = {"per_device_train_batch_size": 20, "max_steps": 2, "max_seq_length": 24, "bf16": False, "pooling": "mean"}


def test_the_example_leaves_a_finished_run(bert_folder, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    own_loss_and_noise.main(str(tmp_path / "texts.txt"), str(tmp_path / "out"), bert_folder, **TINY)
    settings = json.loads((tmp_path / "out" / "train_results.json").read_text())["settings"]
    assert (settings["loss"], settings["augmentation"]) == ("triplet_margin", "first_letters")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "triplet_margin" in card and "nt_xent" not in card


def test_the_own_loss_and_noise_do_what_they_say():
    first, second = torch.eye(3), torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0, 0, 1.0]])
    assert own_loss_and_noise.triplet_margin(first, first) == 0
    # The hardest text is as near as the second view, not as near, and nearer by 1: margins .3, 0 and 1.3.
    assert own_loss_and_noise.triplet_margin(first, second).item() == pytest.approx((0.3 + 0.3 + 0) / 3)
    assert own_loss_and_noise.first_letters("red bird", np.random.default_rng(1)) in ("r bird", "red b")

"""Texts that are no negatives of each other: rows of pairs that share a text, and what a guide finds more similar."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset

from mirror.common.errors import InputError
from mirror.data.batches import FalseNegatives
from mirror.data.cleaning import Corpus
from mirror.training.config import MirrorConfig
from mirror.training.losses import info_nce, multi_similarity
from mirror.training.trainer import MirrorTrainer


ROWS = Dataset.from_dict({"text": ["q", "q", "r", "s", "a"], "text_pair": ["a", "b", "c", "", "d"]})
SHARES = {(0, 1), (0, 4)}  # rows: a question with two answers, and an answer that is an anchor elsewhere


def test_rows_that_share_a_text_are_found_wherever_it_stands():
    rows = torch.arange(5)
    found = FalseNegatives(ROWS)(rows, rows).view(2, 5, 2, 5)
    expected = torch.eye(5, dtype=torch.bool)
    for first, second in SHARES:
        expected[first, second] = expected[second, first] = True
    for side in found.permute(0, 2, 1, 3).flatten(0, 1):
        assert torch.equal(side, expected)
    some = FalseNegatives(ROWS)(torch.tensor([1, 3]), rows)
    assert torch.equal(some, found.reshape(10, 10)[[1, 3, 6, 8]])


def test_a_guide_masks_what_is_more_similar_than_the_positive():
    angles = {"q": 0, "a": 30, "b": 100, "r": 200, "c": 230, "s": 300, "d": 10}
    encoded = []

    def guide(texts):
        encoded.extend(texts)
        return np.array([(np.cos(np.deg2rad(angles[text])), np.sin(np.deg2rad(angles[text]))) for text in texts])

    rows = torch.arange(5)
    found = FalseNegatives(ROWS, guide)(rows, rows)
    assert sorted(encoded) == sorted(angles)  # each text once
    texts = [*ROWS["text"], *(pair or text for text, pair in zip(ROWS["text"], ROWS["text_pair"], strict=True))]
    shared = FalseNegatives(ROWS)(rows, rows)
    for anchor in range(10):
        for other in range(10):
            cosine = [
                np.cos(np.deg2rad(angles[texts[anchor]] - angles[texts[at]])) for at in (other, (anchor + 5) % 10)
            ]
            if abs(cosine[0] - cosine[1]) > 1e-6:
                assert found[anchor, other] == (bool(shared[anchor, other]) or cosine[0] > cosine[1])


@pytest.mark.parametrize("form", ["nt_xent", "decoupled", "one_way"])
def test_the_loss_is_that_without_the_masked_texts(form):
    """The oracle leaves the masked logits out of the sums, anchor by anchor."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    rows = torch.arange(5)
    masked = FalseNegatives(ROWS)(rows, rows)
    unit = torch.nn.functional.normalize(torch.cat([first, second]), dim=1)
    logits = unit @ unit.T / 0.2
    losses = []
    for anchor in range(5 if form == "one_way" else 10):
        positive = (anchor + 5) % 10
        candidates = range(5, 10) if form == "one_way" else range(10)
        negatives = [other for other in candidates if not masked[anchor, other]]
        kept = negatives if form == "decoupled" else [positive, *negatives]
        losses.append(logits[anchor, kept].logsumexp(0) - logits[anchor, positive])
    loss = info_nce(first, second, 0.2, form, false_negatives=masked)
    assert loss.item() == pytest.approx(torch.stack(losses).mean().item())
    parts = [
        info_nce(
            *(first[part], second[part], 0.2, form, first, second),
            offset=part.start,
            false_negatives=FalseNegatives(ROWS)(rows[part], rows),
        ) * (part.stop - part.start)
        for part in (slice(0, 2), slice(2, 5))
    ]  # fmt: skip
    assert sum(parts).item() / 5 == pytest.approx(loss.item())  # as over two processes


@pytest.mark.parametrize("form", ["nt_xent", "decoupled", "one_way"])
def test_a_batch_of_one_question_trains_nothing_and_stays_finite(form):
    first, second = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_().unbind()
    loss = info_nce(first, second, 0.2, form, false_negatives=torch.ones(8, 8, dtype=torch.bool))
    gradient = torch.autograd.grad(loss, first)[0]
    assert loss.isfinite() and gradient.abs().max() < 1e-6


def test_multi_similarity_mines_no_masked_negative():
    first, second = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).unbind()
    rows = torch.arange(5)
    nothing = torch.zeros(10, 10, dtype=torch.bool)
    plain = multi_similarity(first, second)
    assert multi_similarity(first, second, false_negatives=nothing) == plain
    assert multi_similarity(first, second, false_negatives=FalseNegatives(ROWS)(rows, rows)) < plain
    assert multi_similarity(first, second, false_negatives=~nothing) == 0


def pairs_trainer(folder, out, sentences, loss=None, **flags) -> MirrorTrainer:
    rows = {"text": [sentences[at // 2] for at in range(80)], "text_pair": sentences[80:140] + [""] * 20}
    defaults = {
        "per_device_train_batch_size": 20,
        "max_seq_length": 24,
        "max_steps": 2,
        "pooling": "mean",
        "bf16": False,
    }
    config = MirrorConfig(
        output_dir=str(out), disable_tqdm=True, logging_steps=1, validation_samples=0, **defaults | flags
    )
    return MirrorTrainer(folder, config, Corpus(Dataset.from_dict(rows)), loss=loss)


def losses_of(trainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    ("guide", "flags"),
    [
        (None, {"packing": "on"}),
        ("base", {"matryoshka_dims": [8]}),
        pytest.param(None, {"projection_head": True}, marks=pytest.mark.slow),
        pytest.param("base", {}, marks=pytest.mark.slow),
    ],
)
def test_training_with_gradient_caching_is_the_same(bert_folder, sentences, tmp_path, monkeypatch, flags, guide):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    flags = {"guide": guide, "dropout_rate": 0.0, "packing": "off", **flags}
    whole = losses_of(pairs_trainer(bert_folder, tmp_path / "a", sentences, **flags))
    parts = losses_of(pairs_trainer(bert_folder, tmp_path / "b", sentences, mini_batch_size=5, **flags))
    assert parts == pytest.approx(whole, abs=2e-4)
    if guide:
        assert list((tmp_path / "cache" / "mirror-guide").glob("*/*.npz"))


def test_a_loss_sees_the_mask_only_if_it_takes_it(bert_folder, sentences, tmp_path):
    seen = []

    def strict(first, second):
        return info_nce(first, second, 0.2)

    def lenient(first, second, **gathered):
        seen.append(gathered["false_negatives"])
        return info_nce(first, second, 0.2, **gathered)

    losses_of(pairs_trainer(bert_folder, tmp_path / "a", sentences, strict))
    losses_of(pairs_trainer(bert_folder, tmp_path / "b", sentences, lenient))
    assert [mask.shape for mask in seen] == [(40, 40)] * 2 and all(mask.sum() >= 80 for mask in seen)
    with pytest.raises(InputError, match="--guide needs pairs, all at once, and a loss that takes false_negatives"):
        pairs_trainer(bert_folder, tmp_path / "c", sentences, strict, guide="base")

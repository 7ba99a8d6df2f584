"""A queue of earlier texts, encoded by a momentum copy, and noise: what they hold, how they move, how they come back."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from mirror.common.errors import InputError
from mirror.training.losses import info_nce
from mirror.training.negatives import noise_negatives
from tests.tiny_trainer import At, make_trainer, run_whole_and_resumed
from tests.training.test_trainer import weights


QUEUE = {"negative_queue": 50, "queue_momentum": 0.9}
EXACT = {"dropout_rate": 0.0, "learning_rate": 1e-2, "optim": "sgd", "logging_steps": 1}


def copy_of(trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.objective.queue.copy[0].state_dict().items()}


@pytest.mark.parametrize("packing", ["on", "off"])
def test_it_holds_the_last_first_views_by_a_copy_that_lags(bert_folder, sentences, tmp_path, packing):
    """Followed by hand for four steps: the copy, its vectors, and the loss against those of earlier steps."""
    trainer = make_trainer(bert_folder, sentences, tmp_path, max_steps=4, packing=packing, **QUEUE, **EXACT)
    by_hand, own, queued, embed, contrast = deepcopy(trainer.model).eval(), [], [], trainer.embed, trainer.contrast
    start = copy_of(trainer)

    def embed_with_the_copy_too(model, inputs):
        if model.training:
            queued.append(embed(by_hand, inputs).detach().chunk(2)[0])
        return embed(model, inputs)

    def compare(first, second):
        loss, earlier = contrast(first, second), torch.cat([torch.empty(0, 32), *queued[:-1]])[-50:]
        torch.testing.assert_close(loss, info_nce(first, second, 0.04, negatives=earlier))
        own.append(first.detach())
        return loss

    def move_by_hand():
        state, now = by_hand.state_dict(), weights(trainer)
        by_hand.load_state_dict({name: 0.9 * value + 0.1 * now[name] for name, value in state.items()})

    trainer.embed, trainer.contrast = embed_with_the_copy_too, compare
    for step in range(1, 5):
        trainer.add_callback(At(step, move_by_hand))
    trainer.train()
    torch.testing.assert_close(trainer.objective.queue.vectors, torch.cat(queued)[-50:], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(queued[0], own[0], rtol=1e-4, atol=1e-5)  # the copy starts as the encoder
    assert (queued[3] - own[3]).abs().max() > 1e-3  # and lags behind it
    for name, value in copy_of(trainer).items():
        torch.testing.assert_close(value, by_hand.state_dict()[name], rtol=1e-4, atol=1e-6)
    assert max((value - start[name]).abs().max() for name, value in copy_of(trainer).items()) > 1e-4


def test_gradient_caching_changes_nothing(bert_folder, sentences, tmp_path):
    plain = make_trainer(bert_folder, sentences, tmp_path / "a", max_steps=4, **QUEUE, **EXACT)
    cached = make_trainer(bert_folder, sentences, tmp_path / "b", max_steps=4, mini_batch_size=7, **QUEUE, **EXACT)
    plain.train()
    cached.train()
    torch.testing.assert_close(cached.objective.queue.vectors, plain.objective.queue.vectors, rtol=1e-3, atol=1e-4)
    for one, other in zip(plain.state.log_history[:4], cached.state.log_history[:4], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_works_in_low_precision(bert_folder, sentences, tmp_path, precision):
    exact = make_trainer(bert_folder, sentences, tmp_path / "a", max_steps=3, **QUEUE, **EXACT)
    rough = make_trainer(bert_folder, sentences, tmp_path / "b", max_steps=3, **QUEUE, **EXACT, **{precision: True})
    exact.train()
    rough.train()
    vectors = rough.objective.queue.vectors
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, exact.objective.queue.vectors, rtol=0.1, atol=0.1)


def test_it_is_resumed_to_the_last_bit_and_not_in_the_encoder(bert_folder, sentences, tmp_path):
    whole, again = run_whole_and_resumed(bert_folder, sentences, tmp_path, **QUEUE, noise_negatives=8)
    assert torch.equal(again.objective.queue.vectors, whole.objective.queue.vectors)
    for name, value in copy_of(whole).items():
        assert torch.equal(value, copy_of(again)[name]), name
    whole.save_model(str(tmp_path / "encoder"))
    assert not (tmp_path / "encoder" / "negative_queue.safetensors").exists()


def test_a_checkpoint_without_a_queue_is_refused(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path, **QUEUE)
    with pytest.raises(InputError, match="holds no queue of negatives; resume without --negative_queue"):
        trainer._load_optimizer_and_scheduler(str(tmp_path))


def test_the_summary_counts_the_queue_and_its_memory(bert_folder, sentences, tmp_path):
    plain = make_trainer(bert_folder, sentences, tmp_path)
    queued = make_trainer(bert_folder, sentences, tmp_path, negative_queue=50, noise_negatives=8)
    assert "40 anchors x 39 candidates" in plain.summary and "queue" not in plain.summary
    assert "40 anchors x 97 candidates" in queued.summary
    weights_of = sum(parameter.numel() for parameter in queued.model.parameters())
    expected = (weights_of + 50 * 32) * 4 / 1e6
    assert f"of which {expected:.0f} MB for the queue and its encoder" in queued.summary


def test_noise_is_a_function_of_seed_and_step():
    noise = noise_negatives(2000, 16, seed=5, step=3, device=torch.device("cpu"))
    assert noise.shape == (2000, 16) and noise.dtype == torch.float32
    assert noise.mean().abs() < 0.02 and noise.std().item() == pytest.approx(1, abs=0.02)
    assert torch.equal(noise, noise_negatives(2000, 16, 5, 3, torch.device("cpu")))
    for seed, step in ((5, 4), (6, 3)):
        assert not torch.equal(noise, noise_negatives(2000, 16, seed, step, torch.device("cpu")))


def test_noise_is_in_the_loss_and_leaves_the_noise_of_the_views_as_it_is(bert_folder, sentences, tmp_path):
    logs = []
    for options in ({}, {"noise_negatives": 300}):
        trainer = make_trainer(bert_folder, sentences, tmp_path, max_steps=1, logging_steps=1, **options)
        trainer.train()
        logs.append(trainer.state.log_history[0])
    assert logs[1]["loss"] > logs[0]["loss"]
    assert [logs[1][key] for key in ("alignment", "uniformity")] == [
        logs[0][key] for key in ("alignment", "uniformity")
    ]


def test_the_share_of_negatives_left_out_is_logged(bert_folder, sentences, tmp_path):
    logs = []
    for options in ({}, {"false_negative_weighting": 0.5}):
        trainer = make_trainer(bert_folder, sentences, tmp_path, max_steps=1, logging_steps=1, **options)
        trainer.train()
        logs.append(trainer.state.log_history[0])
    assert "false_negatives" not in logs[0] and 0 < logs[1]["false_negatives"] <= 1
    assert logs[1]["loss"] < logs[0]["loss"]

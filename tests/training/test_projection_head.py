"""A projection head: between the vectors and the loss, trained, resumed, and not in the encoder."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.training.losses import info_nce
from tests.tiny_trainer import make_trainer, run_whole_and_resumed
from tests.training.test_trainer import weights
from tests.two_at_once import run_two_processes


HEAD = {"projection_head": "mlp"}
DESCEND = {"optim": "sgd", "learning_rate": 0.05, "dropout_rate": 0.0, "max_steps": 1, "weight_decay": 0.0}


def head_of(trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.objective.projection.parameters()]


def test_the_loss_is_computed_behind_it_and_it_goes_down_its_gradient(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path, **HEAD, **DESCEND, logging_steps=1)
    batch = next(iter(trainer.get_train_dataloader()))
    weight, bias = (value.requires_grad_() for value in head_of(trainer))
    first, second = trainer.embed(trainer.model.eval(), batch).detach().chunk(2)
    loss = info_nce(*(torch.tanh(view @ weight.T + bias) for view in (first, second)), 0.04)
    gradients = torch.autograd.grad(loss, (weight, bias))
    expected = [value.detach() - 0.05 * gradient for value, gradient in zip((weight, bias), gradients, strict=True)]
    assert weight.std().item() == pytest.approx(0.02, rel=0.1) and not bias.any()

    trainer = make_trainer(bert_folder, sentences, tmp_path, **HEAD, **DESCEND, logging_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss.item(), rel=1e-4)
    torch.testing.assert_close(head_of(trainer), expected, rtol=1e-3, atol=1e-6)
    assert gradients[0].abs().max() > 1e-4


@pytest.mark.parametrize("options", [{"mini_batch_size": 7}, {"packing": "off"}])
def test_it_is_trained_alike_in_every_way_of_training(bert_folder, sentences, tmp_path, options):
    common = HEAD | DESCEND | {"max_steps": 3}
    plain = make_trainer(bert_folder, sentences, tmp_path / "plain", **common)
    start = head_of(plain)
    other = make_trainer(bert_folder, sentences, tmp_path / "other", **common, **options)
    plain.train()
    other.train()
    assert (head_of(plain)[0] - start[0]).abs().max() > 1e-4
    torch.testing.assert_close(head_of(other), head_of(plain), rtol=1e-3, atol=1e-5)


def test_it_is_resumed_to_the_last_bit_and_not_in_the_encoder(bert_folder, sentences, tmp_path):
    whole, again = run_whole_and_resumed(bert_folder, sentences, tmp_path, **HEAD)
    for mine, theirs in zip(head_of(again), head_of(whole), strict=True):
        assert torch.equal(mine, theirs)
    whole.save_model(str(tmp_path / "encoder"))
    assert not (tmp_path / "encoder" / "projection_head.safetensors").exists()
    make_trainer(bert_folder, sentences, tmp_path / "plain").save_model(str(tmp_path / "plain"))
    encoders = [load_file(tmp_path / name / "model.safetensors") for name in ("encoder", "plain")]
    assert encoders[0].keys() == encoders[1].keys()
    assert Encoder.from_pretrained(str(tmp_path / "encoder")).encode(["a cat"]).shape == (1, 32)


def test_a_checkpoint_of_the_other_kind_is_refused(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path, **HEAD)
    with pytest.raises(InputError, match="holds no projection head; resume without --projection_head"):
        trainer._load_optimizer_and_scheduler(str(tmp_path))
    trainer.objective.projection.save(str(tmp_path))
    without = make_trainer(bert_folder, sentences, tmp_path)
    with pytest.raises(InputError, match="was made with --projection_head; resume with it too"):
        without._load_optimizer_and_scheduler(str(tmp_path))


@pytest.mark.slow
def test_two_processes_are_one_with_the_joint_batch(bert_folder, sentences, tmp_path):
    """With a queue and noise too, which all processes share."""
    options = DESCEND | HEAD | {"max_steps": 4, "negative_queue": 30, "queue_momentum": 0.9, "noise_negatives": 5}
    options |= {"batching": "length", "hardness": 2.0, "save_strategy": "steps", "save_steps": 4}
    one = make_trainer(bert_folder, sentences, tmp_path / "one", per_device_train_batch_size=20, **options)
    start = head_of(one)
    one.train()

    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    flags = [f"{key}={value}" for key, value in options.items()]
    run_two_processes("-m", "tests.two_processes", bert_folder, str(tmp_path), *flags)

    head = load_file(tmp_path / "two" / "checkpoint-4" / "projection_head.safetensors")
    assert (head_of(one)[0] - start[0]).abs().max() > 1e-4
    torch.testing.assert_close([head["0.weight"], head["0.bias"]], head_of(one), rtol=1e-3, atol=1e-6)
    queue = load_file(tmp_path / "two" / "checkpoint-4" / "negative_queue.safetensors")["vectors"]
    assert queue.shape == (30, 32)
    torch.testing.assert_close(queue, one.objective.queue.vectors, rtol=1e-3, atol=1e-4)
    two = load_file(tmp_path / "two" / "model.safetensors")
    for name, value in weights(one).items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)

"""Losses as objects: what wraps a loss is trained, resumed and not in the encoder; a user's own loss and noise are used and named."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.training.config import MirrorConfig
from mirror.training.losses import InfoNCE, Matryoshka, ProjectionHead, info_nce
from mirror.training.options import LOSSES
from mirror.training.resumable import LOSS_STATE
from mirror.training.trainer import MirrorTrainer
from tests.processes import run_two_processes
from tests.tiny_trainer import make_trainer, run_whole_and_resumed, weights


HEAD = {"projection_head": True}
# Plain gradient descent shows the gradient itself: a parameter moves by the rate times it.
DESCEND = {"optim": "sgd", "learning_rate": 0.05, "dropout_rate": 0.0, "max_steps": 1, "logging_steps": 1}


class Tempered(nn.Module):
    """InfoNCE with a temperature of 0.2 that is trained by its logarithm."""

    def __init__(self):
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.2)))

    def forward(self, first, second, **gathered):
        return info_nce(first, second, self.log_temperature.exp(), **gathered)


def parameters_of(trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.loss.parameters()]


def views_of_first_batch(trainer) -> tuple[torch.Tensor, torch.Tensor]:
    batch = next(iter(trainer.get_train_dataloader()))
    return trainer.embed(trainer.model.eval(), batch).detach().chunk(2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"loss": "nt_xnet"}, "--loss 'nt_xnet' is unknown; one of nt_xent, .*; did you mean 'nt_xent'"),
        ({"hardness": -1.0}, "--hardness must be 0 or more, got -1.0"),
        ({"matryoshka_dims": [8, 8]}, "--matryoshka_dims must be different positive numbers, got 8 8"),
        ({"matryoshka_dims": [0]}, "--matryoshka_dims must be different positive numbers, got 0"),
        ({"matryoshka_dims": [8], "projection_head": True}, "behind --projection_head; leave out one of the two"),
        ({"loss": "multi_similarity", "hardness": 1.0}, "--loss multi_similarity has no --hardness"),
    ],
)
def test_a_wrong_flag_is_named(flags, message):
    with pytest.raises(InputError, match=message):
        MirrorConfig(**flags)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InfoNCE(temperature=0), "temperature must be positive, got 0"),
        (lambda: InfoNCE(form="two_way"), "form 'two_way' is unknown; one of nt_xent, decoupled, one_way"),
        (lambda: InfoNCE(hardness=-1), "hardness must be 0 or more"),
        (lambda: info_nce(torch.eye(2), torch.eye(2), 0.1, "two_way"), "form 'two_way' is unknown"),
        (lambda: info_nce(torch.eye(2), torch.eye(2), -1), "temperature must be positive, got -1"),
        (lambda: Matryoshka(InfoNCE(), [16, 32], width=32), "--matryoshka_dims 32: the vectors have 32 dimensions"),
    ],
)
def test_a_loss_brings_its_own_checks(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("name", LOSSES)
def test_every_name_is_a_loss_with_a_description(name, bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path, loss=name, max_steps=1, logging_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 0
    assert trainer.summary.startswith(f"20 texts per step on 1 process(es), each compared with 20 by {name}, float32")


def test_a_scalar_of_a_loss_goes_down_its_gradient_without_decay(bert_folder, sentences, tmp_path):
    options = DESCEND | {"loss_module": Tempered, "weight_decay": 0.5}
    first, second = (
        view.double() for view in views_of_first_batch(make_trainer(bert_folder, sentences, tmp_path, **options))
    )
    high, low = (info_nce(first, second, 0.2 * math.exp(sign * 1e-3)).item() for sign in (1, -1))
    gradient = (high - low) / 2e-3  # by the logarithm of the temperature, which is the parameter
    trainer = make_trainer(bert_folder, sentences, tmp_path, **options)
    trainer.train()
    assert abs(gradient) > 0.01
    assert trainer.loss.log_temperature.item() - math.log(0.2) == pytest.approx(-0.05 * gradient, rel=0.01)


def test_the_loss_is_computed_behind_the_head_and_it_goes_down_its_gradient(bert_folder, sentences, tmp_path):
    options = DESCEND | HEAD | {"weight_decay": 0.0}
    trainer = make_trainer(bert_folder, sentences, tmp_path, **options)
    weight, bias = (value.requires_grad_() for value in parameters_of(trainer))
    views = views_of_first_batch(trainer)
    loss = info_nce(*(torch.tanh(view @ weight.T + bias) for view in views), 0.04)
    gradients = torch.autograd.grad(loss, (weight, bias))
    expected = [value.detach() - 0.05 * gradient for value, gradient in zip((weight, bias), gradients, strict=True)]
    assert weight.std().item() == pytest.approx(0.02, rel=0.1) and not bias.any()

    trainer = make_trainer(bert_folder, sentences, tmp_path, **options)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss.item(), rel=1e-4)
    torch.testing.assert_close(parameters_of(trainer), expected, rtol=1e-3, atol=1e-6)
    assert gradients[0].abs().max() > 1e-4


@pytest.mark.parametrize(
    "options",
    [{"mini_batch_size": 7}, pytest.param({"packing": "off"}, marks=pytest.mark.slow), {"bf16": True}],
    ids=str,
)
def test_it_is_trained_alike_in_every_way_of_training(bert_folder, sentences, tmp_path, options):
    common = HEAD | DESCEND | {"loss_module": Tempered, "max_steps": 3}
    plain = make_trainer(bert_folder, sentences, tmp_path / "plain", **common)
    start = parameters_of(plain)
    other = make_trainer(bert_folder, sentences, tmp_path / "other", **common | options)
    plain.train()
    other.train()
    assert (parameters_of(plain)[0] - start[0]).abs().max() > 1e-4
    tolerance = {"rtol": 0.1, "atol": 1e-2} if options.get("bf16") else {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(parameters_of(other), parameters_of(plain), **tolerance)


def test_it_is_resumed_to_the_last_bit_and_not_in_the_encoder(bert_folder, sentences, tmp_path):
    whole, again = run_whole_and_resumed(bert_folder, sentences, tmp_path, loss_module=Tempered, **HEAD)
    for mine, theirs in zip(parameters_of(again), parameters_of(whole), strict=True):
        assert torch.equal(mine, theirs)
    whole.save_model(str(tmp_path / "encoder"))
    make_trainer(bert_folder, sentences, tmp_path / "plain").save_model(str(tmp_path / "plain"))
    assert not (tmp_path / "encoder" / LOSS_STATE).exists()
    encoders = [load_file(tmp_path / name / "model.safetensors") for name in ("encoder", "plain")]
    assert encoders[0].keys() == encoders[1].keys()

    changed = make_trainer(bert_folder, sentences, tmp_path / "changed", force=True, max_steps=9)
    with pytest.raises(InputError, match="checkpoint-4 holds the state of another loss"):
        changed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))


def test_shorter_vectors_are_trained_and_can_be_read(bert_folder, sentences, tmp_path):
    options = DESCEND | {"matryoshka_dims": [16, 4]}
    first, second = views_of_first_batch(make_trainer(bert_folder, sentences, tmp_path, **options))
    parts = [info_nce(first[:, :d], second[:, :d], 0.04).item() for d in (32, 16, 4)]
    trainer = make_trainer(bert_folder, sentences, tmp_path, **options)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(sum(parts), rel=1e-4)
    trainer.save_model(str(tmp_path / "encoder"))
    whole = Encoder.from_pretrained(str(tmp_path / "encoder")).encode(sentences[:3])
    short = Encoder.from_pretrained(str(tmp_path / "encoder"), truncate_dim=4)
    np.testing.assert_array_equal(short.encode(sentences[:3]), whole[:, :4])
    theirs = SentenceTransformer(str(tmp_path / "encoder"), device="cpu", truncate_dim=4).encode(sentences[:3])
    np.testing.assert_allclose(theirs, whole[:, :4], atol=1e-5)


def test_the_module_is_the_flag(bert_folder, sentences, tmp_path):
    """To the last bit, wrapped or not."""
    flags = {"loss": "one_way", "temperature": 0.1, "hardness": 2.0}
    by_flag = make_trainer(bert_folder, sentences, tmp_path / "a", max_steps=3, **flags)
    by_flag.train()
    module = InfoNCE(0.1, "one_way", hardness=2.0)
    by_module = make_trainer(bert_folder, sentences, tmp_path / "b", max_steps=3, loss_module=module)
    by_module.train()
    for name, value in weights(by_flag).items():
        assert torch.equal(value, weights(by_module)[name]), name
    assert by_module.settings["loss"] == "InfoNCE"
    assert by_module.settings["loss_description"] == "InfoNCE(temperature=0.1, form=one_way, hardness=2)"
    assert "temperature" not in by_module.settings


class Scaled(nn.Module):
    """A loss of a user's own: squared distances, with a parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, first, second, **gathered):
        self.calls += 1
        return ((first - second).square().mean() * self.scale).sum()


def test_a_loss_of_ones_own_is_trained_resumed_and_named(bert_folder, sentences, tmp_path):
    whole, again = run_whole_and_resumed(bert_folder, sentences, tmp_path, loss_module=Scaled)
    assert whole.loss.calls == again.loss.calls == 9
    assert torch.equal(whole.loss.scale, again.loss.scale) and whole.loss.scale[0] < 1
    assert whole.settings["loss"] == "Scaled" and whole.settings["loss_description"] == "Scaled()"


def test_a_function_is_a_loss_too_and_flags_wrap_it(bert_folder, sentences, tmp_path):
    def distance(first, second):
        return (first - second).square().mean()

    trainer = make_trainer(bert_folder, sentences, tmp_path, max_steps=1, loss_module=distance, projection_head=True)
    trainer.train()
    assert isinstance(trainer.loss, ProjectionHead) and trainer.settings["loss"] == "distance"


def test_another_function_of_the_same_name_is_another_run(bert_folder, sentences, tmp_path):
    def closer(scale):
        def distance(first, second):
            return scale * (first - second).square().mean()

        return distance

    flags = {"save_strategy": "steps", "save_steps": 2}
    make_trainer(bert_folder, sentences, tmp_path, max_steps=2, loss_module=closer(1.0), **flags).train()
    make_trainer(bert_folder, sentences, tmp_path, max_steps=3, loss_module=closer(1.0), **flags).train(True)
    with pytest.raises(InputError, match="is of another run .*loss_digest"):
        make_trainer(bert_folder, sentences, tmp_path, max_steps=4, loss_module=closer(2.0), **flags).train(True)


def test_every_process_starts_with_the_loss_of_the_first(bert_folder, sentences, tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr("mirror.training.encoder_trainer.world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.broadcast", lambda tensor, source: sent.append((tensor.data_ptr(), source)))
    loss = Scaled()
    make_trainer(bert_folder, sentences, tmp_path, loss_module=loss)
    assert sent == [(loss.scale.data_ptr(), 0), (loss.calls.data_ptr(), 0)]


def test_a_loss_of_several_numbers_is_one_line(bert_folder, sentences, tmp_path):
    def distances(first, second):
        return (first - second).square().mean(dim=1)

    with pytest.raises(InputError, match=r"the loss must return one number, not a tensor of the shape \(20,\)"):
        make_trainer(bert_folder, sentences, tmp_path, loss_module=distances).train()


@pytest.mark.parametrize(
    ("flags", "loss", "message"),
    [
        ({}, "nt_xent", "loss must be a function or a module, got str; --loss takes names"),
        ({"temperature": 0.1}, InfoNCE(), "temperature: the loss that was passed brings its own"),
        ({"hardness": 1.0}, InfoNCE(), "hardness: the loss that was passed brings its own"),
    ],
)
def test_flags_that_do_not_apply_to_a_loss_are_named(bert_folder, sentences, tmp_path, flags, loss, message):
    with pytest.raises(InputError, match=message):
        make_trainer(bert_folder, sentences, tmp_path, loss_module=loss, **flags)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("compute_loss_func", "pass loss="), ("compute_metrics", "pass score="), ("eval_dataset", "set validation_samples"),
     ("data_collator", "the collator makes the two views"), ("model_init", "pass the model"),
     ("preprocess_logits_for_metrics", "pass score=")],
)  # fmt: skip
def test_arguments_of_trainer_without_meaning_are_refused_by_name(name, advice):
    with pytest.raises(InputError, match=f"{name} does not apply to encoders: {advice}"):
        MirrorTrainer(**{name: lambda *_: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'compute_los'"):
        MirrorTrainer(compute_los=1)


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [HEAD, HEAD | {"hardness": 2.0}], ids=["head", "head and hardness"])
def test_two_processes_with_cached_gradients_are_one_with_the_joint_batch(bert_folder, sentences, tmp_path, wrapped):
    options = DESCEND | {"max_steps": 3, "train_sampling_strategy": "group_by_length"} | wrapped
    one = make_trainer(bert_folder, sentences, tmp_path / "one", per_device_train_batch_size=20, **options)
    start = parameters_of(one)
    one.train()
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    options |= {"mini_batch_size": 4, "save_strategy": "steps", "save_steps": 3}
    flags = [f"{key}={value}" for key, value in options.items()]
    run_two_processes("-m", "tests.two_processes", bert_folder, str(tmp_path), *flags)
    assert (parameters_of(one)[0] - start[0]).abs().max() > 1e-4
    two = load_file(tmp_path / "two" / "checkpoint-3" / LOSS_STATE)
    for name, value in one.loss.state_dict().items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-6)

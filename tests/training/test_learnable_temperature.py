"""A learned temperature: it moves as it should, in every way of training, and comes back after a resume."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from mirror.common.errors import InputError
from mirror.training.auxiliary import parameter_groups, resume
from mirror.training.config import MirrorConfig
from mirror.training.learnable_temperature import LearnableTemperature
from mirror.training.losses import info_nce
from tests.tiny_trainer import make_trainer, run_whole_and_resumed
from tests.two_at_once import run_two_processes


LEARN = {"learnable_temperature": True, "temperature": 0.2}
# Plain gradient descent shows the gradient itself: log tau moves by the rate times it.
DESCEND = {"optim": "sgd", "learning_rate": 0.05, "dropout_rate": 0.0, "max_steps": 1}


def moved(trainer) -> float:
    """How far log tau went from its start."""
    return trainer.learned.log.item() - math.log(trainer.args.temperature)


def first_batch_gradient(trainer) -> float:
    """d loss / d log tau on the first batch, by finite differences in float64."""
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        first, second = trainer.embed(trainer.model.eval(), batch).double().chunk(2)
    step = 1e-3
    high, low = (info_nce(first, second, 0.2 * math.exp(sign * step)).item() for sign in (1, -1))
    return (high - low) / (2 * step)


def test_it_goes_down_its_gradient_without_decay(bert_folder, sentences, tmp_path):
    options = DESCEND | {"seed": 5, "weight_decay": 0.5}
    expected = first_batch_gradient(make_trainer(bert_folder, sentences, tmp_path / "a", **LEARN, **options))
    trainer = make_trainer(bert_folder, sentences, tmp_path / "b", **LEARN, **options)
    trainer.train()
    assert abs(expected) > 0.01
    assert moved(trainer) == pytest.approx(-0.05 * expected, rel=0.01)


@pytest.mark.parametrize("options", [{"mini_batch_size": 7}, {"gradient_accumulation_steps": 2}])
def test_it_moves_alike_in_every_way_of_training(bert_folder, sentences, tmp_path, options):
    """Two micro-batches of the same rows must move it as one of them does."""
    common = LEARN | DESCEND | {"max_steps": 3, "span_mask_length": 0}
    texts = sentences[:20]
    plain = make_trainer(bert_folder, texts, tmp_path / "plain", num_train_epochs=9, **common)
    other = make_trainer(bert_folder, texts * options.get("gradient_accumulation_steps", 1), tmp_path / "other",
                         num_train_epochs=9, **common, **options)  # fmt: skip
    if "gradient_accumulation_steps" in options:
        for trainer in (plain, other):
            trainer._get_train_sampler = lambda dataset=None, own=trainer: torch.utils.data.SequentialSampler(
                own.train_dataset
            )
    plain.train()
    other.train()
    assert abs(moved(plain)) > 1e-3
    assert moved(other) == pytest.approx(moved(plain), rel=1e-3)


def test_a_half_precision_run_learns_it_too(bert_folder, sentences, tmp_path):
    options = DESCEND | {"max_steps": 3}
    exact = make_trainer(bert_folder, sentences, tmp_path / "a", **LEARN, **options)
    exact.train()
    rough = make_trainer(bert_folder, sentences, tmp_path / "b", **LEARN, **options, fp16=True)
    rough.train()
    assert moved(rough) == pytest.approx(moved(exact), rel=0.1)


def test_it_is_logged_and_resumed_to_the_last_bit_and_not_in_the_encoder(bert_folder, sentences, tmp_path):
    whole, again = run_whole_and_resumed(bert_folder, sentences, tmp_path, **LEARN, logging_steps=1)
    assert torch.equal(again.learned.log, whole.learned.log) and abs(moved(whole)) > 1e-4
    logged = [entry["temperature"] for entry in whole.state.log_history if "temperature" in entry]
    assert len(logged) == 9 and logged[-1] == pytest.approx(whole.learned.value().item(), abs=1e-6)
    saved = json.loads((tmp_path / "whole" / "checkpoint-4" / "temperature.json").read_text())
    assert saved["log_temperature"] == pytest.approx(math.log(logged[3]), abs=1e-4)
    whole.save_model(str(tmp_path / "encoder"))
    assert not (tmp_path / "encoder" / "temperature.json").exists()
    assert not any("temperature" in name for name in load_file(tmp_path / "encoder" / "model.safetensors"))


def test_a_checkpoint_of_the_other_kind_is_refused(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path, **LEARN)
    with pytest.raises(InputError, match="holds no learned temperature; resume without --learnable_temperature"):
        trainer._load_optimizer_and_scheduler(str(tmp_path))
    trainer.learned.save(str(tmp_path))
    without = make_trainer(bert_folder, sentences, tmp_path)
    with pytest.raises(InputError, match="was made with --learnable_temperature; resume with it too"):
        without._load_optimizer_and_scheduler(str(tmp_path))


def test_multi_similarity_has_none():
    with pytest.raises(InputError, match="--loss multi_similarity has no temperature"):
        MirrorConfig(loss="multi_similarity", learnable_temperature=True)


def test_it_is_the_exponential_of_a_parameter_without_decay(tmp_path):
    learned = LearnableTemperature(0.2, torch.device("cpu"))
    assert learned.value().item() == pytest.approx(0.2) and learned.log.item() == pytest.approx(math.log(0.2))
    (learned.value() * 3).backward()
    assert learned.log.grad.item() == pytest.approx(0.6)  # d exp(x) = exp(x)
    learned.on_step_begin(None, None, None)
    assert learned.log.grad is None
    (group,) = parameter_groups([learned])
    assert group == {"params": [learned.log], "weight_decay": 0.0}
    with torch.device("meta"):
        assert LearnableTemperature(0.2, torch.device("cpu")).log.device.type == "cpu"


def test_what_is_saved_comes_back(tmp_path):
    LearnableTemperature(0.2, torch.device("cpu")).save(str(tmp_path))
    other = LearnableTemperature(0.5, torch.device("cpu"))
    resume([other], [LearnableTemperature], str(tmp_path))
    assert other.value().item() == pytest.approx(0.2) and other.log.requires_grad
    with pytest.raises(InputError, match="resume with it too"):
        resume([], [LearnableTemperature], str(tmp_path))
    (tmp_path / "temperature.json").unlink()
    resume([], [LearnableTemperature], str(tmp_path))
    with pytest.raises(InputError, match="resume without --learnable_temperature"):
        resume([other], [LearnableTemperature], str(tmp_path))


@pytest.mark.slow
def test_two_processes_with_cached_gradients_are_one_with_the_joint_batch(bert_folder, sentences, tmp_path):
    options = {"optim": "sgd", "learning_rate": 0.05, "dropout_rate": 0.0, "max_steps": 3} | LEARN
    one = make_trainer(bert_folder, sentences, tmp_path / "one", per_device_train_batch_size=20, **options)
    one.train()

    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    options |= {"mini_batch_size": 4, "save_strategy": "steps", "save_steps": 3}
    flags = [f"{key}={value}" for key, value in options.items()]
    run_two_processes("-m", "tests.two_processes", bert_folder, str(tmp_path), *flags)

    two = json.loads((tmp_path / "two" / "checkpoint-3" / "temperature.json").read_text())["log_temperature"]
    assert abs(moved(one)) > 1e-3
    assert two - math.log(0.2) == pytest.approx(moved(one), rel=1e-3)

"""Training: what must move moves, what must be equal is equal to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, TrainingArguments

from mirror.common.errors import InputError
from mirror.data.views import TwoViewDataset
from mirror.modeling.encoder import Encoder
from mirror.training import run_setup
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer
from tests.processes import run_two_processes
from tests.tiny_trainer import make_trainer, weights


def first_gradient(trainer, steps: int = 1) -> dict[str, torch.Tensor]:
    """Gradient of the first optimizer step, accumulated as the Trainer does."""
    caught: dict[str, torch.Tensor] = {}

    def catch(optimizer, args, kwargs):
        if not caught:
            caught.update({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})

    trainer.create_optimizer_and_scheduler(num_training_steps=steps)
    trainer.optimizer.register_step_pre_hook(catch)
    trainer.train()
    assert max(gradient.abs().max() for gradient in caught.values()) > 1e-5
    return caught


@pytest.mark.parametrize(("loss", "pooling"), [("nt_xent", "cls"), ("decoupled", "mean"), ("one_way", "mean")])
def test_every_weight_moves_and_twins_get_closer(bert_folder, sentences, tmp_path, loss, pooling):
    trainer = make_trainer(
        *(bert_folder, sentences, tmp_path), loss=loss, pooling=pooling, learning_rate=1e-3, logging_steps=1
    )
    before = weights(trainer)
    trainer.train()
    still = [name for name, value in weights(trainer).items() if torch.equal(value, before[name])]
    assert still == []
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 24 and np.mean(losses[-5:]) < np.mean(losses[:5])
    assert {"alignment", "uniformity"} <= set(trainer.state.log_history[0])


def test_accumulation_divides_the_loss_and_the_gradient(bert_folder, sentences, tmp_path):
    """Two micro-batches that hold the same rows must give the gradient of one of them."""
    options = {"dropout_rate": 0.0, "span_mask_length": 0, "max_steps": 1, "logging_steps": 1}
    repeated = sentences[:20] * 2
    once = make_trainer(bert_folder, repeated[:20], tmp_path / "a", **options)
    twice = make_trainer(bert_folder, repeated, tmp_path / "b", gradient_accumulation_steps=2, **options)
    twice._get_train_sampler = lambda dataset=None: torch.utils.data.SequentialSampler(twice.train_dataset)
    single, double = first_gradient(once), first_gradient(twice)
    for name in single:
        torch.testing.assert_close(double[name], single[name], rtol=1e-3, atol=1e-5)
    assert twice.state.log_history[0]["loss"] == pytest.approx(once.state.log_history[0]["loss"], rel=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_close_to_float32(bert_folder, sentences, tmp_path, precision):
    options = {"dropout_rate": 0.0, "max_steps": 5, "logging_steps": 5}
    exact = make_trainer(bert_folder, sentences, tmp_path / "a", **options)
    exact.train()
    rough = make_trainer(bert_folder, sentences, tmp_path / "b", **options, **{precision: True})
    rough.train()
    assert rough.state.log_history[0]["loss"] == pytest.approx(exact.state.log_history[0]["loss"], rel=0.03)


def test_gradient_checkpointing_gives_the_same_gradient(bert_folder, sentences, tmp_path):
    options = {"max_steps": 1}
    plain = first_gradient(make_trainer(bert_folder, sentences, tmp_path / "a", **options))
    saving = first_gradient(
        make_trainer(bert_folder, sentences, tmp_path / "b", gradient_checkpointing=True, **options)
    )
    for name in plain:
        torch.testing.assert_close(saving[name], plain[name], rtol=1e-4, atol=1e-6)


def test_packed_trains_like_padded(bert_folder, sentences, tmp_path):
    options = {"dropout_rate": 0.0, "max_steps": 1}
    padded = first_gradient(make_trainer(bert_folder, sentences, tmp_path / "a", packing="off", **options))
    packed = first_gradient(make_trainer(bert_folder, sentences, tmp_path / "b", packing="on", **options))
    for name in padded:
        torch.testing.assert_close(packed[name], padded[name], rtol=1e-3, atol=1e-5)


def test_the_gradient_norm_is_read_only_where_it_is_logged(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path, logging_steps=5)
    read = []
    clip = trainer.accelerator.clip_grad_norm_
    trainer.accelerator.clip_grad_norm_ = lambda *args: read.append(trainer.state.global_step + 1) or clip(*args)
    trainer.train()
    logged = [entry["step"] for entry in trainer.state.log_history if entry.get("grad_norm", 0) > 0]
    assert read == logged == [5, 10, 15, 20]


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_halved(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path, auto_find_batch_size=True, max_steps=3)
    embed, sizes = trainer.embed, []

    def small_device(model, inputs):
        sizes.append(len(inputs["lengths"]) // 2)
        if sizes[-1] > 16:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1 EiB")
        return embed(model, inputs)

    trainer.embed = small_device
    trainer.train()
    assert trainer.state.global_step == 3 and sizes[0] == 20 and sizes[-3:] == [sizes[-1]] * 3 and sizes[-1] <= 16


def test_resumed_is_uninterrupted_to_the_last_bit(bert_folder, sentences, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
    whole = make_trainer(bert_folder, sentences[:80], tmp_path / "whole", **options)
    whole.train()
    expected = weights(whole)
    for stop in (2, 4, 6):  # inside the first epoch, between the two, inside the second
        again = make_trainer(bert_folder, sentences[:80], tmp_path / "again", **options)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{stop}"))
        assert again.state.global_step == 8
        for name, value in weights(again).items():
            assert torch.equal(value, expected[name]), (stop, name)


def test_the_seed_alone_gives_the_weights_with_any_number_of_workers(bert_folder, sentences, tmp_path):
    runs = []
    for number, flags in enumerate(({"seed": 7}, {"seed": 7, "dataloader_num_workers": 2}, {"seed": 8})):
        trainer = make_trainer(bert_folder, sentences[:80], tmp_path / str(number), **flags)
        trainer.train()
        runs.append(weights(trainer))
    first, helped, other = runs
    assert all(torch.equal(value, helped[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())
    with pytest.raises(InputError, match="--dataloader_persistent_workers must stay false: every epoch has new masks"):
        make_trainer(bert_folder, sentences, tmp_path, dataloader_persistent_workers=True)


def test_a_run_that_reads_few_texts_makes_only_their_views(bert_folder, sentences, tmp_path, monkeypatch):
    short = make_trainer(bert_folder, sentences, tmp_path / "short", max_steps=2, learning_rate=1e-3)
    before = weights(short)
    assert short.train_dataset.few_are_read and short.corpus_report["rows"] == len(sentences)
    short.train()
    monkeypatch.setattr(run_setup, "TwoViewDataset", lambda *args: TwoViewDataset(*args[:-1]))
    mapped = make_trainer(bert_folder, sentences, tmp_path / "mapped", max_steps=2, learning_rate=1e-3)
    assert len(mapped.train_dataset.rows) == len(sentences) and not hasattr(short.train_dataset, "rows")
    assert short.corpus_report == mapped.corpus_report  # of few rows
    mapped.train()
    assert all(torch.equal(value, weights(mapped)[name]) for name, value in weights(short).items())
    assert not torch.equal(
        weights(short)["embeddings.word_embeddings.weight"], before["embeddings.word_embeddings.weight"]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_is_trained_in_float32(bert_folder, sentences, tmp_path, dtype):
    config = MirrorConfig(
        output_dir=str(tmp_path), bf16=False, max_steps=1, per_device_train_batch_size=20, force=True
    )
    model = AutoModel.from_pretrained(bert_folder, dtype=dtype)
    trainer = MirrorTrainer(model, config, sentences, AutoTokenizer.from_pretrained(bert_folder))
    before = weights(trainer)["embeddings.word_embeddings.weight"]
    trainer.train()
    after = weights(trainer)["embeddings.word_embeddings.weight"]
    assert after.dtype == torch.float32 and (before != after).any(dim=1).float().mean() > 0.1


def test_a_masked_language_model_is_trained_without_its_head(bert_folder, sentences, tmp_path):
    config = MirrorConfig(output_dir=str(tmp_path), bf16=False, max_steps=1, per_device_train_batch_size=20)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(bert_folder), AutoTokenizer.from_pretrained(bert_folder)
    trainer = MirrorTrainer(model, config, sentences, tokenizer)
    assert trainer.model is model.base_model
    assert trainer.train().global_step == 1
    with pytest.raises(InputError, match="args: pass a MirrorConfig, which has the fields of TrainingArguments"):
        MirrorTrainer(bert_folder, TrainingArguments(output_dir=str(tmp_path)), sentences)


def test_a_table_of_ones_own_chooses_the_checkpoint_by_the_name_of_its_task(bert_folder, sentences, tmp_path):
    rows = "".join(f"{a},{b},{n}\n" for n, (a, b) in enumerate(zip(sentences[:9], sentences[9:18], strict=True)))
    (tmp_path / "my pairs.csv").write_text(f"sentence1,sentence2,score\n{rows}")
    flags = {"eval_tasks": str(tmp_path / "my pairs.csv"), "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    flags |= {"save_strategy": "steps", "load_best_model_at_end": True, "max_steps": 2}
    trainer = make_trainer(bert_folder, sentences, tmp_path / "out", **flags)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_my pairs" in entry] == [0, 1, 2]
    assert trainer.state.best_global_step in (1, 2) and trainer.args.metric_for_best_model == "my pairs"


def test_a_dev_task_chooses_the_checkpoint(bert_folder, sentences, tmp_path):
    scores = iter([0.2, 0.9, 0.1, 0.3])

    def score(encoder: Encoder) -> dict[str, float]:
        assert encoder.encode(sentences[:3]).shape == (3, 32)
        return {"stsb_dev": next(scores)}

    trainer = make_trainer(
        *(bert_folder, sentences, tmp_path, score),
        **{"eval_strategy": "steps", "eval_steps": 6, "save_strategy": "steps", "save_steps": 6},
        load_best_model_at_end=True,
        metric_for_best_model="stsb_dev",
        greater_is_better=True,
    )
    trainer.train()
    assert trainer.state.best_metric == 0.9
    assert Encoder.from_pretrained(str(tmp_path / "checkpoint-12")).encode(["a cat"]).shape == (1, 32)
    best = load_file(tmp_path / "checkpoint-12" / "model.safetensors")
    for name, value in weights(trainer).items():
        assert torch.equal(value, best[name])


def test_the_first_loss_that_is_not_finite_stops_the_run(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path, learning_rate=1e-3)
    trainer.model.embeddings.word_embeddings.weight.data.fill_(float("nan"))
    with pytest.raises(InputError, match=r"the loss is nan at step 1; try --bf16 instead of --fp16"):
        trainer.train()


@pytest.mark.parametrize(
    ("loss", "extra"),
    [pytest.param("nt_xent", {}, marks=pytest.mark.slow), ("one_way", {"mini_batch_size": 4})],
)
def test_two_processes_are_one_with_the_joint_batch(bert_folder, sentences, tmp_path, loss, extra):
    options = {"optim": "sgd", "learning_rate": 0.05, "dropout_rate": 0.0, "loss": loss, "max_steps": 6}
    one = make_trainer(bert_folder, sentences, tmp_path / "one", per_device_train_batch_size=20, **options)
    before = weights(one)
    one.train()

    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    flags = [f"{key}={value}" for key, value in (options | extra).items()]
    run_two_processes("-m", "tests.two_processes", bert_folder, str(tmp_path), *flags)

    two = load_file(tmp_path / "two" / "model.safetensors")
    moved = max((value - before[name]).abs().max() for name, value in weights(one).items())
    assert moved > 1e-3
    for name, value in weights(one).items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=moved.item() * 1e-3)


def test_the_encoder_of_a_finished_run_is_what_its_checkpoint_gives(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, sentences, tmp_path / "out", bf16=True, max_steps=2)
    trainer.train()
    trainer.save_model()
    saved = Encoder.from_pretrained(str(tmp_path / "out")).encode(sentences[:9])
    rounded = trainer.encoder().encode(sentences[:9])  # under the autocast of the training
    assert np.abs(rounded - saved).max() > 1e-4
    np.testing.assert_array_equal(trainer.encoder(training=False).encode(sentences[:9]), saved)


def test_texts_that_the_tokenizer_does_not_know_are_refused_unless_forced(bert_folder, tmp_path):
    texts = [f"{number} 猫 が 犬 を 見る 雨 が 降る" for number in range(20)]
    with pytest.raises(InputError, match=r"8\d% of the tokens of these texts are unknown .* or go on with --force"):
        make_trainer(bert_folder, texts, tmp_path)
    make_trainer(bert_folder, texts, tmp_path, force=True)

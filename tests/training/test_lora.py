"""--lora_rank: only the updates learn, and what is saved is a plain encoder with the same vectors."""

from __future__ import annotations

import builtins
import os
import signal
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

import run_mirror
from mirror.common.errors import InputError
from mirror.common.files import write_manifest
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.training.base_encoder import add_lora, merged
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer
from tests.tiny_trainer import make_trainer


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning"]


def train(monkeypatch, bert_folder, sentences, folder, *flags) -> None:
    (folder / "texts.txt").write_text("\n".join(sentences))
    argv = ["--model_name_or_path", bert_folder, "--train_file", folder / "texts.txt", "--output_dir", folder / "out"]
    argv += ["--per_device_train_batch_size", 40, "--max_seq_length", 24, "--max_steps", 3, "--learning_rate", "1e-2"]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, argv), "--disable_tqdm", "true", *flags])
    run_mirror.main()


def test_updates_learn_and_the_rest_is_frozen(bert_folder):
    pytest.importorskip("peft")
    torch.manual_seed(0)
    model, tokenizer = load_backbone(bert_folder, "mean")
    before = Encoder(model.eval(), tokenizer, "mean").encode(TEXTS)
    add_lora(model, 4)
    encoder = Encoder(model, tokenizer, "mean")
    np.testing.assert_allclose(encoder.encode(TEXTS), before, atol=1e-6)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learning and all("lora_" in name for name in learning)
    assert not any("embeddings" in name for name in learning)
    model.train()
    encoder.forward(encoder.tokenize(TEXTS)).square().sum().backward()
    assert any(p.grad.abs().sum() > 0 for n, p in model.named_parameters() if n in learning)
    assert all(p.grad is None for n, p in model.named_parameters() if n not in learning)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    model.eval()
    moved = encoder.encode(TEXTS)
    assert np.abs(moved - before).max() > 1e-2
    plain = merged(model)
    assert not any("lora" in name for name in plain.state_dict())
    places = [{x.data_ptr() for x in each.state_dict().values()} for each in (model, plain)]
    assert not places[0] & places[1]
    np.testing.assert_allclose(Encoder(plain.eval(), tokenizer, "mean").encode(TEXTS), moved, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS), moved, atol=1e-6)  # the one in training is as it was


def test_a_run_saves_a_plain_encoder(bert_folder, sentences, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    train(monkeypatch, bert_folder, sentences, tmp_path, "--lora_rank", "4", "--save_strategy", "epoch")
    start = {
        name.removeprefix("bert."): value for name, value in load_file(f"{bert_folder}/model.safetensors").items()
    }
    for folder in (tmp_path / "out", tmp_path / "out" / "checkpoint-3"):
        weights = load_file(folder / "model.safetensors")
        pooler = {"pooler.dense.weight", "pooler.dense.bias"}  # of the base, or the identity
        assert weights.keys() <= start.keys() | pooler
        name = "encoder.layer.0.attention.self.query.weight"
        assert (weights[name] - start[name]).abs().max() > 1e-4
        name = "embeddings.word_embeddings.weight"
        torch.testing.assert_close(weights[name], start[name], rtol=0, atol=0)
    ours = Encoder.from_pretrained(str(tmp_path / "out")).encode(TEXTS)
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS), ours, atol=1e-5)
    assert "| trained | low-rank updates (LoRA) of rank 4, merged |" in (tmp_path / "out" / "README.md").read_text()


def test_without_peft_one_line_says_what_to_install(bert_folder, sentences, tmp_path, monkeypatch):
    real = builtins.__import__

    def no_peft(name, *args, **kwargs):
        if name == "peft":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_peft)
    with pytest.raises(InputError, match=r"--lora_rank needs peft: pip install peft"):
        train(monkeypatch, bert_folder, sentences, tmp_path, "--lora_rank", "4")


LORA = {"lora_rank": 4, "learning_rate": 1e-2, "max_steps": 6, "save_strategy": "steps", "save_steps": 2}


def saved(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_resumed_run_is_the_uninterrupted_one(bert_folder, sentences, tmp_path):
    pytest.importorskip("peft")
    whole = make_trainer(bert_folder, sentences, tmp_path / "whole", **LORA)
    whole.train()
    whole.save_model()
    again = make_trainer(bert_folder, sentences, tmp_path / "again", **LORA)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    again.save_model()
    for name, value in saved(tmp_path / "whole").items():
        assert torch.equal(saved(tmp_path / "again")[name], value), name
    (tmp_path / "whole" / "checkpoint-4" / "adapters.safetensors").unlink()
    write_manifest(tmp_path / "whole" / "checkpoint-4")
    with pytest.raises(InputError, match="checkpoint-4 has no adapters.safetensors"):
        make_trainer(bert_folder, sentences, tmp_path / "new", **LORA).train(
            resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4")
        )


@pytest.mark.slow
def test_the_command_that_a_signal_names_goes_on(bert_folder, sentences, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    (tmp_path / "other").mkdir()
    train(monkeypatch, bert_folder, sentences, tmp_path / "other", "--lora_rank", "4")
    with monkeypatch.context() as patch:
        original = MirrorTrainer.training_step

        def step(trainer, *args):
            if trainer.state.global_step == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(trainer, *args)

        patch.setattr(MirrorTrainer, "training_step", step)
        with pytest.raises(SystemExit):
            train(monkeypatch, bert_folder, sentences, tmp_path, "--lora_rank", "4")
    train(monkeypatch, bert_folder, sentences, tmp_path, "--lora_rank", "4", "--resume_from_checkpoint", "true")
    for name, value in saved(tmp_path / "other" / "out").items():
        assert torch.equal(saved(tmp_path / "out")[name], value), name


def test_the_best_step_is_loaded_with_its_updates(bert_folder, sentences, tmp_path):
    pytest.importorskip("peft")
    scores = iter([1.0, 3.0, 2.0])
    options = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "own", "greater_is_better": True}
    trainer = make_trainer(bert_folder, sentences, tmp_path, lambda encoder: {"own": next(scores)}, **LORA, **options)
    trainer.train()
    trainer.save_model(str(tmp_path / "encoder"))
    for name, value in saved(tmp_path / "checkpoint-4").items():
        assert torch.equal(saved(tmp_path / "encoder")[name], value), name
    assert any(not torch.equal(saved(tmp_path / "checkpoint-6")[n], v) for n, v in saved(tmp_path / "encoder").items())


def test_a_model_with_adapters_is_refused(bert_folder, sentences, tmp_path):
    peft = pytest.importorskip("peft")
    model, tokenizer = load_backbone(bert_folder, "mean")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["query"]))
    args = MirrorConfig(output_dir=str(tmp_path), pooling="mean")
    with pytest.raises(InputError, match="adapters of peft is not trained as it is; pass model.merge_and_unload"):
        MirrorTrainer(model=wrapped, args=args, train_dataset=sentences, processing_class=tokenizer)

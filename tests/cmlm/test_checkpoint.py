"""Tests of CMLM checkpoints: what a stage saves, the next one loads, and every library reads."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModel, BartConfig, BertForMaskedLM, GPT2Config

from mirror.cmlm.model import CMLMModel, Projection, load_cmlm, load_parts, mean_projection, parts_of, save_cmlm
from mirror.common import trust
from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder


def differences(one: CMLMModel, other: CMLMModel) -> list[str]:
    theirs = other.state_dict()
    return [name for name, value in one.state_dict().items() if not torch.equal(value, theirs[name])]


def test_loading_keeps_the_weights_of_the_checkpoint(bert_folder):
    model, _ = load_cmlm(bert_folder)
    plain = BertForMaskedLM.from_pretrained(bert_folder)
    assert not differences(plain, model.mlm)
    fresh, _ = load_cmlm(bert_folder, from_scratch=True)
    assert not torch.equal(fresh.get_input_embeddings().weight, plain.get_input_embeddings().weight)


def test_random_weights_are_float32_whatever_the_config_says(bert_folder, tmp_path):
    folder = shutil.copytree(bert_folder, tmp_path / "half")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    model, _ = load_cmlm(str(folder), from_scratch=True)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_an_encoder_and_its_other_parts_are_restored(bert_folder, tmp_path):
    torch.manual_seed(1)
    model, tokenizer = load_cmlm(bert_folder, 5, skip_connection=True)
    save_cmlm(tmp_path, model, tokenizer, 24, "pooled")
    assert not any("cls" in name for name in Encoder.from_pretrained(str(tmp_path)).model.state_dict())
    torch.manual_seed(2)
    later, _ = load_cmlm(str(tmp_path), 5, skip_connection=True)
    other, _ = load_cmlm(bert_folder, 5, skip_connection=True)
    assert differences(model, other) and not differences(model, later)


def test_modules_after_the_pooling_are_dropped_with_a_warning(bert_folder, tmp_path, caplog):
    model, tokenizer = load_cmlm(bert_folder, 3)
    for vector, warns in (("pooled", False), ("proj", True)):
        caplog.clear()
        save_cmlm(tmp_path / vector, model, tokenizer, 24, vector)
        load_cmlm(str(tmp_path / vector), 3)
        found = "CMLM trains the vector before its modules ['Dense', 'Dense', 'Dense'], which are not saved"
        assert (found in caplog.text) == warns


def test_the_parts_of_an_earlier_stage_are_looked_up_like_its_weights(bert_folder, tmp_path, monkeypatch):
    """On the Hub too, where no folder has the name of the checkpoint."""
    model, tokenizer = load_cmlm(bert_folder, num_projections=3)
    save_cmlm(tmp_path / "stage", model, tokenizer, 16, "pooled")
    find, asked = trust.model_file, []

    def model_file(name: str, filename: str, subfolder: str = "") -> str | None:
        asked.append((name, filename, subfolder))
        return find(str(tmp_path / "stage") if name == "user/stage" else name, filename, subfolder)

    monkeypatch.setattr(trust, "model_file", model_file)
    other, _ = load_cmlm(bert_folder, num_projections=3)
    assert set(differences(model, other)) >= {"projection.mlp.0.weight", "nli.weight"}
    load_parts(other, "user/stage")
    assert asked[-1] == ("user/stage", "model.safetensors", "cmlm")
    assert not set(differences(model, other)) & set(parts_of(model))


def test_parts_of_another_shape_are_refused(bert_folder, tmp_path):
    model, tokenizer = load_cmlm(bert_folder, 5)
    save_cmlm(tmp_path, model, tokenizer, 24, "pooled")
    with pytest.raises(InputError, match=r"was trained with --num_projections 5; give the same"):
        load_cmlm(str(tmp_path), 4)


@pytest.mark.parametrize("kind", ["base with a pooler", "base without", "from scratch"])
def test_no_library_misses_a_pooler(bert_folder, tokenizer, tmp_path, kind, capfd):
    """transformers warns of random weights where a checkpoint has none for a part of the model."""
    folder = bert_folder
    if kind == "base with a pooler":
        base = AutoModel.from_pretrained(bert_folder)  # its pooler is drawn at random
        folder = str(tmp_path / "base")
        base.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    model, _ = load_cmlm(folder, 5, from_scratch=kind == "from scratch")
    assert not any("pooler" in name for name, _ in model.named_parameters())
    save_cmlm(tmp_path / "out", model, tokenizer, 24, "pooled")
    capfd.readouterr()
    read, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and "MISSING" not in "".join(capfd.readouterr())
    expected = base.pooler.dense.weight if kind == "base with a pooler" else torch.eye(32)
    assert torch.equal(read.pooler.dense.weight, expected)
    later, _ = load_cmlm(str(tmp_path / "out"), 5)
    save_cmlm(tmp_path / "later", later, tokenizer, 24, "pooled")
    assert torch.equal(AutoModel.from_pretrained(tmp_path / "later").pooler.dense.weight, expected)


def test_the_saved_encoder_of_proj_gives_the_mean_of_the_projections(bert_folder, tmp_path):
    model, tokenizer = load_cmlm(bert_folder, 5)
    save_cmlm(tmp_path, model.eval(), tokenizer, 24, "proj")
    batch = tokenizer(["a cat sees the dog"], return_tensors="pt")
    with torch.no_grad():
        expected = model.projection(model.sentence_vectors(batch)).mean(1)
    read = Encoder.from_pretrained(str(tmp_path)).encode(["a cat sees the dog"])
    torch.testing.assert_close(torch.from_numpy(read), expected, rtol=1e-4, atol=1e-5)
    assert len(mean_projection(Projection(32, 7))) == 3 and mean_projection(Projection(32, 1)) == []


def test_a_model_that_is_no_masked_lm_is_refused(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"no config.json in this folder"):
        load_cmlm(str(tmp_path))
    tokenizer.save_pretrained(tmp_path)
    size = {"vocab_size": len(tokenizer)}
    for config in (GPT2Config(**size, n_layer=1), BartConfig(**size, encoder_layers=1, decoder_layers=1)):
        config.save_pretrained(tmp_path)
        with pytest.raises(
            InputError, match=rf"\({config.model_type}\) is not a bidirectional encoder; give a masked LM"
        ):
            load_cmlm(str(tmp_path))

"""One save, every reader: the same vectors from transformers, sentence-transformers and our own loader."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize
from torch import nn
from transformers import AutoModel, AutoTokenizer

from mirror.common.errors import InputError
from mirror.modeling.backbone import load_backbone
from mirror.modeling.checkpoint import save_encoder, stored_pooling, verify_encoder
from mirror.modeling.encoder import Encoder
from mirror.modeling.pooling import pool


# What `Pooling.__init__` took in sentence-transformers 2.2; until 5.4 it was called with every key of the file.
PARAMETERS_OF_OLD_POOLING = {
    *("word_embedding_dimension", "pooling_mode", "pooling_mode_cls_token", "pooling_mode_max_tokens"),
    *("pooling_mode_mean_tokens", "pooling_mode_mean_sqrt_len_tokens"),
}
TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning to the king of the old city"]


def saved(folder, bert_folder: str, pooling: str) -> Encoder:
    if pooling == "pooler":
        torch.manual_seed(3)
        model = AutoModel.from_pretrained(bert_folder)  # its pooler is drawn at random, which is all this needs
        tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    else:
        model, tokenizer = load_backbone(bert_folder, pooling)
    save_encoder(folder, model, tokenizer, pooling, max_seq_length=12, settings={"level": "sentence"})
    return Encoder(model.eval(), tokenizer, pooling, 12)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_every_reader_gives_the_same_vectors(bert_folder, tmp_path, pooling):
    encoder = saved(tmp_path, bert_folder, pooling)
    expected = encoder.encode(TEXTS)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(Encoder.from_pretrained(str(tmp_path)).encode(TEXTS), expected, atol=1e-5)

    model, tokenizer = AutoModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=12, return_tensors="pt")
    with torch.no_grad():
        by_hand = pool(model(**batch), batch["attention_mask"], pooling)
    np.testing.assert_allclose(by_hand.numpy(), expected, atol=1e-5)
    assert min(verify_encoder(tmp_path, encoder, TEXTS).values()) > 0.9999


def test_pooling_is_written_in_both_spellings(bert_folder, tmp_path):
    saved(tmp_path, bert_folder, "cls")
    config = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert config["pooling_mode"] == "cls" and config["word_embedding_dimension"] == 32
    assert config.keys() <= PARAMETERS_OF_OLD_POOLING
    old = {key for key, value in config.items() if key.startswith("pooling_mode_") and value}
    assert old == {"pooling_mode_cls_token"}
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [module["type"] for module in modules] == [
        "sentence_transformers.models.Transformer",
        "sentence_transformers.models.Pooling",
    ]
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 12
    assert json.loads((tmp_path / "mirror_config.json").read_text())["settings"] == {"level": "sentence"}


@pytest.mark.parametrize("pooling", ["mean_padded", "first_last_mean"])
def test_what_others_cannot_be_told_is_said_aloud_and_ours_still_knows(bert_folder, tmp_path, pooling, caplog):
    encoder = saved(tmp_path, bert_folder, pooling)
    assert f"other readers have no pooling '{pooling}' and will use 'mean'" in caplog.text
    cosines = verify_encoder(tmp_path, encoder, TEXTS)
    assert cosines["transformers AutoModel and pool()"] > 0.9999
    assert list(cosines) == ["transformers AutoModel and pool()"]  # nothing is claimed of a reader without the pooling


def test_a_reader_that_cannot_load_the_folder_is_named(bert_folder, tmp_path):
    encoder = saved(tmp_path, bert_folder, "cls")
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match="cannot be read back: TypeError: Pooling"):
        verify_encoder(tmp_path, encoder, TEXTS)


def test_the_stored_pooling_and_a_file_that_does_not_say(bert_folder, tmp_path):
    saved(tmp_path, bert_folder, "cls")
    assert stored_pooling(tmp_path) == "cls"
    (tmp_path / "mirror_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"mirror_config.json: KeyError: 'pooling'"):
        stored_pooling(tmp_path)
    (tmp_path / "mirror_config.json").unlink()
    assert stored_pooling(tmp_path) == "cls"


def test_layers_after_the_pooling_are_saved_and_read(bert_folder, tmp_path):
    model, tokenizer = load_backbone(bert_folder, "mean")
    layer = Dense(32, 8, activation_function=nn.Identity())
    prompts = {"prompts": {"query": "find: "}, "default_prompt_name": None}
    for _ in range(2):  # the second time into a folder that is there
        save_encoder(tmp_path, model, tokenizer, "mean", 12, head=[layer, Normalize()], prompts=prompts)
    plain = Encoder(model.eval(), tokenizer, "mean", 12).encode(TEXTS)
    expected = nn.functional.normalize(layer.linear(torch.from_numpy(plain)), dim=1).detach()
    read = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(read.encode(TEXTS), expected.numpy(), atol=1e-5)
    assert [module["path"] for module in json.loads((tmp_path / "modules.json").read_text())] == [
        *("", "1_Pooling", "2_Dense", "3_Normalize")
    ]
    config = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
    assert (config["prompts"], config["similarity_fn_name"]) == ({"query": "find: "}, "cosine")
    save_encoder(tmp_path / "plain", model, tokenizer, "mean", 12)
    config = json.loads((tmp_path / "plain" / "config_sentence_transformers.json").read_text())
    assert (config["prompts"], config["default_prompt_name"], config["model_type"]) == (
        {},
        None,
        "SentenceTransformer",
    )
    assert config["__version__"].keys() == {"sentence_transformers", "transformers", "pytorch"}


def test_texts_with_special_tokens_are_read_alike(bert_folder, tmp_path):
    encoder = saved(tmp_path, bert_folder, "mean")
    texts = ["the [MASK] sees [SEP] the dog", "[CLS] rain", "the cat", "[PAD] [UNK]"]
    assert min(verify_encoder(tmp_path, encoder, texts).values()) > 0.9999


def test_a_reader_that_disagrees_is_an_error(bert_folder, tmp_path):
    encoder = saved(tmp_path, bert_folder, "cls")
    config = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    config |= {"pooling_mode": "mean", "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="reads differently in sentence-transformers: lowest cosine"):
        verify_encoder(tmp_path, encoder, TEXTS)


def test_no_pickle_is_written(bert_folder, tmp_path):
    saved(tmp_path, bert_folder, "mean")
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pt", ".pkl")]


def test_the_pooler_of_the_base_is_saved_again_and_one_that_is_missing_is_the_identity(
    bert_folder, tokenizer, tmp_path
):
    model, _ = load_backbone(bert_folder, "mean")  # saved as a masked LM: without a pooler
    assert model.pooler is None and not any("pooler" in name for name, _ in model.named_parameters())
    save_encoder(tmp_path / "new", model, tokenizer, "mean", 12)
    read = AutoModel.from_pretrained(tmp_path / "new")
    assert torch.equal(read.pooler.dense.weight, torch.eye(32)) and not read.pooler.dense.bias.any()
    with torch.no_grad():
        read.pooler.dense.weight.mul_(3)
    read.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    save_encoder(tmp_path / "again", load_backbone(str(tmp_path / "base"), "mean")[0], tokenizer, "mean", 12)
    assert torch.equal(AutoModel.from_pretrained(tmp_path / "again").pooler.dense.weight, 3 * torch.eye(32))

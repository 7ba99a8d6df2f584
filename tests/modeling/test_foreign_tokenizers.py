"""Tokenizers of other people: left padding and truncation, no padding token, classes that one version of a library knows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import save_encoder
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer
from tests.architectures import CONFIGS


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning and reads a book"]


def save(folder: Path, family: str, tokenizer, **settings) -> str:
    """Save a tiny model of a family, with settings in its tokenizer_config.json."""
    config = CONFIGS[family]()
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    set_in(folder / "tokenizer_config.json", **settings)
    return str(folder)


def set_in(path: Path, **settings) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return torch.cosine_similarity(torch.from_numpy(one), torch.from_numpy(other)).numpy()


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("where", ["tokenizer_config.json", "tokenizer.json"])
def test_a_base_that_pads_left_has_one_vector_for_a_text_in_every_library(tmp_path, tokenizer, family, pooling, where):
    folder = save(
        tmp_path / "base", family, tokenizer, **({"padding_side": "left"} if where != "tokenizer.json" else {})
    )
    if where == "tokenizer.json":
        padding = {"strategy": {"Fixed": 20}, "direction": "Left", "pad_to_multiple_of": None}
        padding |= {"pad_id": tokenizer.pad_token_id, "pad_type_id": 0, "pad_token": "[PAD]"}
        set_in(tmp_path / "base" / where, padding=padding)
    encoder = Encoder.from_pretrained(folder, pooling, device="cpu")
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=3), alone, atol=1e-5)
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder).eval()(torch.tensor([tokenizer(TEXTS[0])["input_ids"]]))[0][0]
    expected = {"cls": hidden[0], "mean": hidden.mean(0), "max": hidden.amax(0)}[pooling]
    np.testing.assert_allclose(alone[0], expected.numpy(), atol=1e-5)
    save_encoder(tmp_path / "out", encoder.model, encoder.tokenizer, pooling, 20)
    for read in (
        SentenceTransformer(str(tmp_path / "out"), device="cpu"),
        Encoder.from_pretrained(str(tmp_path / "out")),
    ):
        np.testing.assert_allclose(read.encode(TEXTS), alone, atol=1e-5)
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")(TEXTS, padding=True, return_tensors="pt")
    assert batch["attention_mask"][:, 0].all()


@pytest.mark.parametrize("given", [False, True], ids=["of the base", "of the caller"])
def test_training_pads_a_tokenizer_that_pads_left_on_the_right(tmp_path, tokenizer, sentences, given):
    folder = save(tmp_path / "base", "bert", tokenizer, padding_side="left")
    own = AutoTokenizer.from_pretrained(folder) if given else None
    config = MirrorConfig(
        output_dir=str(tmp_path / "out"),
        pooling="cls",
        packing="off",
        max_steps=2,
        max_seq_length=20,
        per_device_train_batch_size=16,
    )
    trainer = MirrorTrainer(folder, config, sentences[:40], processing_class=own)
    assert all(batch["attention_mask"][:, 0].all() for batch in trainer.get_train_dataloader())
    trainer.train()
    trainer.finish()
    read = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    alone = np.concatenate([read.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(cosines(read.encode(TEXTS), alone), 1, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_texts_are_cut_where_sentence_transformers_cuts_them(tmp_path, tokenizer, side, sentences):
    from sentence_transformers.models import Pooling, Transformer

    folder = save(tmp_path / "base", "bert", tokenizer, truncation_side=side)
    modules = [Transformer(folder, max_seq_length=6), Pooling(32, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "st"))
    expected = SentenceTransformer(str(tmp_path / "st"), device="cpu").encode(TEXTS)
    encoder = Encoder.from_pretrained(str(tmp_path / "st"), device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)
    config = MirrorConfig(
        output_dir=str(tmp_path / "out"), max_steps=1, max_seq_length=6, per_device_train_batch_size=16
    )
    trainer = MirrorTrainer(str(tmp_path / "st"), config, sentences[:40])
    rows = [trainer.train_dataset[row] for row in range(40)]
    texts = trainer.corpus.rows["text"]
    assert [row["first_ids"] for row in rows] == encoder.tokenize(texts[:])


def test_a_tokenizer_without_a_padding_token_is_named(tmp_path, tokenizer):
    folder = save(tmp_path / "base", "bert", tokenizer, pad_token=None, tokenizer_class="PreTrainedTokenizerFast")
    for load in (
        lambda: Encoder.from_pretrained(folder, "mean"),
        lambda: MirrorTrainer(folder, MirrorConfig(output_dir=str(tmp_path / "out"), packing="off"), TEXTS * 20),
    ):
        with pytest.raises(InputError, match=r'base: the tokenizer has no padding token, .* add "pad_token" to its'):
            load()


def test_a_saved_tokenizer_has_a_class_and_names_that_transformers_4_knows(tmp_path, tokenizer):
    special = {
        name: getattr(tokenizer, name) for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    }
    own = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, additional_special_tokens=["cat", "dog"], **special
    )
    folder = save(tmp_path / "base", "bert", own)
    encoder = Encoder.from_pretrained(folder, "mean")
    save_encoder(tmp_path / "out", encoder.model, encoder.tokenizer, "mean", 20)
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and "extra_special_tokens" not in config
    read, base = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", folder))
    assert sorted(read.all_special_tokens) == sorted(base.all_special_tokens) and "dog" in read.all_special_tokens
    assert read(TEXTS)["input_ids"] == base(TEXTS)["input_ids"]

"""Static encoders: those of sentence-transformers and model2vec give their vectors, are trained, and are read by both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, StaticEmbedding
from transformers import BertTokenizerFast

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.modeling.pooling import pool
from mirror.modeling.save_checkpoint import verify_encoder
from tests.tiny_trainer import make_trainer


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning", "The Sun, é"]
FLAGS = {"pooling": None, "max_seq_length": None, "span_mask_min_chars": None, "max_steps": 3}


def table(tokenizer: BertTokenizerFast) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(tokenizer), 16)).astype(np.float32)


def save_static_embedding(folder, tokenizer, *after, prompts=None) -> str:
    # A copy: a test that truncates leaves that on the tokenizer of the session, which would be saved here.
    copied = BertTokenizerFast(vocab=tokenizer.get_vocab())
    embedding = StaticEmbedding(copied, embedding_weights=table(tokenizer))
    model = SentenceTransformer(modules=[embedding, *after], device="cpu", prompts=prompts)
    model.save(str(folder))
    return str(folder)


def save_model2vec(folder, tokenizer, normalize: bool, **tensors) -> str:
    """Write a folder as model2vec does."""
    folder.mkdir()
    save_file({"embeddings": table(tokenizer)} | tensors, folder / "model.safetensors")
    BertTokenizerFast(vocab=tokenizer.get_vocab()).backend_tokenizer.save(str(folder / "tokenizer.json"))
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": normalize, "hidden_dim": 16}
    (folder / "config.json").write_text(json.dumps(config | {"seq_length": 1000000, "apply_zipf": True}))
    kinds = {".": "StaticEmbedding"} | ({"1_Normalize": "Normalize"} if normalize else {})
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return str(folder)


def means(rows: np.ndarray, tokenizer, texts: list[str], normalize: bool) -> np.ndarray:
    """The vectors by the definition of model2vec: the mean of the rows of a text's tokens."""
    vectors = np.stack([rows[tokenizer(text, add_special_tokens=False)["input_ids"]].mean(0) for text in texts])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors


def check_adapted(base: str, sentences, out) -> Encoder:
    """Train a base on sentences; every library reads it back as it is in memory."""
    trainer = make_trainer(base, sentences[:60], out, **FLAGS)
    assert (
        trainer.args.learning_rate == 1e-3 and trainer.args.pooling == "mean" and trainer.args.augmentation == "query"
    )
    before = trainer.encoder(training=False).encode(TEXTS)
    np.testing.assert_allclose(before, Encoder.from_pretrained(base, device="cpu").encode(TEXTS), atol=1e-6)
    trainer.train()
    after = trainer.encoder(training=False)
    assert np.abs(after.encode(TEXTS) - before).max() > 1e-4
    trainer.finish()
    assert f"trained from `{Path(base).name}`" in (out / "README.md").read_text()
    assert min(verify_encoder(out, after, TEXTS).values()) > 0.9999
    theirs = SentenceTransformer(str(out), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), after.encode(TEXTS), atol=1e-5)
    return after


@pytest.mark.parametrize("after", [[], [Normalize()], [Dense(16, 8), Normalize()]], ids=["mean", "unit", "dense"])
def test_a_static_embedding_is_read_trained_and_saved(tokenizer, sentences, tmp_path, after):
    base = save_static_embedding(
        tmp_path / "base", tokenizer, *after, prompts={"query": "find the ", "document": "book "}
    )
    ours, theirs = Encoder.from_pretrained(base, device="cpu"), SentenceTransformer(base, device="cpu")
    long = [" ".join(sentences)]
    for name in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(ours, name)(TEXTS + long), getattr(theirs, name)(TEXTS + long), atol=1e-5)
    trained = check_adapted(base, sentences, tmp_path / "out")
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert saved.prompts == theirs.prompts and list(map(type, saved)) == list(map(type, theirs))
    np.testing.assert_allclose(saved.encode_query(TEXTS), trained.encode_query(TEXTS), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_mean_from_the_table_is_the_padded_mean(tokenizer, tmp_path, dtype):
    """Also of a text without tokens, first, between others and last."""
    encoder = Encoder.from_pretrained(save_static_embedding(tmp_path / "base", tokenizer), dtype=dtype, device="cpu")
    ids = [[], *encoder.tokenize(TEXTS[:2]), [], *encoder.tokenize(TEXTS[2:]), []]
    batch = encoder.tokenizer.pad({"input_ids": ids}, return_tensors="pt")
    expected = pool(encoder.model(**batch), batch["attention_mask"], "mean").float()
    found = encoder.forward(ids).float()
    assert not found[[0, 3, -1]].any() and found[1].any()
    torch.testing.assert_close(found, expected, atol=1e-6 if dtype == "float32" else 1e-2, rtol=0)


# model2vec leaves unknown tokens out, sentence-transformers does not.
KNOWN = [text for text in TEXTS if "é" not in text]


@pytest.mark.parametrize("normalize", [True, False])
def test_a_model2vec_folder_is_read_trained_and_saved(tokenizer, sentences, tmp_path, normalize):
    base = save_model2vec(tmp_path / "base", tokenizer, normalize)
    expected = means(table(tokenizer), tokenizer, KNOWN, normalize)
    np.testing.assert_allclose(Encoder.from_pretrained(base, device="cpu").encode(KNOWN), expected, atol=1e-5)
    trained = check_adapted(base, sentences, tmp_path / "out")
    saved = load_file(tmp_path / "out" / "model.safetensors")["embeddings"].numpy()
    np.testing.assert_allclose(means(saved, tokenizer, KNOWN, normalize), trained.encode(KNOWN), atol=1e-5)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["normalize"] == normalize


@pytest.mark.parametrize("normalize", [True, False])
def test_model2vec_itself_reads_a_saved_folder(tokenizer, sentences, tmp_path, normalize):
    model2vec = pytest.importorskip("model2vec")
    base = save_model2vec(tmp_path / "base", tokenizer, normalize)
    theirs = model2vec.StaticModel.from_pretrained(base)
    np.testing.assert_allclose(
        Encoder.from_pretrained(base, device="cpu").encode(KNOWN), theirs.encode(KNOWN), atol=1e-5
    )
    trained = check_adapted(base, sentences, tmp_path / "out")
    found = model2vec.StaticModel.from_pretrained(tmp_path / "out")
    np.testing.assert_allclose(found.encode(KNOWN), trained.encode(KNOWN), atol=1e-5)


def test_a_quantized_vocabulary_is_folded(tokenizer, sentences, tmp_path):
    rng = np.random.default_rng(1)
    mapping = rng.integers(0, 20, len(tokenizer))
    weights = rng.uniform(0.5, 2, len(tokenizer)).astype(np.float32)
    few = table(tokenizer)[:20]
    base = save_model2vec(tmp_path / "base", tokenizer, True, embeddings=few, mapping=mapping, weights=weights)
    expected = means(few[mapping] * weights[:, None], tokenizer, KNOWN, True)
    np.testing.assert_allclose(Encoder.from_pretrained(base, device="cpu").encode(KNOWN), expected, atol=1e-5)


def test_training_resumes_to_the_same_weights(tokenizer, sentences, tmp_path):
    base = save_static_embedding(tmp_path / "base", tokenizer, Normalize())
    flags = FLAGS | {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(base, sentences, tmp_path / "whole", **flags)
    whole.train()
    again = make_trainer(base, sentences, tmp_path / "again", **flags)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert torch.equal(whole.model.embeddings, again.model.embeddings)


def test_what_a_static_encoder_cannot_be(tokenizer, sentences, tmp_path):
    base = save_static_embedding(tmp_path / "base", tokenizer)
    with pytest.raises(
        InputError, match="--pooling cls: .*base is a static encoder, whose vectors are means; use mean"
    ):
        Encoder.from_pretrained(base, "cls")
    with pytest.raises(InputError, match="--packing on: not possible here .a static encoder has no attention."):
        make_trainer(base, sentences[:60], tmp_path / "out", **FLAGS, packing="on")
    with pytest.raises(InputError, match="--lora_rank: .*base is a static encoder"):
        make_trainer(base, sentences[:60], tmp_path / "out", **FLAGS, lora_rank=4)
    (tmp_path / "base" / "modules.json").rename(tmp_path / "modules.json")
    with pytest.raises(InputError, match="base: no config.json"):
        Encoder.from_pretrained(base)
    (Path(save_model2vec(tmp_path / "old", tokenizer, True)) / "modules.json").unlink()
    with pytest.raises(InputError, match="old: a model2vec folder without modules.json; save it again with model2vec"):
        Encoder.from_pretrained(str(tmp_path / "old"))
    modules = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "base" / "modules.json").write_text(json.dumps([*modules, modules[0] | {"path": "1_StaticEmbedding"}]))
    with pytest.raises(InputError, match="its module 2, .*StaticEmbedding, can be neither used"):
        Encoder.from_pretrained(base)

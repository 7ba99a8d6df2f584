"""Prompts of a checkpoint: those of queries and documents, and those that the pooling leaves out, as in sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from mirror.common.errors import InputError
from mirror.data.cleaning import Corpus
from mirror.modeling.encoder import Encoder, encode_sides
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning"]
PROMPTS = [
    ({"query": "find the ", "document": "book: "}, None),
    ({"query": "find the ", "passage": "book: "}, None),
    ({"passage": "book: ", "corpus": "a list "}, "passage"),
    ({"query": "find the ", "document": ""}, "query"),
    ({"clustering": "sun "}, "clustering"),
    ({}, None),
]


def save(
    bert_folder: str, folder, pooling: str, prompts: dict, default: str | None, include_prompt: bool = True
) -> str:
    torch.manual_seed(0)
    modules = [Transformer(bert_folder), Pooling(32, pooling, include_prompt=include_prompt)]
    SentenceTransformer(modules=modules, prompts=prompts, default_prompt_name=default, device="cpu").save(str(folder))
    return str(folder)


@pytest.mark.parametrize(("prompts", "default"), PROMPTS)
@pytest.mark.parametrize(
    ("pooling", "include_prompt"), [("mean", True), ("mean", False), ("cls", False), ("max", False)]
)
def test_queries_and_documents_are_encoded_as_by_sentence_transformers(
    bert_folder, tmp_path, prompts, default, pooling, include_prompt
):
    folder = save(bert_folder, tmp_path / "model", pooling, prompts, default, include_prompt)
    ours, theirs = Encoder.from_pretrained(folder, device="cpu"), SentenceTransformer(folder, device="cpu")
    expected = {name: getattr(theirs, name)(TEXTS) for name in ("encode", "encode_query", "encode_document")}
    for name, vectors in expected.items():
        np.testing.assert_allclose(getattr(ours, name)(TEXTS), vectors, atol=1e-5)
        np.testing.assert_allclose(getattr(ours, name)(TEXTS, batch_size=1), vectors, atol=1e-5)
    queries, documents = encode_sides(ours.by_role(), TEXTS[:1], TEXTS)
    np.testing.assert_allclose(queries, expected["encode_query"][:1], atol=1e-5)
    np.testing.assert_allclose(documents, expected["encode_document"], atol=1e-5)
    similarity = theirs.similarity(expected["encode_query"], expected["encode_document"]).numpy()  # (3, 3)
    for row, found in enumerate(ours.search(TEXTS, TEXTS, k=3)):
        assert [text for text, _ in found] == [TEXTS[at] for at in np.argsort(-similarity[row])]


def test_a_prompt_of_the_caller_is_before_queries_and_documents_too(bert_folder, tmp_path):
    folder = save(bert_folder, tmp_path / "model", "mean", *PROMPTS[0])
    theirs = SentenceTransformer(folder, device="cpu")
    for options, prompt in (
        ({"prompt": "sun "}, "sun "),
        ({"prompt": ""}, ""),
        ({"prompt_name": "query"}, "find the "),
    ):
        ours, expected = Encoder.from_pretrained(folder, **options), theirs.encode(TEXTS, prompt=prompt)
        for encode in (ours.encode, ours.encode_query, ours.encode_document):
            np.testing.assert_allclose(encode(TEXTS), expected, atol=1e-5)


def test_sides_with_the_same_prompt_are_encoded_in_one_call():
    calls = []

    def encode(texts):
        calls.append(texts)
        return np.zeros((len(texts), 2))

    queries, documents = encode_sides(encode, ["a"], ["b", "a"])
    assert calls == [["a", "b", "a"]] and queries.shape == (1, 2) and documents.shape == (2, 2)


def train_on_pairs(folder: str, out, sentences, pairs: bool = True, **flags) -> MirrorTrainer:
    defaults = {"per_device_train_batch_size": 8, "max_steps": 1, "bf16": False, "disable_tqdm": True}
    defaults |= {"augmentation": "none", "dropout_rate": 0.0, "validation_samples": 0, "dataloader_num_workers": 0}
    columns = {"text": sentences[:40]} | ({"text_pair": sentences[40:80]} if pairs else {})
    config = MirrorConfig(output_dir=str(out), **defaults | flags)
    return MirrorTrainer(folder, config, Corpus(Dataset.from_dict(columns)))


@pytest.mark.parametrize(
    ("include_prompt", "pooling", "packing"),
    [(True, "mean", "on"), (True, "cls", "off"), (False, "mean", "off"), (False, "cls", "on"), (False, "max", "on")],
)
def test_training_on_pairs_embeds_each_side_with_its_prompt(
    bert_folder, tmp_path, sentences, include_prompt, pooling, packing
):
    """The vectors that the loss compares are those of sentence-transformers for queries and documents."""
    prompts = {"query": "find the book ", "document": "a "}
    folder = save(bert_folder, tmp_path / "model", pooling, prompts, None, include_prompt)
    trainer = train_on_pairs(folder, tmp_path / "out", sentences, packing=packing, pair_prompts=["query", "document"])
    batch = next(iter(trainer.get_train_dataloader()))
    theirs = SentenceTransformer(folder, device="cpu")
    queries, documents = theirs.encode_query(sentences[:40]), theirs.encode_document(sentences[40:80])
    with torch.no_grad():
        first, second = trainer.embed(trainer.model.eval(), batch).chunk(2)
    for found, expected in ((first, queries), (second, documents)):
        distance = np.abs(found.numpy()[:, None] - expected).max(axis=2)  # (8, 40)
        assert distance.min(axis=1).max() < 1e-5
    rows = [
        np.abs(found.numpy()[:, None] - each).max(2).argmin(1)
        for found, each in ((first, queries), (second, documents))
    ]
    assert (rows[0] == rows[1]).all()
    trainer.train()
    trainer.save_model()
    saved, ours = SentenceTransformer(str(tmp_path / "out"), device="cpu"), trainer.encoder(training=False)
    assert saved.prompts == prompts and saved[1].include_prompt == include_prompt
    np.testing.assert_allclose(ours.encode_query(TEXTS), saved.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(ours.encode_document(TEXTS), saved.encode_document(TEXTS), atol=1e-5)


@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_a_prompt_of_all_texts_is_left_out_of_the_pooling_in_training(
    bert_folder, tmp_path, sentences, mini_batch_size
):
    folder = save(bert_folder, tmp_path / "model", "mean", {"query": "find the book "}, "query", include_prompt=False)
    flags = {"pairs": False, "mini_batch_size": mini_batch_size, "dropout_rate": 0.1}
    trainer = train_on_pairs(folder, tmp_path / "out", sentences, **flags)
    assert trainer.base.skipped == (4, 4)
    trainer.train()
    trainer.save_model()
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(trainer.encoder(training=False).encode(TEXTS), saved.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"pair_prompts": ["query", "document"], "pairs": False}, "--pair_prompts needs texts in two columns"),
        ({"pair_prompts": ["query", "passage"]}, "has no prompt 'passage'; it has query, document"),
        ({"pair_prompts": ["query"]}, "--pair_prompts .*two names of prompts"),
        ({"pair_prompts": ["query", "document"], "prompt": "a "}, "give --pair_prompts, or one prompt for all texts"),
    ],
)
def test_prompts_that_pairs_cannot_have(bert_folder, tmp_path, sentences, flags, message):
    folder = save(bert_folder, tmp_path / "model", "mean", {"query": "find ", "document": "book "}, None)
    with pytest.raises(InputError, match=message):
        train_on_pairs(folder, tmp_path / "out", sentences, **flags)

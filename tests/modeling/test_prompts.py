"""Prompts of a checkpoint: those of queries and documents, and those that the pooling leaves out, as in sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from mirror.modeling.encoder import Encoder, encode_sides


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

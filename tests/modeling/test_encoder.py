"""Loading and encoding: every architecture, batch-size independence, refusals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import AutoModel, GPT2Config, GPT2Model

from mirror.common.errors import InputError
from mirror.modeling import encoder as encoder_module
from mirror.modeling.encoder import Encoder
from mirror.modeling.packing import shared_forward
from tests.architectures import CONFIGS, save_tiny


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning", "rain"]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_encodes_like_its_own_forward_pass(name, tokenizer, tmp_path):
    folder = save_tiny(name, tokenizer, tmp_path)
    vectors = Encoder.from_pretrained(folder, pooling="cls").encode(TEXTS, batch_size=2)
    model = AutoModel.from_pretrained(folder).eval()
    alone = tokenizer("rain", return_tensors="pt")
    with torch.no_grad():
        expected = model(**{key: alone[key] for key in ("input_ids", "attention_mask")}).last_hidden_state[0, 0]
    assert vectors.shape == (4, 32) and vectors.dtype == np.float32
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    np.testing.assert_allclose(vectors[1], expected.numpy(), atol=1e-5)
    np.testing.assert_array_equal(vectors[1], vectors[3])


@pytest.mark.parametrize("pooling", ["cls", "mean", "mean_padded", "first_last_mean", "max"])
def test_the_batch_changes_nothing(bert_folder, pooling, sentences):
    encoder = Encoder.from_pretrained(bert_folder, pooling=pooling, max_seq_length=20)
    together = encoder.encode(sentences[:40], batch_size=40)
    np.testing.assert_allclose(together, encoder.encode(sentences[:40], batch_size=3), atol=1e-5)
    np.testing.assert_allclose(together[7], encoder.encode([sentences[7]])[0], atol=1e-5)


def test_one_string_is_not_taken_for_its_letters(bert_folder):
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    for call in (lambda: encoder.encode("a cat"), lambda: encoder.similarity("a cat", ["a dog"])):
        with pytest.raises(InputError, match=r"give a list of texts, not one string: \['a cat'\]"):
            call()
    with pytest.raises(InputError, match="unknown dtype 'fp16'; one of float32, bfloat16, float16"):
        Encoder.from_pretrained(bert_folder, "mean", dtype="fp16")


def test_numbers_below_one_are_refused(bert_folder):
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        encoder.encode(["a cat"], batch_size=0)
    for k in (0, -1):  # -1 would be all texts but the last one
        with pytest.raises(InputError, match=f"k must be at least 1, got {k}"):
            encoder.search(["a cat"], ["a cat", "a dog"], k=k)


def test_nothing_in_nothing_out(bert_folder):
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    assert encoder.encode([]).shape == (0, 32)
    assert encoder.search([], ["a cat"]) == [] and encoder.search(["a cat"], []) == [[]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_stays_close(bert_folder, dtype, sentences):
    exact = Encoder.from_pretrained(bert_folder, pooling="mean").encode(sentences[:10])
    rough = Encoder.from_pretrained(bert_folder, pooling="mean", dtype=dtype).encode(sentences[:10])
    cosine = torch.cosine_similarity(torch.from_numpy(exact), torch.from_numpy(rough))
    assert rough.dtype == np.float32 and cosine.min() > 0.999


def test_a_plain_masked_lm_asks_for_the_pooling(bert_folder):
    with pytest.raises(InputError, match=r"plain masked LM.*pass --pooling with one of cls, mean"):
        Encoder.from_pretrained(bert_folder)


def test_a_pooling_that_contradicts_the_checkpoint_is_obeyed_with_a_warning(bert_folder, caplog):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    transformer = Transformer(bert_folder)
    path = f"{bert_folder}-st"
    SentenceTransformer(modules=[transformer, Pooling(32, "cls")]).save(path)
    assert Encoder.from_pretrained(path).pooling == "cls"
    assert Encoder.from_pretrained(path, pooling="mean").pooling == "mean"
    assert "says pooling 'cls'; using 'mean' as asked" in caplog.text


def test_refusals(tmp_path, tokenizer, bert_folder):
    with pytest.raises(InputError, match="no config.json in this folder"):
        Encoder.from_pretrained(str(tmp_path), pooling="cls")
    with pytest.raises(InputError, match="unknown pooling 'avg'"):
        Encoder.from_pretrained(bert_folder, pooling="avg")
    GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="gpt2.* is causal, so its first token sees no other"):
        Encoder.from_pretrained(str(tmp_path), pooling="cls")


def test_a_vector_that_is_not_finite_names_its_text(bert_folder):
    encoder = Encoder.from_pretrained(bert_folder, pooling="cls")
    row = encoder.tokenizer.convert_tokens_to_ids("dog")
    encoder.model.embeddings.word_embeddings.weight.data[row] = float("nan")
    with pytest.raises(InputError, match="1 of 2 vectors are not finite, first for 'a dog'"):
        encoder.encode(["a cat", "a dog"])


def test_texts_that_the_tokenizer_does_not_know_are_mentioned_once(bert_folder, caplog):
    encoder = Encoder.from_pretrained(bert_folder, pooling="mean")
    encoder.encode(["the cat sees the dog"])
    assert not caplog.text
    for _ in range(2):
        encoder.encode(["猫 が 犬 を 見る 雨 が 降る"])
    assert caplog.text.count("of the tokens are unknown to the tokenizer") == 1


def test_texts_of_any_container_are_those_of_the_list(bert_folder):
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    expected = encoder.encode(TEXTS)
    series = pd.Series(TEXTS, index=[7, 3, 3, 1])
    containers = [
        tuple(TEXTS),
        (text for text in TEXTS),
        series,
        series.to_numpy(),
        np.array(TEXTS),
        series.astype("category"),
    ]
    containers += [Dataset.from_dict({"text": TEXTS})["text"], dict.fromkeys(TEXTS).keys()]
    for texts in containers[:-1]:
        np.testing.assert_array_equal(encoder.encode(texts), expected)
    np.testing.assert_array_equal(encoder.encode(containers[-1]), expected[:3])
    assert encoder.search(series, series, k=1) == encoder.search(TEXTS, TEXTS, k=1)
    assert encoder.encode(pd.Series([], dtype=str)).shape == (0, 32)
    for encode in (encoder.encode_query, encoder.encode_document):
        np.testing.assert_array_equal(encode(series), expected)


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["a", None], r"the text at index 1 is None, not a string; drop it"),
        (pd.Series(["a", np.nan], dtype=object), r"the text at index 1 is nan \(float\), not a string"),
        (pd.Series(["a", None], index=[5, 6]), r"the text at index 1 is (None|nan \(float\)), not a string"),
        (np.array([1.5, 2]), r"the text at index 0 is .*1\.5.* \(float64\), not a string"),
        (["a", b"b"], r"the text at index 1 is b'b' \(bytes\), not a string"),
        ([["a", "b"]], r"the text at index 0 is \['a', 'b'\] \(list\), not a string"),
        (pd.DataFrame({"title": ["a"]}), r"give the texts of one column, not a table: texts\['title'\]"),
        ({"text": ["a"]}, r"give the texts of one column, not a table: texts\['text'\]"),
        (np.array([["a", "b"]]), r"give an array of one dimension, not of the shape \(1, 2\)"),
        (b"a", "give a list of texts, not one string"),
        (None, "give a list of texts, not None"),
        (3, "give a list of texts, not 3"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_a_text_is_named_by_its_index(bert_folder, texts, line):
    with pytest.raises(InputError, match=line):
        Encoder.from_pretrained(bert_folder, "mean").encode(texts)


def test_texts_share_rows_only_where_that_is_faster_and_the_vectors_stay(bert_folder, sentences, monkeypatch):
    calls = []
    encoder = Encoder.from_pretrained(bert_folder, "mean", dtype="bfloat16")
    monkeypatch.setattr(encoder_module, "shared_forward", lambda *given: calls.append(given) or shared_forward(*given))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    plain = encoder.encode([*sentences, ""], batch_size=8)
    assert not calls
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    encoder = Encoder.from_pretrained(bert_folder, "mean", dtype="bfloat16")
    shared = encoder.encode([*sentences, ""], batch_size=8)
    assert calls and len(calls[0][1]) > 8
    assert np.linalg.norm(shared - plain) < 0.01 * np.linalg.norm(plain)
    single = Encoder.from_pretrained(bert_folder, "mean")
    calls.clear()
    single.encode(sentences, batch_size=8)
    assert not calls


def test_whether_texts_share_rows_is_tried_once_for_all_roles(bert_folder, sentences, monkeypatch):
    tried = []
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(encoder_module, "takes_shared_rows", lambda model: tried.append(model) or False)
    encoder = Encoder.from_pretrained(bert_folder, "mean", dtype="bfloat16")
    for encode in (encoder.encode_query, encoder.encode_query, encoder.encode_document, encoder.encode):
        encode(sentences, batch_size=8)
    assert len(tried) == 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_token_ids_are_those_of_the_tokenizer(bert_folder, sentences, side):
    """Cut on either side, with special tokens in the text, after a call with other options."""
    encoder = Encoder.from_pretrained(bert_folder, pooling="mean", max_seq_length=6)
    encoder.tokenizer.truncation_side = side
    texts = ["", "a [MASK] b [PAD]", " ".join(sentences), *sentences]
    encoder.tokenizer(texts, padding="max_length", max_length=20, truncation=True, split_special_tokens=True)
    found = encoder.tokenize(texts)
    assert found == encoder.tokenizer(texts, truncation=True, max_length=6)["input_ids"]
    assert {len(row) for row in found} >= {2, 6} and encoder.tokenizer.mask_token_id in found[1]


def test_a_tokenizer_that_changes_what_its_backend_finds_is_asked_itself(bert_folder, sentences, monkeypatch):
    encoder = Encoder.from_pretrained(bert_folder, pooling="mean")

    class Reversed(type(encoder.tokenizer)):
        def __call__(self, texts, **options):
            return {"input_ids": [row[::-1] for row in super().__call__(texts, **options)["input_ids"]]}

    expected = [row[::-1] for row in encoder.tokenize(sentences)]
    encoder.tokenizer.__class__ = Reversed
    assert encoder.tokenize(sentences) == expected

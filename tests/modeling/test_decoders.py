"""Decoders as encoders: Qwen3-Embedding, EmbeddingGemma, and raw language models that become encoders."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, BertConfig, BertModel

from mirror.common.errors import InputError
from mirror.data.batches import pack
from mirror.modeling.encoder import Encoder
from mirror.modeling.packing import configure_noise_and_packing, first_position, packed_forward
from mirror.modeling.pooling import pool
from mirror.modeling.save_checkpoint import verify_encoder
from mirror.training import options
from tests.architectures import padded, random_rows
from tests.decoders import CAUSAL, DECODERS, save_embedder, save_raw, tiny_decoder
from tests.modeling.test_packing import each_way, gradients  # noqa: F401
from tests.tiny_trainer import make_trainer


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning and reads a book"]
ROWS = random_rows(16, 2, 14) + random_rows(3, 7, 7, seed=1)
POOLINGS = ["last", "mean", "max", "first_last_mean"]
# Two steps with the pooling and the length of the base.
OF_BASE = {"max_steps": 2, "pooling": None, "max_seq_length": None, "learning_rate": 1e-3, "span_mask_min_chars": None}
DIRECTIONS = [(name, direction) for name in CAUSAL for direction in ("causal", "bidirectional")]
SHAPES = [*DIRECTIONS, ("embeddinggemma", "bidirectional")]
# gemma2 has grouped queries, a window and a softcap. The others have some of these.
QUICK = [shape for shape in SHAPES if shape[0] in ("gemma2", "embeddinggemma")]
QUICK += [pytest.param(*shape, marks=pytest.mark.slow) for shape in SHAPES if shape not in QUICK]


def shaped(name: str, direction: str):
    return tiny_decoder(name, **({"is_causal": False} if name in CAUSAL and direction == "bidirectional" else {}))


def own_vectors(model, rows, pooling: str) -> torch.Tensor:
    """Vectors of a model with transformers' own attention, padded on the right."""
    batch = padded(rows, 0)
    return pool(model(**batch, output_hidden_states=True), batch["attention_mask"], pooling)


def packed_vectors(model, rows, pooling: str) -> torch.Tensor:
    return pool(*packed_forward(model, pack(rows, first_position(model), 0, round_to=64), pooling), pooling)


# Packed rows


@pytest.mark.parametrize(("name", "direction"), QUICK)
def test_packed_is_padded_by_transformers_own_attention(name, direction, each_way):  # noqa: F811
    plain, model = shaped(name, direction), shaped(name, direction)
    assert configure_noise_and_packing(model, "last", "on", dropout_rate=0.0)
    for pooling in POOLINGS:
        expected, found = own_vectors(plain, ROWS, pooling), packed_vectors(model, ROWS, pooling)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(own_vectors(model, ROWS, pooling), expected, atol=1e-5, rtol=1e-4)
        theirs, ours = gradients(plain, expected), gradients(model, found)
        assert theirs.keys() == ours.keys()
        for parameter, gradient in theirs.items():
            scale = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(ours[parameter] / scale, gradient / scale, atol=2e-5, rtol=1e-3, msg=parameter)


@pytest.mark.parametrize(("name", "direction"), QUICK)
def test_no_token_of_a_packed_row_sees_another_text(name, direction, each_way):  # noqa: F811
    """Exactly: not a bit of a text's states, nor of a gradient, depends on the tokens of another text."""
    model = shaped(name, direction)
    configure_noise_and_packing(model, "last", "on", dropout_rate=0.0)
    batch = pack(ROWS, 0, 0, round_to=64)
    row = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    hidden = row_states(model, batch, row)
    bounds = [0, *batch["lengths"].cumsum(0).tolist()]
    for start, end in list(pairwise(bounds))[::3]:
        if end - start < 3:
            continue
        middle = start + 1
        (of_middle,) = torch.autograd.grad(hidden[middle].sum(), row, retain_graph=True)
        touched = of_middle[0].abs().sum(dim=1).nonzero().flatten().tolist()
        assert start <= min(touched) and max(touched) < end
        assert (max(touched) > middle) == (direction == "bidirectional")
    changed = row.detach().clone()
    changed[:, bounds[5] : bounds[6]] += 1
    after = row_states(model, batch, changed)
    same = (after == hidden).all(dim=1)
    assert same[: bounds[5]].all() and same[bounds[6] : bounds[-1]].all() and not same[bounds[5] : bounds[6]].any()


def row_states(model, batch, row: torch.Tensor) -> torch.Tensor:
    from mirror.modeling.attention import PackedLayout

    layout = PackedLayout(batch["lengths"], batch["slots"], batch["attention_mask"])
    return model(inputs_embeds=row, position_ids=batch["position_ids"], packed=layout).last_hidden_state[0]


def test_a_model_that_needs_more_of_its_attention_keeps_its_own(caplog):
    """gpt-oss gives its attention a learned sink for each head."""
    from transformers import AutoConfig

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    sizes |= {
        "vocab_size": 60,
        "intermediate_size": 16,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "pad_token_id": 0,
    }
    model = AutoModel.from_config(AutoConfig.for_model("gpt_oss", **sizes, initializer_range=0.3)).eval()
    for layer in model.layers:
        torch.nn.init.constant_(layer.self_attn.sinks, 2.0)
    before = own_vectors(model, ROWS, "last")
    with caplog.at_level("INFO"):
        assert not configure_noise_and_packing(model, "last", "auto", dropout_rate=0.0)
    assert "GptOssModel needs an attention of its own" in caplog.text
    torch.testing.assert_close(own_vectors(model, ROWS, "last"), before)


# Checkpoints of sentence-transformers


def check_same_as_sentence_transformers(folder: str) -> None:
    ours, theirs = Encoder.from_pretrained(folder, device="cpu"), SentenceTransformer(folder, device="cpu")
    for name in ("encode", "encode_query", "encode_document"):
        expected = getattr(theirs, name)(TEXTS)
        np.testing.assert_allclose(getattr(ours, name)(TEXTS), expected, atol=1e-5)
        np.testing.assert_allclose(getattr(ours, name)(TEXTS, batch_size=1), expected, atol=1e-5)
        rough = getattr(Encoder.from_pretrained(folder, dtype="bfloat16", device="cpu"), name)(TEXTS)
        cosines = (rough * expected).sum(1) / np.linalg.norm(rough, axis=1)
        assert cosines.min() > 0.95  # three layers of weights ten times as large as those of real models
    assert np.abs(ours.encode_query(TEXTS) - ours.encode_document(TEXTS)).max() > 1e-2


@pytest.mark.parametrize(("name", "padding_side"), [*((name, "left") for name in DECODERS), ("qwen3", "right")])
def test_a_decoder_encodes_as_sentence_transformers(name, padding_side, tmp_path):
    check_same_as_sentence_transformers(save_embedder(tmp_path, name, padding_side))


@pytest.mark.parametrize(
    ("name", "packing"),
    [("qwen3", "on"), ("embeddinggemma", "off"), pytest.param("gemma2", "on", marks=pytest.mark.slow)],
)
def test_a_decoder_is_adapted_saved_and_read_by_all(name, packing, sentences, tmp_path):
    base = save_embedder(tmp_path, name)
    trainer = make_trainer(base, sentences[:60], tmp_path / "out", packing=packing, **OF_BASE)
    assert trainer.args.pooling == ("mean" if name == "embeddinggemma" else "last")
    assert trainer.args.max_seq_length == 64 and trainer.args.augmentation == "query"
    before = trainer.encoder(training=False).encode(TEXTS)
    trainer.train()
    assert np.abs(trainer.encoder(training=False).encode(TEXTS) - before).max() > 1e-3
    trainer.finish()
    readers = verify_encoder(tmp_path / "out", trainer.encoder(training=False), TEXTS)
    assert len(readers) == 2 and min(readers.values()) > 0.9999
    check_card(tmp_path / "out", name)
    check_same_as_sentence_transformers(str(tmp_path / "out"))
    first, saved = SentenceTransformer(base, device="cpu"), SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert saved.prompts == first.prompts and list(map(type, saved)) == list(map(type, first))
    assert saved[0].auto_model.config.model_type == DECODERS[name][0]
    bidirectional = getattr(saved[0].auto_model.config, "use_bidirectional_attention", None)
    assert bool(bidirectional) == (name == "embeddinggemma")
    stored = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    if name != "embeddinggemma":
        assert stored["pooling_mode"] == "lasttoken" and stored["pooling_mode_lasttoken"] is True
        assert not stored["pooling_mode_mean_tokens"]


def check_card(folder, name: str) -> None:
    """The code on the card, if it has any for transformers alone, gives the vectors."""
    card = (folder / "README.md").read_text()
    code = card.partition("With transformers alone")[2].partition("```python\n")[2].partition("```")[0]
    assert bool(code) == (name != "embeddinggemma")
    if code:
        found: dict = {}
        exec(re.sub(r'from_pretrained\(".*?"\)', f'from_pretrained("{folder}")', code), found)
        expected = Encoder.from_pretrained(str(folder), device="cpu").encode(["a text", "another text"])
        np.testing.assert_allclose(found["vectors"].numpy(), expected, atol=1e-5)


def test_a_folder_in_the_older_spelling_of_last_token_pooling(tmp_path):
    folder = save_embedder(tmp_path, "qwen3")
    old = {
        f"pooling_mode_{name}": False for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    }
    old |= {"word_embedding_dimension": 32, "pooling_mode_weightedmean_tokens": False, "pooling_mode_lasttoken": True}
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text(json.dumps(old))
    check_same_as_sentence_transformers(folder)


def test_a_token_without_an_embedding_is_named(tmp_path):
    encoder = Encoder.from_pretrained(save_embedder(tmp_path, "embeddinggemma"), device="cpu")
    with pytest.raises(InputError, match="no embedding for the token '<image_soft_token>' in 'a cat <image"):
        encoder.encode(["rain", "a cat <image_soft_token>"])


# Raw language models


@pytest.mark.parametrize(
    ("name", "direction"),
    [pytest.param(*shape, marks=() if shape[0] == "qwen3" else pytest.mark.slow) for shape in DIRECTIONS],
)
def test_a_language_model_becomes_an_encoder(name, direction, sentences, tmp_path, caplog):
    base = save_raw(tmp_path / "base", name)
    with caplog.at_level("INFO"):
        trainer = make_trainer(base, sentences[:60], tmp_path / "out", attention_direction=direction, **OF_BASE)
    assert (
        f"base: base is a decoder language model with {direction} attention; settings for it: --augmentation delete"
        in (caplog.text)
    )
    assert ("earlier versions as a causal one" in caplog.text) == (direction == "bidirectional")
    assert "packing: on" in caplog.text
    assert trainer.args.pooling == ("last" if direction == "causal" else "mean") and trainer.args.max_seq_length == 50
    trainer.train()
    trainer.save_model()
    readers = verify_encoder(tmp_path / "out", trainer.encoder(training=False), TEXTS)
    assert len(readers) == 2 and min(readers.values()) > 0.9999
    model = AutoModel.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([[5, 6, 7], [5, 6, 8]])
    with torch.no_grad():
        one, other = model(input_ids=ids).last_hidden_state[:, 0]
    assert torch.equal(one, other) == (direction == "causal")


@pytest.mark.parametrize(("direction", "pooling"), [("causal", "mean"), ("bidirectional", "last")])  # not the defaults
def test_the_direction_and_the_pooling_can_be_chosen(direction, pooling, tmp_path, sentences):
    base = save_raw(tmp_path / "base", "qwen3")
    trainer = make_trainer(
        base,
        sentences[:40],
        tmp_path / "out",
        attention_direction=direction,
        pooling=pooling,
        max_steps=1,
        span_mask_length=0,
    )
    trainer.train()
    trainer.save_model()
    assert min(verify_encoder(tmp_path / "out", trainer.encoder(training=False), TEXTS).values()) > 0.9999


def test_what_a_decoder_cannot_be(tmp_path, sentences, bert_folder):
    raw, gemma = save_raw(tmp_path / "raw", "qwen3"), save_embedder(tmp_path, "embeddinggemma")
    with pytest.raises(
        InputError, match="--pooling cls: .*raw .qwen3. is causal, so its first token sees no other; use last"
    ):
        make_trainer(raw, sentences[:40], tmp_path / "out", pooling="cls", span_mask_length=0)
    with pytest.raises(InputError, match="--pooling cls: .* is causal"):
        Encoder.from_pretrained(raw, "cls")
    for folder in (bert_folder, gemma):
        with pytest.raises(
            InputError, match="--attention_direction causal: .* was trained as a bidirectional encoder"
        ):
            make_trainer(folder, sentences[:40], tmp_path / "out", attention_direction="causal")
    make_trainer(bert_folder, sentences[:40], tmp_path / "out", attention_direction="bidirectional")


@pytest.mark.parametrize("model_type", ["mamba", "rwkv", "bloom"])
def test_a_decoder_without_attention_that_can_be_pooled_is_refused(model_type, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(
        InputError, match=f".{model_type}. is not a decoder of text with attention that can be pooled; give"
    ):
        Encoder.from_pretrained(str(tmp_path), "last")


def test_a_large_model_is_trained_by_low_rank_updates(tmp_path, sentences, monkeypatch, caplog):
    monkeypatch.setattr(options, "LORA_ABOVE", 1000)
    base = save_raw(tmp_path / "base", "qwen3")
    flags = {"max_steps": 1, "span_mask_min_chars": None}
    with caplog.at_level("INFO"):
        trainer = make_trainer(base, sentences[:40], tmp_path / "out", gradient_checkpointing=True, **flags)
    assert "--lora_rank 16 --learning_rate 0.0002" in caplog.text
    trainer.train()
    trainer.save_model()
    assert min(verify_encoder(tmp_path / "out", trainer.encoder(training=False), TEXTS).values()) > 0.9999
    whole = make_trainer(base, sentences[:40], tmp_path / "whole", lora_rank=0, **flags)
    assert all(weight.requires_grad for weight in whole.model.parameters())


@pytest.mark.parametrize("name", ["qwen3", pytest.param("embeddinggemma", marks=pytest.mark.slow)])
def test_checkpointed_and_cached_gradients_are_the_plain_ones(name, tmp_path, sentences):
    """With attention dropout, whose masks are drawn again in the second pass."""
    base = save_embedder(tmp_path, name)
    flags = {
        "max_steps": 2,
        "pooling": None,
        "learning_rate": 1e-3,
        "span_mask_length": 0,
        "lr_scheduler_type": "constant",
    }
    ways = {"plain": {}, "checkpointed": {"gradient_checkpointing": True}}
    ways |= {"cached": {"mini_batch_size": 5, "dropout_rate": 0.0}, "whole": {"dropout_rate": 0.0}}
    weights = {}
    for way, more in ways.items():
        trainer = make_trainer(base, sentences[:60], tmp_path / way, **flags | more)
        trainer.train()
        weights[way] = trainer.model.state_dict()
    for first, second, tolerance in (("plain", "checkpointed", 1e-6), ("cached", "whole", 2e-4)):
        for parameter, value in weights[first].items():
            torch.testing.assert_close(weights[second][parameter], value, atol=tolerance, rtol=1e-3, msg=parameter)


def test_bert_made_a_decoder_by_its_configuration_is_packed_as_it_is(each_way):  # noqa: F811
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        is_decoder=True,
    )
    torch.manual_seed(0)
    plain = BertModel(config).eval()
    model = BertModel(config).eval()
    model.load_state_dict(plain.state_dict())
    configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    torch.testing.assert_close(packed_vectors(model, ROWS, "mean"), own_vectors(plain, ROWS, "mean"))

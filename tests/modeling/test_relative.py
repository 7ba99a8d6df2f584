"""MPNet and DeBERTa with this project's classes: saved, copied and resumed as they were, with all kinds of noise."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from transformers import BertTokenizerFast

from mirror.modeling.packing import configure_noise_and_packing, first_position, pack, packed_forward
from mirror.modeling.pooling import pool
from mirror.modeling.save_checkpoint import verify_encoder
from tests.architectures import padded, random_rows, save_tiny, tiny
from tests.tiny_trainer import make_trainer


ROWS = random_rows(12, 2, 14)
FAMILIES = ["mpnet", "deberta", "deberta_v3"]


def save_base(folder, name: str, tokenizer) -> str:
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    pieces[:2] = pieces[1::-1]  # MPNet takes 1 for its padding, whatever the configuration says
    tokenizer = BertTokenizerFast(vocab={piece: index for index, piece in enumerate(pieces)}, model_max_length=40)
    return save_tiny(name, tokenizer, folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_trained_packed_and_saved_under_its_own_name(name, tokenizer, sentences, tmp_path, caplog):
    base = save_base(tmp_path / "base", name, tokenizer)
    with caplog.at_level("INFO"):
        trainer = make_trainer(base, sentences[:40], tmp_path / "out", max_steps=2, max_seq_length=20)
    assert "packing: on" in caplog.text
    trainer.train()
    trainer.save_model()
    first, saved = (json.loads((tmp_path / part / "config.json").read_text()) for part in ("base", "out"))
    assert saved["architectures"] == first["architectures"]
    assert min(verify_encoder(tmp_path / "out", trainer.encoder(training=False), sentences[:5]).values()) > 0.9999


@pytest.mark.parametrize("name", FAMILIES)
def test_a_copy_and_gradient_caching_compute_the_same(name):
    model = tiny(name).eval()
    assert configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    batch = pack(ROWS, first_position(other), 0)
    expected = padded(ROWS, other.config.pad_token_id)
    found = pool(*packed_forward(other, batch, "mean"), "mean")
    torch.testing.assert_close(found, pool(tiny(name).eval()(**expected), expected["attention_mask"], "mean"))
    assert not pool(*packed_forward(model, batch, "mean"), "mean").any()


def test_drophead_and_dropout_of_mpnet_drop(monkeypatch):
    plain = tiny("mpnet").eval()
    batch = pack(ROWS, first_position(plain), 0)
    for noise in ({"drophead_rate": 0.5}, {"dropout_rate": 0.3}):
        model = tiny("mpnet")
        assert configure_noise_and_packing(model, "mean", "on", **noise)
        torch.manual_seed(0)
        first, second = (pool(*packed_forward(model.train(), batch, "mean"), "mean") for _ in range(2))
        assert (first - second).abs().max() > 1e-2
        still = pool(*packed_forward(model.eval(), batch, "mean"), "mean")
        rows = padded(ROWS, plain.config.pad_token_id)
        torch.testing.assert_close(still, pool(plain(**rows), rows["attention_mask"], "mean"))

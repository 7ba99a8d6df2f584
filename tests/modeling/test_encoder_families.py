"""Every native masked LM: packed is padded, and an encoder trained from it is read by others as it is in memory."""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version

from mirror.modeling.packing import configure_noise_and_packing, first_position, pack, packed_forward
from mirror.modeling.pooling import pool
from mirror.modeling.save_checkpoint import verify_encoder
from tests.architectures import INTERFACE, padded, random_rows
from tests.decoders import DECODERS
from tests.encoder_families import DECODER_ROWS, FAMILIES, PAGE, missing, outcome, page, tiny
from tests.tiny_trainer import make_trainer


OUTCOMES = {
    line.split(" | ")[1].strip("`"): line.split(" | ")[3]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.count(" | `") == 1
}
PACKED = [name for name, found in OUTCOMES.items() if found == "packed"]
TRAINED = [name for name, found in OUTCOMES.items() if "**" not in found]
MODERN = ("modernbert", "eurobert", "gte", "jina_embeddings_v3", "nomic_bert", "ultrabert", "xlm-roberta-xl")
QUICK = ("modernbert", "jina_embeddings_v3", "ultrabert")


def test_every_native_type_is_on_the_page():
    assert not missing()
    assert OUTCOMES.keys() == FAMILIES.keys()
    assert {*MODERN, "mpnet", "deberta", "deberta-v2"} <= {*PACKED}
    padded = {"gemma2"} if Version(transformers.__version__) < Version("5.21") else set()  # docs/dependencies.md
    assert DECODERS.keys() == DECODER_ROWS.keys() - padded


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_page_says_what_is_so(model_type):
    assert outcome(model_type) == OUTCOMES[model_type]


@pytest.mark.slow
def test_the_page_is_the_generated_one():
    assert PAGE.read_text(encoding="utf-8") == page()


# tests/modeling/test_packing.py tries the others in every way of packed attention.
@pytest.mark.parametrize("model_type", [name for name in PACKED if name.replace("-", "_") not in INTERFACE])
def test_packed_is_padded_past_any_local_window(model_type):
    plain, model = tiny(model_type), tiny(model_type)
    assert configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    rows = random_rows(12, 2, 30)
    batch = padded(rows, plain.config.pad_token_id)
    expected = pool(plain(**batch), batch["attention_mask"], "mean")
    found = pool(*packed_forward(model, pack(rows, first_position(model), 0), "mean"), "mean")
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    gradients = []
    for trained, vectors in ((plain, expected), (model, found)):
        (vectors * torch.linspace(-1, 1, vectors.numel()).view_as(vectors)).sum().backward()
        gradients.append({name: value.grad for name, value in trained.named_parameters() if value.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    scale = max(float(gradient.abs().max()) for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name] / scale, gradient / scale, atol=1e-4, rtol=1e-3, msg=name)


def save_tiny(model_type, tokenizer, folder) -> str:
    tiny(model_type, len(tokenizer)).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return str(folder / "base")


@pytest.mark.parametrize(
    "model_type", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TRAINED]
)
def test_an_encoder_is_trained_saved_and_read_by_others(model_type, tokenizer, sentences, tmp_path):
    trainer = make_trainer(save_tiny(model_type, tokenizer, tmp_path), sentences[:40], tmp_path / "out", max_steps=2)
    before = next(iter(trainer.model.parameters())).detach().clone()
    trainer.train()
    assert not torch.equal(next(iter(trainer.model.parameters())), before)
    trainer.save_model()
    readers = verify_encoder(tmp_path / "out", trainer.encoder(training=False), sentences[:8])
    assert len(readers) == 2 and min(readers.values()) > 0.9999

"""Tests of the conditional masked LM (shapes, position of the prefix, s1 reaches s2 through v alone) and of its losses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    RobertaConfig,
)

from mirror.cmlm.model import CMLMModel, CMLMModelConfig, Projection, additive_margin_softmax
from mirror.common.errors import InputError
from mirror.modeling.pooling import pair_features


SMALL = {"vocab_size": 60, "max_position_embeddings": 40, "initializer_range": 0.3}
SHAPE = {**SMALL, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
CONFIGS = {
    "bert": BertConfig(**SHAPE),
    "roberta": RobertaConfig(**SHAPE, pad_token_id=1),
    "distilbert": DistilBertConfig(**SMALL, dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "electra": ElectraConfig(**SHAPE, embedding_size=32),
    "modernbert": ModernBertConfig(**SHAPE, **IDS),
}


def make(kind: str = "bert", num_projections: int = 5, **options) -> CMLMModel:
    torch.manual_seed(0)
    mlm = AutoModelForMaskedLM.from_config(CONFIGS[kind])
    config = CMLMModelConfig(backbone=mlm.config.to_dict(), num_projections=num_projections, **options)
    return CMLMModel(config, mlm).eval()


def texts(rows: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (rows, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def everywhere(second: dict[str, Tensor]) -> Tensor:
    return torch.ones_like(second["input_ids"], dtype=torch.bool)


@pytest.mark.parametrize("kind", CONFIGS)
@torch.no_grad()
def test_shapes_and_logits_of_s2_only(kind):
    model, first, second = make(kind), texts(3, 7), texts(3, 9, seed=1)
    assert model.sentence_vectors(first).shape == (3, 32)
    prefix = model.prefix(first)
    assert prefix.shape == (3, 5, 32)
    every = model.predict(prefix, second, everywhere(second))
    assert every.shape == (27, 60)
    some = model.predict(prefix, second, everywhere(second) & (torch.arange(9) < 2))
    torch.testing.assert_close(some, every.view(3, 9, 60)[:, :2].reshape(6, 60))


@pytest.mark.parametrize("kind", CONFIGS)
@torch.no_grad()
def test_s1_changes_the_logits_of_s2_through_v_and_only_through_v(kind):
    model, first, other, second = make(kind), texts(2, 7), texts(2, 7, seed=5), texts(2, 9, seed=1)
    where = everywhere(second)
    one, two = (model.predict(model.prefix(text), second, where) for text in (first, other))
    assert (one - two).abs().max() > 1e-3
    vectors, zero = model.sentence_vectors, model.projection(torch.zeros(2, 32))
    model.sentence_vectors = lambda text: vectors(text) * 0
    silenced = [model.predict(model.prefix(text), second, where) for text in (first, other)]
    assert torch.equal(*silenced) and torch.equal(silenced[0], model.predict(zero, second, where))


@pytest.mark.parametrize(("kind", "first_position"), [("bert", 0), ("roberta", 2)])
@torch.no_grad()
def test_the_positions_of_prefix_and_s2(kind, first_position):
    """They run on from the prefix through s2, the type is 0, the mask 1. RoBERTa's begin after its padding index, here 1."""
    model, second = make(kind), texts(2, 9, seed=1)
    if kind == "bert":
        second["attention_mask"][1, 6:] = 0
    prefix = model.prefix(texts(2, 7))
    words = model.get_input_embeddings()(second["input_ids"])
    expected = model.mlm(
        inputs_embeds=torch.cat([prefix, words], dim=1),
        attention_mask=torch.cat([torch.ones(2, 5, dtype=torch.long), second["attention_mask"]], dim=1),
        position_ids=first_position + torch.arange(14)[None],
        token_type_ids=torch.zeros(2, 14, dtype=torch.long),
    ).logits[:, 5:]
    torch.testing.assert_close(model.predict(prefix, second, everywhere(second)).view(2, 9, 60), expected)


@torch.no_grad()
def test_padding_changes_nothing():
    model, first, second = make(), texts(2, 7), texts(2, 9, seed=1)
    labels = torch.where(torch.arange(9) % 3 == 0, second["input_ids"], -100)
    padded = [{name: pad(value, (0, 4)) for name, value in part.items()} for part in (first, second)]
    plain, _ = model.conditional_loss(first, second, labels)
    wide, _ = model.conditional_loss(*padded, pad(labels, (0, 4), value=-100))
    assert plain > 1
    torch.testing.assert_close(wide, plain)


@torch.no_grad()
def test_without_projections_it_is_the_plain_masked_lm():
    model, second = make(num_projections=0), texts(2, 9, seed=1)
    assert model.prefix(texts(2, 7)).shape == (2, 0, 32)
    plain = model.mlm(**second).logits.reshape(18, 60)
    torch.testing.assert_close(model.predict(model.prefix(texts(2, 7)), second, everywhere(second)), plain)


@torch.no_grad()
def test_the_identity_counts_among_the_projections():
    vectors = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Projection(32, 1)(vectors), vectors[:, None])
    fifteen = Projection(32, 15)
    assert fifteen(vectors).shape == (3, 15, 32) and torch.equal(fifteen(vectors)[:, 0], vectors)
    linear = [module for module in fifteen.mlp if isinstance(module, torch.nn.Linear)]
    assert [layer.out_features for layer in linear] == [32, 32, 14 * 32]


@torch.no_grad()
def test_the_skip_connection_joins_the_outputs():
    model, first, second = make(skip_connection=True), texts(2, 7), texts(2, 9, seed=1)
    prefix, where = model.prefix(first), everywhere(second)
    joined = model.predict(prefix, second, where)
    model.skip.weight.zero_(), model.skip.bias.zero_()
    assert (model.predict(prefix, second, where) - joined).abs().max() > 1e-3


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@torch.no_grad()
def test_the_pooling_of_v(pooling):
    model, first = make(pooling=pooling), texts(2, 7)
    hidden = model.encoder(**first).last_hidden_state
    expected = {"mean": hidden.mean(1), "cls": hidden[:, 0], "max": hidden.amax(1)}[pooling]
    torch.testing.assert_close(model.sentence_vectors(first), expected)


def test_word_embeddings_of_another_width_are_refused():
    mlm = AutoModelForMaskedLM.from_config(ElectraConfig(**SHAPE, embedding_size=16))
    with pytest.raises(InputError, match=r"electra: word embeddings of width 16 and hidden states of width 32"):
        CMLMModel(CMLMModelConfig(backbone=mlm.config.to_dict()), mlm)


# ---- Losses ------------------------------------------------------------------------------------------------------------


def vectors(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


def by_loops(sources: Tensor, targets: Tensor, margin: float, scale: float = 1.0) -> float:
    """Compute Eq. (1) of the paper in both directions, one exponential at a time."""
    total = 0.0
    for here, there in ((sources, targets), (targets, sources)):
        for i in range(len(here)):
            true = math.exp(scale * (float(here[i] @ there[i]) - margin))
            others = sum(math.exp(scale * float(here[i] @ there[n])) for n in range(len(there)) if n != i)
            total -= math.log(true / (true + others)) / len(here)
    return total


@pytest.mark.parametrize(
    ("margin", "scale", "cosines"), [(0.0, 1.0, False), (0.3, 1.0, False), (2.0, 1.0, False), (0.3, 20.0, True)]
)
def test_additive_margin_softmax_is_the_double_loop(margin, scale, cosines):
    sources, targets = 1.5 * vectors(5, 0), vectors(5, 1)  # of other lengths than 1
    rows = [texts / texts.norm(dim=1, keepdim=True) if cosines else texts for texts in (sources, targets)]
    loss = additive_margin_softmax(sources, targets, margin, scale, normalize=cosines)
    assert loss.item() == pytest.approx(by_loops(*rows, margin, scale), rel=1e-5)


@pytest.mark.parametrize(("scale", "normalize"), [(1.0, False), (20.0, True)])
def test_local_rows_against_all_add_up_to_the_joint_loss(scale, normalize):
    sources, targets = vectors(6, 0), vectors(6, 1)
    halves = [
        additive_margin_softmax(sources[part], targets[part], 0.3, scale, normalize, sources, targets, part.start)
        for part in (slice(0, 3), slice(3, 6))
    ]
    joint = additive_margin_softmax(sources, targets, 0.3, scale, normalize)
    assert (halves[0] + halves[1]).item() / 2 == pytest.approx(joint.item(), rel=1e-6)


def test_half_precision_vectors_give_a_float32_loss():
    sources, targets = (10 * vectors(5, seed).bfloat16() for seed in (0, 1))
    loss = additive_margin_softmax(sources, targets, 0.3)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(by_loops(sources.float(), targets.float(), 0.3), rel=1e-4)


def test_pair_features_by_hand():
    features = pair_features(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]]))
    assert features.tolist() == [[1, 2, 3, -1, 2, 3, 3, -2]]

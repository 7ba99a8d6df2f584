"""The conditioned masked LM: shapes, where the prefix stands, and that s1 reaches s2 through v alone."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModel,
    BartConfig,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    GPT2Config,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from mirror.cmlm.checkpoint import load_cmlm, load_weights, mean_projection, parts_of, save_cmlm
from mirror.cmlm.model import CMLMModel, CMLMModelConfig, Projection
from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder


SHAPE = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
MODELS = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SHAPE)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SHAPE, pad_token_id=1)),
    "distilbert": lambda: DistilBertForMaskedLM(
        DistilBertConfig(
            vocab_size=60,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=64,
            max_position_embeddings=40,
            initializer_range=0.3,
        )
    ),
    "electra": lambda: ElectraForMaskedLM(ElectraConfig(**SHAPE, embedding_size=32)),
    "modernbert": lambda: ModernBertForMaskedLM(
        ModernBertConfig(**SHAPE, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    ),
}


def make(kind: str = "bert", num_projections: int = 5, **options) -> CMLMModel:
    torch.manual_seed(0)
    mlm = MODELS[kind]()
    return CMLMModel(CMLMModelConfig(mlm.config.to_dict(), num_projections, **options), mlm).eval()


def texts(rows: int, length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (rows, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def everywhere(second: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.ones_like(second["input_ids"], dtype=torch.bool)


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_shapes_and_logits_of_s2_only(kind):
    model, first, second = make(kind), texts(3, 7), texts(3, 9, seed=1)
    assert model.sentence_vectors(first).shape == (3, 32)
    prefix = model.prefix(first)
    assert prefix.shape == (3, 5, 32)
    assert model.predict(prefix, second, everywhere(second)).shape == (27, 60)
    some = everywhere(second).clone()
    some[:, 2:] = False
    torch.testing.assert_close(
        model.predict(prefix, second, some),
        model.predict(prefix, second, everywhere(second)).view(3, 9, 60)[:, :2].reshape(6, 60),
    )


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_s1_moves_the_logits_of_s2_through_v_and_only_through_v(kind):
    model, first, other, second = make(kind), texts(2, 7), texts(2, 7, seed=5), texts(2, 9, seed=1)
    where = everywhere(second)
    one, two = (model.predict(model.prefix(text), second, where) for text in (first, other))
    assert (one - two).abs().max() > 1e-3
    vectors, zero = model.sentence_vectors, model.projection(torch.zeros(2, 32))
    model.sentence_vectors = lambda text: vectors(text) * 0
    silenced = [model.predict(model.prefix(text), second, where) for text in (first, other)]
    assert torch.equal(*silenced) and torch.equal(silenced[0], model.predict(zero, second, where))


def test_the_gradient_reaches_s1_through_v_and_only_through_v():
    model, first, second = make(), texts(2, 7), texts(2, 9, seed=1)
    labels = torch.where(torch.arange(9) == 3, second["input_ids"], -100)
    words = []
    model.get_input_embeddings().register_forward_hook(lambda module, ids, output: words.append(output))

    def gradient_of_words() -> tuple[torch.Tensor | None, torch.Tensor | None]:
        words.clear()
        loss, _ = model.conditional_loss(first, second, labels)
        return torch.autograd.grad(loss, words, allow_unused=True)  # of s1 and of s2

    of_first, of_second = gradient_of_words()
    assert of_first.abs().max() > 1e-4 and of_second.abs().max() > 1e-4
    vectors = model.sentence_vectors
    model.sentence_vectors = lambda text: vectors(text).detach()
    of_first, of_second = gradient_of_words()
    assert of_first is None and of_second.abs().max() > 1e-4


@torch.no_grad()
def test_where_the_prefix_stands_in_bert():
    """Positions run on from the prefix through s2, the token type is 0, and the mask of the prefix is 1."""
    model, second = make(), texts(2, 9, seed=1)
    second["attention_mask"][1, 6:] = 0
    prefix = model.prefix(texts(2, 7))
    words = model.get_input_embeddings()(second["input_ids"])
    expected = model.mlm(
        inputs_embeds=torch.cat([prefix, words], dim=1),
        attention_mask=torch.cat([torch.ones(2, 5, dtype=torch.long), second["attention_mask"]], dim=1),
        position_ids=torch.arange(14)[None],
        token_type_ids=torch.zeros(2, 14, dtype=torch.long),
    ).logits[:, 5:]
    torch.testing.assert_close(model.predict(prefix, second, everywhere(second)).view(2, 9, 60), expected)


@torch.no_grad()
def test_where_the_prefix_stands_in_roberta():
    """RoBERTa's positions begin after its padding index, here 1; so do the prefix's."""
    model, second = make("roberta"), texts(2, 9, seed=1)
    prefix = model.prefix(texts(2, 7))
    embeddings = torch.cat([prefix, model.get_input_embeddings()(second["input_ids"])], dim=1)
    expected = model.mlm(inputs_embeds=embeddings, position_ids=torch.arange(2, 16)[None]).logits[:, 5:]
    torch.testing.assert_close(model.predict(prefix, second, everywhere(second)).view(2, 9, 60), expected)


@torch.no_grad()
def test_padding_changes_nothing():
    model, first, second = make(), texts(2, 7), texts(2, 9, seed=1)
    labels = torch.where(torch.arange(9) % 3 == 0, second["input_ids"], -100)
    padded = [
        {name: torch.nn.functional.pad(value, (0, 4)) for name, value in part.items()} for part in (first, second)
    ]
    plain, _ = model.conditional_loss(first, second, labels)
    wide, _ = model.conditional_loss(*padded, torch.nn.functional.pad(labels, (0, 4), value=-100))
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


def test_the_library_saves_and_loads_it_whole(tmp_path):
    model = make(skip_connection=True)
    model.save_pretrained(tmp_path)
    again = CMLMModel.from_pretrained(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert again.mlm.get_output_embeddings().weight is again.get_input_embeddings().weight


def test_loading_keeps_the_weights_of_the_checkpoint(bert_folder):
    model, _ = load_cmlm(bert_folder)
    plain = BertForMaskedLM.from_pretrained(bert_folder)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.mlm.state_dict()[name], value), name
    fresh, _ = load_cmlm(bert_folder, from_scratch=True)
    assert not torch.equal(fresh.get_input_embeddings().weight, plain.get_input_embeddings().weight)


def test_an_encoder_and_its_other_parts_come_together_again(bert_folder, tmp_path):
    torch.manual_seed(1)
    model, tokenizer = load_cmlm(bert_folder, 5, skip_connection=True)
    save_cmlm(tmp_path, model, tokenizer, 24, "pooled")
    assert not any("cls" in name for name in Encoder.from_pretrained(str(tmp_path)).model.state_dict())
    torch.manual_seed(2)
    later, _ = load_cmlm(str(tmp_path), 5, skip_connection=True)
    other, _ = load_cmlm(bert_folder, 5, skip_connection=True)
    assert any(not torch.equal(value, parts_of(model)[name]) for name, value in parts_of(other).items())
    load_weights(other, tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(later.state_dict()[name], value), name
        assert torch.equal(other.state_dict()[name], value), name


@pytest.mark.parametrize("kind", ["base with a pooler", "base without", "from scratch"])
def test_no_reader_misses_a_pooler(bert_folder, tokenizer, tmp_path, kind, capfd):
    """transformers warns of random weights where a checkpoint has none for a part of the model."""
    folder = bert_folder
    if kind == "base with a pooler":
        base = AutoModel.from_pretrained(bert_folder)  # its pooler is drawn at random
        folder = str(tmp_path / "base")
        base.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    model, _ = load_cmlm(folder, 5, from_scratch=kind == "from scratch")
    assert not any("pooler" in name for name, _ in model.named_parameters())
    save_cmlm(tmp_path / "out", model, tokenizer, 24, "pooled")
    capfd.readouterr()
    read, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and "MISSING" not in "".join(capfd.readouterr())
    expected = base.pooler.dense.weight if kind == "base with a pooler" else torch.eye(32)
    assert torch.equal(read.pooler.dense.weight, expected)
    later, _ = load_cmlm(str(tmp_path / "out"), 5)
    save_cmlm(tmp_path / "later", later, tokenizer, 24, "pooled")
    assert torch.equal(AutoModel.from_pretrained(tmp_path / "later").pooler.dense.weight, expected)


def test_parts_of_another_shape_are_refused(bert_folder, tmp_path):
    model, tokenizer = load_cmlm(bert_folder, 5)
    save_cmlm(tmp_path, model, tokenizer, 24, "pooled")
    with pytest.raises(InputError, match=r"was trained with --num_projections 5; give the same"):
        load_cmlm(str(tmp_path), 4)


@torch.no_grad()
def test_the_mean_of_the_projections_is_three_dense_layers():
    vectors = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    projection = Projection(32, 7)
    features = {"sentence_embedding": vectors}
    for layer in mean_projection(projection):
        features = layer(features)
    torch.testing.assert_close(features["sentence_embedding"], projection(vectors).mean(1), rtol=1e-4, atol=1e-6)
    assert mean_projection(Projection(32, 1)) == []


def test_the_saved_encoder_of_proj_gives_the_mean_of_the_projections(bert_folder, tmp_path):
    model, tokenizer = load_cmlm(bert_folder, 5)
    save_cmlm(tmp_path, model.eval(), tokenizer, 24, "proj")
    batch = tokenizer(["a cat sees the dog"], return_tensors="pt")
    with torch.no_grad():
        expected = model.projection(model.sentence_vectors(batch)).mean(1)
    read = Encoder.from_pretrained(str(tmp_path)).encode(["a cat sees the dog"])
    torch.testing.assert_close(torch.from_numpy(read), expected, rtol=1e-4, atol=1e-5)


def test_word_embeddings_of_another_width_are_refused():
    mlm = ElectraForMaskedLM(ElectraConfig(**SHAPE, embedding_size=16))
    with pytest.raises(InputError, match=r"electra: word embeddings of width 16 and hidden states of width 32"):
        CMLMModel(CMLMModelConfig(mlm.config.to_dict()), mlm)


def test_a_model_that_is_no_masked_lm_is_refused(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"no config.json in this folder"):
        load_cmlm(str(tmp_path))
    tokenizer.save_pretrained(tmp_path)
    GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"\(gpt2\) is not a bidirectional encoder"):
        load_cmlm(str(tmp_path))
    BartConfig(vocab_size=len(tokenizer), d_model=32, encoder_layers=1, decoder_layers=1).save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=r"\(bart\) is not a bidirectional encoder; give a masked LM such as bert-base-uncased"
    ):
        load_cmlm(str(tmp_path))

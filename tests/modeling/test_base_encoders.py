"""Base models that are sentence-transformers checkpoints: their modules, length and prompts are used and saved again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Dropout, LayerNorm, Normalize, Pooling, Transformer
from transformers import AutoModel, AutoTokenizer

from mirror.common.errors import InputError
from mirror.evaluation.encoding import fingerprint
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import verify_encoder
from mirror.training.base_encoder import keep_modules
from mirror.training.config import MirrorConfig
from mirror.training.run_setup import preflight
from mirror.training.trainer import MirrorTrainer


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning"]
PROMPTS = {"query": "find the ", "passage": "the book "}


def make_base(folder: Path, bert_folder: str, default_prompt_name: str | None = None) -> str:
    """Save a sentence-transformers checkpoint with a dense layer, unit length, 40 tokens and prompts."""
    torch.manual_seed(1)
    transformer = Transformer(bert_folder, max_seq_length=40)
    modules = [transformer, Pooling(32, "mean"), Dense(32, 8, activation_function=torch.nn.Tanh()), Normalize()]
    SentenceTransformer(modules=modules, prompts=PROMPTS, default_prompt_name=default_prompt_name, device="cpu").save(
        str(folder)
    )
    return str(folder)


def make_trainer(base: str, out: Path, sentences, **flags) -> MirrorTrainer:
    defaults = {"per_device_train_batch_size": 40, "max_steps": 1, "bf16": False, "disable_tqdm": True}
    return MirrorTrainer(base, MirrorConfig(output_dir=str(out), **defaults | flags), sentences)


def is_saved_as_in_memory(trainer: MirrorTrainer, out: Path, texts: list[str] = TEXTS) -> None:
    trainer.save_model()
    assert min(verify_encoder(out, trainer.encoder(training=False), texts).values()) > 0.9999


def set_in(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def base(bert_folder, tmp_path) -> str:
    return make_base(tmp_path / "base", bert_folder)


@pytest.mark.parametrize("default", [None, "query"])
def test_embeddings_are_those_of_sentence_transformers_with_its_default_prompt(bert_folder, tmp_path, default):
    folder = make_base(tmp_path / "base", bert_folder, default)
    theirs = SentenceTransformer(folder, device="cpu")
    encoder = Encoder.from_pretrained(folder)
    assert encoder.prompt == (PROMPTS[default] if default else "")
    np.testing.assert_allclose(encoder.encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    named = Encoder.from_pretrained(folder, prompt_name="passage")
    np.testing.assert_allclose(named.encode(TEXTS), theirs.encode(TEXTS, prompt_name="passage"), atol=1e-5)
    plain = Encoder.from_pretrained(folder, prompt="")
    np.testing.assert_allclose(plain.encode(TEXTS), theirs.encode(TEXTS, prompt=""), atol=1e-5)
    assert np.abs(named.encode(TEXTS) - plain.encode(TEXTS)).max() > 1e-3
    assert len({fingerprint(item) for item in (named, plain)}) == 2


def test_the_truncation_of_the_base_is_kept(bert_folder, sentences, tmp_path):
    folder = make_base(tmp_path / "base", bert_folder)
    set_in(tmp_path / "base" / "config_sentence_transformers.json", truncate_dim=3)
    theirs, ours = SentenceTransformer(folder, device="cpu"), Encoder.from_pretrained(folder)
    assert ours.dimension == 3 and ours.encode(TEXTS).shape == (3, 3)
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    whole = Encoder(ours.model, ours.tokenizer, "mean", 40, [*ours.head])
    assert fingerprint(ours) != fingerprint(whole)
    trainer = make_trainer(folder, tmp_path / "out", sentences)
    trainer.train()
    is_saved_as_in_memory(trainer, tmp_path / "out")
    assert Encoder.from_pretrained(str(tmp_path / "out")).dimension == 3


def test_an_unknown_prompt_is_named(base):
    with pytest.raises(InputError, match=r"base has no prompt 'summary'; it has query, passage; or give one with"):
        Encoder.from_pretrained(base, prompt_name="summary")


@pytest.mark.parametrize(("packing", "default"), [("on", "query"), ("off", None)])
def test_training_goes_through_the_modules_and_saves_them(bert_folder, sentences, tmp_path, packing, default):
    folder = make_base(tmp_path / "base", bert_folder, default)
    flags = {"max_seq_length": 24, "learning_rate": 1e-3, "max_steps": 6, "packing": packing}
    trainer = make_trainer(folder, tmp_path / "out", sentences, **flags)
    assert trainer.args.pooling == "mean"
    assert [type(module).__name__ for module in trainer.base.head] == ["Dense", "Normalize"]
    before = trainer.encoder(training=False).encode(TEXTS)
    np.testing.assert_allclose(before, SentenceTransformer(folder, device="cpu").encode(TEXTS), atol=1e-5)
    trainer.train()
    is_saved_as_in_memory(trainer, tmp_path / "out")
    after = trainer.encoder(training=False)
    assert np.abs(after.encode(TEXTS) - before).max() > 1e-3
    np.testing.assert_allclose(np.linalg.norm(after.encode(TEXTS), axis=1), 1, atol=1e-5)
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module).__name__ for module in saved] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert saved.max_seq_length == 40 and saved.prompts["passage"] == PROMPTS["passage"]
    assert saved.default_prompt_name == default
    assert Encoder.from_pretrained(str(tmp_path / "out")).max_seq_length == 40
    dense = [SentenceTransformer(path, device="cpu")[2].linear.weight for path in (folder, str(tmp_path / "out"))]
    assert torch.equal(*dense)  # frozen


def test_the_prompt_is_before_both_views_and_has_no_noise(bert_folder, sentences, tmp_path, tokenizer):
    folder = make_base(tmp_path / "base", bert_folder, "query")
    trainer = make_trainer(folder, tmp_path / "out", sentences, span_mask_min_chars=5)
    find, the = tokenizer.convert_tokens_to_ids(["find", "the"])
    for row in (trainer.train_dataset[index] for index in range(20)):
        assert row["first_ids"][1:3] == row["second_ids"][1:3] == [find, the]


@pytest.mark.parametrize(
    ("flags", "words", "default", "stored"),
    [
        ({"prompt_name": "passage"}, ["the", "book"], "passage", PROMPTS),
        ({"prompt": "the small "}, ["the", "small"], "default", PROMPTS | {"default": "the small "}),
        ({"prompt": ""}, [], None, PROMPTS),
    ],
    ids=lambda value: str(value)[:20],
)
def test_another_prompt_is_trained_with_and_becomes_the_default(
    bert_folder, sentences, tmp_path, tokenizer, flags, words, default, stored
):
    folder = make_base(tmp_path / "base", bert_folder, "query")
    trainer = make_trainer(folder, tmp_path / "out", sentences, span_mask_min_chars=5, **flags)
    ids = tokenizer(" ".join(words) + " " + sentences[0], add_special_tokens=False)["input_ids"]
    row = trainer.train_dataset[trainer.corpus.rows["text"].index(sentences[0])]
    assert row["first_ids"][1 : len(ids) + 1] == ids
    is_saved_as_in_memory(trainer, tmp_path / "out")
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert saved.default_prompt_name == default
    assert {name: text for name, text in saved.prompts.items() if text} == stored


def test_a_base_that_pools_without_its_prompt_can_be_trained_without_one(bert_folder, sentences, tmp_path):
    folder = make_base(tmp_path / "base", bert_folder, "query")
    set_in(tmp_path / "base" / "1_Pooling" / "config.json", include_prompt=False)
    trainer = make_trainer(folder, tmp_path / "out", sentences, prompt="")
    assert trainer.base.skipped is None
    is_saved_as_in_memory(trainer, tmp_path / "out")


def test_another_pooling_leaves_the_modules_out(base, sentences, tmp_path, caplog):
    trainer = make_trainer(base, tmp_path / "out", sentences, pooling="cls")
    assert not len(trainer.base.head) and "so the modules after the pooling are dropped" in caplog.text


def test_a_base_that_pools_by_its_pooler_keeps_it(bert_folder, sentences, tmp_path):
    AutoModel.from_pretrained(bert_folder).save_pretrained(tmp_path / "base")  # with a pooler
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "base")
    make_trainer(str(tmp_path / "base"), tmp_path / "one", sentences, pooling="pooler").save_model()
    second = make_trainer(str(tmp_path / "one"), tmp_path / "two", sentences)
    second.train()
    assert second.args.pooling == "pooler"
    is_saved_as_in_memory(second, tmp_path / "two")


def with_a_subfolder(folder: Path) -> None:
    """Move the backbone into a subfolder, as in older checkpoints."""
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in [*folder.iterdir()]:
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(inner / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = inner.name
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("after", "length", "in_subfolder"),
    [
        ([Normalize()], 40, True),
        ([Normalize()], 12, False),
        ([], 64, False),
        ([LayerNorm(32), Dropout(0.5)], 40, False),
        ([Dense(32, 32, use_residual=True)], 40, False),
    ],
    ids=["subfolder", "shorter than the level", "longer than the level", "half precision", "residual"],
)
def test_every_kind_of_encoder_is_trained_through_and_saved_as_it_was(
    bert_folder, sentences, tmp_path, after, length, in_subfolder
):
    modules = [Transformer(bert_folder, max_seq_length=length), Pooling(32, "mean"), *after]
    base, half = SentenceTransformer(modules=modules, device="cpu"), LayerNorm in map(type, after)
    (base.half() if half else base).save(str(tmp_path / "base"))
    if in_subfolder:
        with_a_subfolder(tmp_path / "base")
    flags = {"max_steps": 2, "learning_rate": 1e-3, "max_seq_length": 24}
    trainer = make_trainer(str(tmp_path / "base"), tmp_path / "out", sentences, **flags)
    before = trainer.encoder(training=False).encode(TEXTS)
    np.testing.assert_allclose(before, Encoder.from_pretrained(str(tmp_path / "base")).encode(TEXTS), atol=1e-5)
    if not half:
        theirs = SentenceTransformer(str(tmp_path / "base"), device="cpu")
        np.testing.assert_allclose(before, theirs.encode(TEXTS), atol=1e-5)
    trainer.train()
    assert np.abs(trainer.encoder(training=False).encode(TEXTS) - before).max() > 1e-3
    is_saved_as_in_memory(trainer, tmp_path / "out")
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module) for module in saved] == list(map(type, modules))
    assert saved.max_seq_length == max(24, length)


@pytest.mark.parametrize(
    ("number", "kind"), [(0, "CLIPModel"), (0, "Router"), (1, "LSTM"), (2, "another_library.Fancy"), (3, "NotYet")]
)
def test_a_module_that_cannot_be_trained_through_is_named(base, tmp_path, number, kind):
    kind = kind if "." in kind else f"sentence_transformers.models.{kind}"
    modules = json.loads((tmp_path / "base" / "modules.json").read_text())
    modules[number]["type"] = kind
    (tmp_path / "base" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "base" / "config.json").unlink()  # such checkpoints have none
    config = MirrorConfig(output_dir=str(tmp_path / "out"))
    for load in (Encoder.from_pretrained, partial(preflight, config)):
        with pytest.raises(InputError, match=rf"base: its module {number + 1}, {kind}, can be neither used") as error:
            load(base)
        assert "\n" not in str(error.value)


def test_an_empty_prompt_is_a_prompt(bert_folder, sentences, tmp_path):
    folder = make_base(tmp_path / "base", bert_folder)
    prompts = {"query": "find ", "document": ""}
    set_in(tmp_path / "base" / "config_sentence_transformers.json", prompts=prompts, default_prompt_name="document")
    encoder = Encoder.from_pretrained(folder)
    assert encoder.prompt == "" and Encoder.from_pretrained(folder, prompt_name="query").prompt == "find "
    trainer = make_trainer(folder, tmp_path / "out", sentences)
    trainer.train()
    trainer.save_model()
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert saved.default_prompt_name == "document" and saved.prompts == {"query": "find ", "document": ""}


def test_a_base_that_lowercases_is_read_trained_and_saved_so(bert_folder, sentences, tmp_path):
    folder = make_base(tmp_path / "base", bert_folder)
    upper = [text.upper() for text in TEXTS]
    set_in(tmp_path / "base" / "tokenizer_config.json", do_lower_case=False)
    cased = Encoder.from_pretrained(folder).encode(upper)
    set_in(tmp_path / "base" / "sentence_bert_config.json", do_lower_case=True)
    ours, theirs = Encoder.from_pretrained(folder), SentenceTransformer(folder, device="cpu")
    np.testing.assert_allclose(ours.encode(upper), theirs.encode(upper), atol=1e-5)
    assert np.abs(ours.encode(upper) - cased).max() > 1e-3
    trainer = make_trainer(folder, tmp_path / "out", sentences)
    trainer.train()
    is_saved_as_in_memory(trainer, tmp_path / "out", upper)


def test_a_module_with_code_of_its_own_is_refused_before_training():
    class Own(torch.nn.Module):
        pass

    with pytest.raises(InputError, match="its module Own needs code that a trained checkpoint"):
        keep_modules({"head": [Own()], "pooling": "mean"}, "mean", "base")


@pytest.mark.parametrize("prompt", ["find the cat " * 40, "the " + "x" * 300 + " ", "/think about ", "**"])
def test_a_prompt_is_a_text_and_not_a_path(bert_folder, sentences, tmp_path, prompt, caplog):
    trainer = make_trainer(bert_folder, tmp_path / "out", sentences, prompt=prompt, max_seq_length=20, pooling="mean")
    trainer.train()
    trainer.finish()
    results = json.loads((tmp_path / "out" / "train_results.json").read_text())
    assert results["settings"]["prompt"] == prompt
    assert ("leaves none of a text" in caplog.text) == (prompt.count("cat") == 40)
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert saved.prompts == dict.fromkeys(("default", "query", "document"), prompt)
    expected = saved.encode(TEXTS)
    for encode in (saved.encode_query, Encoder.from_pretrained(str(tmp_path / "out")).encode_query):
        np.testing.assert_allclose(encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["dot", "manhattan"])
def test_the_similarity_of_a_base_is_kept_and_said(bert_folder, sentences, tmp_path, name, caplog):
    folder = make_base(tmp_path / "base", bert_folder)
    set_in(tmp_path / "base" / "config_sentence_transformers.json", similarity_fn_name=name)
    trainer = make_trainer(folder, tmp_path / "out", sentences)
    assert f"{folder} names the similarity '{name}'" in caplog.text
    trainer.save_model()
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").similarity_fn_name == name


def test_a_saved_checkpoint_leaves_prompts_out_of_the_pooling_where_its_base_does(bert_folder, sentences, tmp_path):
    folder = make_base(tmp_path / "base", bert_folder)
    set_in(tmp_path / "base" / "1_Pooling" / "config.json", include_prompt=False)
    trainer = make_trainer(folder, tmp_path / "out", sentences)
    trainer.train()
    trainer.save_model()
    saved, ours = (
        SentenceTransformer(str(tmp_path / "out"), device="cpu"),
        Encoder.from_pretrained(str(tmp_path / "out")),
    )
    assert not saved[1].include_prompt
    for of_trainer in (ours, trainer.encoder(training=False)):
        np.testing.assert_allclose(of_trainer.encode_query(TEXTS), saved.encode_query(TEXTS), atol=1e-5)

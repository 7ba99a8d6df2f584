"""Principal component removal in a checkpoint: every reader computes the result of the formula."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from mirror.common.errors import InputError
from mirror.evaluation.components import fit_components, fit_whitening, remove_components, whiten
from mirror.modeling.backbone import load_backbone
from mirror.modeling.checkpoint import save_encoder
from mirror.modeling.dense_layers import append_layers
from mirror.modeling.encoder import Encoder
from mirror.tools import component_removal
from mirror.tools.card_scores import write_scores
from mirror.tools.component_removal import removal_layer, remove_components_in_checkpoint, whiten_checkpoint
from mirror.tools.model_card import name_on_unedited_card, write_card
from mirror.training.run_record import RunRecord
from tests.tools.test_finish_run import train


@pytest.fixture
def checkpoint(bert_folder, tmp_path) -> str:
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(tmp_path / "plain", model, tokenizer, "mean", 24)
    return str(tmp_path / "plain")


def test_the_layer_is_the_formula():
    components = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 2)))[0].T.astype(np.float32)
    projector = np.eye(6) - components.T @ components
    layer = removal_layer(components)
    assert layer.linear.bias is None
    np.testing.assert_allclose(layer.linear.weight.detach().numpy(), projector, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_every_reader_removes_the_components(checkpoint, sentences, tmp_path, count):
    before = Encoder.from_pretrained(checkpoint).encode(sentences)
    components = remove_components_in_checkpoint(checkpoint, str(tmp_path / "out"), sentences[:100], count)
    np.testing.assert_allclose(components, fit_components(before[:100], count), atol=1e-5)
    expected = remove_components(before, components)
    assert np.abs(expected - before).max() > 0.1  # there is something to remove
    ours = Encoder.from_pretrained(str(tmp_path / "out")).encode(sentences)
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(sentences)
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    np.testing.assert_allclose(theirs, expected, atol=1e-4)
    assert np.abs(ours @ components.T).max() < 1e-3
    unchanged = Encoder.from_pretrained(checkpoint).encode(sentences)
    assert np.abs(unchanged - before).max() < 1e-6


@pytest.mark.parametrize("count", [None, 3])
def test_every_reader_whitens(checkpoint, sentences, tmp_path, count):
    before = Encoder.from_pretrained(checkpoint).encode(sentences)
    whiten_checkpoint(checkpoint, str(tmp_path / "out"), sentences, count)
    ours = Encoder.from_pretrained(str(tmp_path / "out")).encode(sentences)
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(sentences)
    expected = whiten(before, *fit_whitening(before, count))
    np.testing.assert_allclose(ours, expected, atol=1e-3)
    np.testing.assert_allclose(theirs, expected, atol=1e-3)
    variances = np.linalg.eigvalsh(np.cov(ours.T))[::-1]
    alike = variances[: count or 31]  # a layer norm leaves 31 directions of 32
    assert alike.max() / alike.min() < 1.05
    assert np.ptp(np.linalg.eigvalsh(np.cov(before.T))[::-1][: count or 31]) > 0.1  # they were not


def test_removal_can_be_repeated(checkpoint, sentences, tmp_path):
    """Removing one component twice is equal to removing two at once."""
    remove_components_in_checkpoint(checkpoint, str(tmp_path / "one"), sentences, 1)
    remove_components_in_checkpoint(str(tmp_path / "one"), str(tmp_path / "two"), sentences, 1)
    remove_components_in_checkpoint(checkpoint, str(tmp_path / "both"), sentences, 2)
    twice, both = (Encoder.from_pretrained(str(tmp_path / name)).encode(sentences[:9]) for name in ("two", "both"))
    np.testing.assert_allclose(twice, both, atol=1e-3)


def test_the_command_line(checkpoint, sentences, tmp_path, monkeypatch):
    (tmp_path / "sample.txt").write_text("\n".join(sentences))
    flags = ["--model_name_or_path", checkpoint, "--text_file", str(tmp_path / "sample.txt")]
    monkeypatch.setattr(sys, "argv", ["mirror.tools.component_removal", *flags, "--output_dir", str(tmp_path / "out")])
    component_removal.main()
    assert Encoder.from_pretrained(str(tmp_path / "out")).encode(["a cat"]).shape == (1, 32)
    monkeypatch.setattr(
        sys, "argv", ["component_removal", *flags, "--output_dir", str(tmp_path / "soft"), "--whiten", "2"]
    )
    component_removal.main()
    assert Encoder.from_pretrained(str(tmp_path / "soft")).encode(["a cat"]).shape == (1, 32)
    monkeypatch.setattr(sys, "argv", ["component_removal", *flags, "--output_dir", str(tmp_path / "out")])
    with pytest.raises(InputError, match=r"--output_dir .*out exists; give a new folder"):
        component_removal.main()


def test_input_errors(bert_folder, sentences, tmp_path):
    with pytest.raises(InputError, match="no modules.json; give a checkpoint of this project"):
        remove_components_in_checkpoint(bert_folder, str(tmp_path / "out"), sentences, 1)
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(tmp_path / "padded", model, tokenizer, "mean_padded", 24)
    with pytest.raises(InputError, match="pooling 'mean_padded' cannot be followed by a layer"):
        append_layers(tmp_path / "padded", [removal_layer(np.eye(32, dtype=np.float32)[:1])])
    save_encoder(tmp_path / "plain", model, tokenizer, "mean", 24)
    with pytest.raises(InputError, match="cannot whiten 32 components: the 5 vectors vary in 4 directions"):
        whiten_checkpoint(str(tmp_path / "plain"), str(tmp_path / "out"), sentences[:5])
    with pytest.raises(InputError, match="cannot fit 3 principal components to 2 vectors"):
        remove_components_in_checkpoint(str(tmp_path / "plain"), str(tmp_path / "out"), sentences[:2], 3)
    assert not (tmp_path / "out").exists()


def test_a_slash_and_the_rest_of_a_killed_copy_do_no_harm(checkpoint, sentences, tmp_path):
    (tmp_path / "_out.tmp").mkdir()
    (tmp_path / "_out.tmp" / "mirror_config.json").write_text('{"pooling": "mean_padded"}')
    remove_components_in_checkpoint(checkpoint, f"{tmp_path}/out/", sentences[:100], 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "plain"]
    assert not (tmp_path / "out" / "mirror_config.json").exists()


def test_a_reader_that_differs_leaves_nothing(checkpoint, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr("mirror.modeling.checkpoint.MINIMUM_COSINE", 2)
    with pytest.raises(InputError, match="reads differently"):
        whiten_checkpoint(checkpoint, str(tmp_path / "out"), sentences)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_the_copy_has_a_card_of_its_own(bert_folder, sentences, tmp_path, monkeypatch):
    out, copy = tmp_path / "out", tmp_path / "soft"
    train(monkeypatch, bert_folder, sentences, out, "--hub_model_id", "me/mine")
    write_scores(out, {"after": {"stsb": {"score": 0.5, "metric": "spearman_cosine"}}, "how": {"after": "so"}})
    write_card(out)
    assert "0.5" in (out / "README.md").read_text()
    whiten_checkpoint(str(out), str(copy), sentences, 3)
    card = (copy / "README.md").read_text()
    assert "# soft" in card and "softly whitened 3 component(s)" in card and "stsb" not in card
    assert (
        "import AutoModel" in (out / "README.md").read_text() and "import AutoModel" not in card
    )  # which lacks the layer
    assert not (copy / "scores.json").exists() and name_on_unedited_card(copy) == "soft"
    assert "hub_model_id" not in RunRecord.load(copy).settings  # a push would replace the other encoder
    remove_components_in_checkpoint(str(copy), str(tmp_path / "both"), sentences, 1)
    assert "softly whitened 3 component(s); removed 1 component(s)" in (tmp_path / "both" / "README.md").read_text()

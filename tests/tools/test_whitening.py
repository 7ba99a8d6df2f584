"""Principal component removal in a checkpoint: every library computes the result of the formula."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from mirror.common.errors import InputError
from mirror.evaluation.encoding import fit_components, fit_whitening, remove_components, whiten
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import save_encoder
from mirror.tools import whitening
from mirror.tools.whitening import transform_checkpoint
from mirror.training.card import name_on_unedited_card, write_card, write_scores
from mirror.training.record import RunRecord
from tests.tools.test_finish import train


@pytest.fixture
def checkpoint(bert_folder, tmp_path) -> str:
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(tmp_path / "plain", model, tokenizer, "mean", 24)
    return str(tmp_path / "plain")


@pytest.mark.parametrize("count", [1, 3])
def test_every_library_removes_the_components(checkpoint, sentences, tmp_path, count):
    before = Encoder.from_pretrained(checkpoint).encode(sentences)
    transform_checkpoint(checkpoint, str(tmp_path / "out"), sentences[:100], count)
    components = fit_components(before[:100], count)
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
def test_every_library_whitens(checkpoint, sentences, tmp_path, count):
    before = Encoder.from_pretrained(checkpoint).encode(sentences)
    transform_checkpoint(checkpoint, str(tmp_path / "out"), sentences, count, whiten=True)
    ours = Encoder.from_pretrained(str(tmp_path / "out")).encode(sentences)
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(sentences)
    expected = whiten(before, *fit_whitening(before, count))
    np.testing.assert_allclose(ours, expected, atol=1e-3)
    np.testing.assert_allclose(theirs, expected, atol=1e-3)
    alike = np.linalg.eigvalsh(np.cov(ours.T))[::-1][: count or 31]  # a layer norm leaves 31 directions of 32
    assert alike.max() / alike.min() < 1.05


def test_the_command_line(checkpoint, sentences, tmp_path, monkeypatch):
    def run(output_dir: str, *more: str) -> None:
        flags = ["--model_name_or_path", checkpoint, "--text_file", str(tmp_path / "sample.txt")]
        monkeypatch.setattr(sys, "argv", ["mirror.tools.whitening", *flags, "--output_dir", output_dir, *more])
        whitening.main()

    (tmp_path / "sample.txt").write_text("\n".join(sentences))
    for name, more in (("out", ()), ("soft", ("--whiten", "2"))):
        run(str(tmp_path / name), *more)
        assert Encoder.from_pretrained(str(tmp_path / name)).encode(["a cat"]).shape == (1, 32)
    with pytest.raises(InputError, match=r"--output_dir .*out exists; give a new folder"):
        run(str(tmp_path / "out"))


def test_input_errors(checkpoint, bert_folder, sentences, tmp_path):
    with pytest.raises(InputError, match="no modules.json; give a checkpoint of this project"):
        transform_checkpoint(bert_folder, str(tmp_path / "out"), sentences, 1)
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(tmp_path / "padded", model, tokenizer, "mean_padded", 24)
    with pytest.raises(InputError, match="pooling 'mean_padded' cannot be followed by a layer"):
        transform_checkpoint(str(tmp_path / "padded"), str(tmp_path / "out"), sentences, 1)
    with pytest.raises(InputError, match="cannot whiten 32 components: the 5 vectors vary in 4 directions"):
        transform_checkpoint(checkpoint, str(tmp_path / "out"), sentences[:5], None, whiten=True)
    with pytest.raises(InputError, match="cannot fit 3 principal components to 2 vectors"):
        transform_checkpoint(checkpoint, str(tmp_path / "out"), sentences[:2], 3)
    assert not (tmp_path / "out").exists()


def test_a_slash_and_the_rest_of_a_killed_copy_do_no_harm(checkpoint, sentences, tmp_path):
    (tmp_path / "_out.tmp").mkdir()
    (tmp_path / "_out.tmp" / "mirror_config.json").write_text('{"pooling": "mean_padded"}')
    transform_checkpoint(checkpoint, f"{tmp_path}/out/", sentences[:100], 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "plain"]
    assert not (tmp_path / "out" / "mirror_config.json").exists()


def test_a_library_that_differs_leaves_nothing(checkpoint, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr("mirror.modeling.save_checkpoint.MINIMUM_COSINE", 2)
    with pytest.raises(InputError, match="reads differently"):
        transform_checkpoint(checkpoint, str(tmp_path / "out"), sentences, None, whiten=True)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_the_copy_has_a_card_of_its_own(bert_folder, sentences, tmp_path, monkeypatch):
    out, copy = tmp_path / "out", tmp_path / "soft"
    train(monkeypatch, bert_folder, sentences, out, "--hub_model_id", "me/mine")
    write_scores(out, {"after": {"stsb": {"score": 0.5, "metric": "spearman_cosine"}}, "how": {"after": "so"}})
    write_card(out)
    assert "0.5" in (out / "README.md").read_text()
    transform_checkpoint(str(out), str(copy), sentences, 3, whiten=True)
    card = (copy / "README.md").read_text()
    assert "# soft" in card and "softly whitened 3 component(s)" in card and "stsb" not in card
    assert "import AutoModel" in (out / "README.md").read_text() and "import AutoModel" not in card  # lacks the layer
    assert not (copy / "scores.json").exists() and name_on_unedited_card(copy) == "soft"
    assert "hub_model_id" not in RunRecord.load(copy).settings  # a push would replace the other encoder
    transform_checkpoint(str(copy), str(tmp_path / "both"), sentences, 1)
    assert "softly whitened 3 component(s); removed 1 component(s)" in (tmp_path / "both" / "README.md").read_text()

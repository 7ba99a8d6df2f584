"""Tests data_scripts/wordpiece_vocabulary.py: smoothing as printed, the exact size, and a folder that run_cmlm.py trains."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from data_scripts import wordpiece_vocabulary
from mirror.cmlm.model import load_cmlm
from mirror.common.errors import InputError


@pytest.fixture
def texts(sentences, tmp_path) -> list[str]:
    """Forty times as much of one language as of the other."""
    (tmp_path / "en.txt").write_text("\n".join(sentences * 4))
    (tmp_path / "fi.txt").write_text("kissa koira\nKissa kala\nkoira kala kissa Kissa\n" * 3)
    return [str(tmp_path / "en.txt"), str(tmp_path / "fi.txt")]


def run(monkeypatch, *argv) -> None:
    monkeypatch.setattr(sys, "argv", ["wordpiece_vocabulary.py", *map(str, argv)])
    wordpiece_vocabulary.main()


@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0])
def test_the_share_of_a_language_is_its_share_to_the_power(exponent):
    counts = {"en": Counter(a=900, b=8100), "fi": Counter(c=700, a=300)}
    added = wordpiece_vocabulary.smoothed(counts, exponent)
    ratio = added["c"] / 0.7 / (added["b"] / 0.9)
    assert ratio == pytest.approx((1 / 9) ** exponent, rel=0.01)
    assert added.total() == pytest.approx(10_000, rel=0.01)


def test_a_folder_that_trains_from_scratch(texts, tmp_path, monkeypatch):
    flags = ["--text_file", *texts, texts[0], "--vocab_size", 120, "--output_dir", tmp_path / "out"]
    run(monkeypatch, *flags)
    words = json.loads((tmp_path / "out" / "vocabulary.json").read_text())["words"]
    assert words["en.txt"] == wordpiece_vocabulary.count_words(Path(texts[0])).total()  # named twice, counted once
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (12, 768, 120)
    small = config | {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
    (tmp_path / "out" / "config.json").write_text(json.dumps(small))
    model, tokenizer = load_cmlm(str(tmp_path / "out"), num_projections=2, from_scratch=True)
    assert model.get_input_embeddings().weight.shape == (len(tokenizer), 32) == (120, 32)
    assert tokenizer.tokenize("Kissa kissa")[0].startswith("K")  # cased
    with pytest.raises(InputError, match="is not empty; choose another folder"):
        run(monkeypatch, *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocab_size", 100_000], r"the texts give only [\d,]+ pieces, --vocab_size is 100,000; give more text"),
        (["--vocab_size", 20], r"--vocab_size 20: the texts have \d+ characters, each with two pieces"),
        (["--smoothing", 3], r"--smoothing is an exponent in \[0, 1\], got 3.0; the paper uses 0.3"),
        (["--text_file", "en.txt", "other/en.txt"], "en.txt and other/en.txt have the same name; name each"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(texts, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "en.txt").write_text("kala kala\n")
    with pytest.raises(InputError, match=message):
        run(monkeypatch, "--text_file", *texts, *flags, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out").exists()

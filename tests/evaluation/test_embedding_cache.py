from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers.models import Normalize

from mirror.evaluation.encoding import EmbeddingCache, fingerprint
from mirror.modeling.encoder import Encoder


class CountingEncode:
    """Returns vectors that depend on the text alone, and records the texts."""

    def __init__(self):
        self.asked: list[str] = []

    def __call__(self, texts) -> np.ndarray:
        self.asked.extend(texts)
        return np.array([[len(text), ord(text[0])] for text in texts], dtype=np.float32).reshape(-1, 2)


@pytest.fixture
def counting() -> CountingEncode:
    return CountingEncode()


def test_a_text_is_encoded_once_and_order_is_kept(tmp_path, counting):
    cache = EmbeddingCache(tmp_path, counting)
    texts = ["bb", "a", "bb", "ccc"]
    np.testing.assert_array_equal(cache(texts), CountingEncode()(texts))
    np.testing.assert_array_equal(cache(["ccc", "d"]), CountingEncode()(["ccc", "d"]))
    assert sorted(counting.asked) == ["a", "bb", "ccc", "d"]


def test_a_later_run_encodes_nothing(tmp_path, counting):
    texts = [f"text {n}" for n in range(50)]
    first = EmbeddingCache(tmp_path, counting, shard_texts=16)(texts)
    assert len(list(tmp_path.glob("*.npz"))) == 4
    later = CountingEncode()
    np.testing.assert_array_equal(EmbeddingCache(tmp_path, later)(texts[::-1]), first[::-1])
    assert later.asked == []


def test_a_crash_loses_only_the_shard_in_work(tmp_path, counting):
    texts = [f"{n:03d}" for n in range(40)]

    def crashing(some):
        if "025" in some:
            raise RuntimeError("power cut")
        return counting(some)

    with pytest.raises(RuntimeError, match="power cut"):
        EmbeddingCache(tmp_path, crashing, shard_texts=10)(texts)
    assert not list(tmp_path.glob("*.tmp"))
    counting.asked.clear()
    EmbeddingCache(tmp_path, counting, shard_texts=10)(texts)
    assert counting.asked == texts[20:]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_shard_is_noticed_and_made_again(tmp_path, counting, caplog, damage):
    texts = [f"text {n}" for n in range(30)]
    expected = EmbeddingCache(tmp_path, counting)(texts)
    (shard,) = tmp_path.glob("*.npz")
    content = bytearray(shard.read_bytes())
    place = content.index(expected.tobytes()[:32])
    content[place] ^= 0xFF
    shard.write_bytes({"flip": content, "cut": content[: place + 8], "empty": b""}[damage])
    again = CountingEncode()
    np.testing.assert_array_equal(EmbeddingCache(tmp_path, again)(texts), expected)
    assert len(again.asked) == 30
    assert "is damaged" in caplog.text
    assert len(list(tmp_path.glob("*.npz"))) == 1


def test_the_fingerprint_changes_with_all_that_changes_a_vector(bert_folder):
    def load(**options) -> Encoder:
        return Encoder.from_pretrained(bert_folder, **({"pooling": "mean"} | options))

    base = fingerprint(load())
    assert fingerprint(load()) == base
    assert fingerprint(load(pooling="cls")) != base
    assert fingerprint(load(max_seq_length=16)) != base
    assert fingerprint(load(dtype="bfloat16")) != base
    changed = load()
    with torch.no_grad():
        changed.model.embeddings.word_embeddings.weight[7, 3] += 1
    assert fingerprint(changed) != base
    assert fingerprint(Encoder(changed.model, changed.tokenizer, "mean", head=[Normalize()])) != fingerprint(changed)
    lengthened = load()
    lengthened.tokenizer.add_tokens(["newword"])
    assert fingerprint(lengthened) != base


def test_a_full_disk_costs_the_cache_and_not_the_scores(tmp_path, counting, caplog, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    cache = EmbeddingCache(tmp_path, counting)
    np.testing.assert_array_equal(cache(["a", "bb"]), counting(["a", "bb"]))
    assert "No space left on device" in caplog.text and not list(tmp_path.iterdir())


def test_a_tokenizer_in_python_has_a_fingerprint_with_its_merges(bert_folder, tmp_path):
    from transformers import PhobertTokenizer

    def encoder_with(merges: str) -> Encoder:
        (tmp_path / "vocab.txt").write_text("a 1\nb 1\nc 1\nab</w> 1\nbc</w> 1\n")
        (tmp_path / "bpe.codes").write_text(merges)
        tokenizer = PhobertTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / "bpe.codes"))
        assert not tokenizer.is_fast
        return Encoder(Encoder.from_pretrained(bert_folder, "mean").model, tokenizer, "mean")

    first, same, other = (
        fingerprint(encoder_with(merges)) for merges in ("a b</w> 5\n", "a b</w> 5\n", "b c</w> 5\n")
    )
    assert first == same != other


def test_a_shard_that_cannot_be_read_now_is_kept(tmp_path, counting, monkeypatch, caplog):
    texts = ["a", "b"]
    expected = EmbeddingCache(tmp_path, counting)(texts)
    (shard,) = tmp_path.glob("*.npz")
    before = shard.read_bytes()

    def load(path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("mirror.evaluation.encoding.np.load", load)
        np.testing.assert_array_equal(EmbeddingCache(tmp_path, counting)(texts), expected)
    assert "cannot be read" in caplog.text and shard.read_bytes() == before

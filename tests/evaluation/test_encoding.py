from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation.encoding import EncodeSettings, describe, make_encode, truncated
from mirror.modeling.encoder import Encoder
from tests.two_at_once import run_two_processes


@pytest.fixture(scope="module")
def encoder(bert_folder) -> Encoder:
    return Encoder.from_pretrained(bert_folder, "mean")


def test_default_settings_do_not_change_the_vectors(encoder, sentences):
    np.testing.assert_array_equal(make_encode(encoder, EncodeSettings())(sentences[:9]), encoder.encode(sentences[:9]))


def test_the_cache_stores_untransformed_vectors(encoder, sentences, tmp_path, monkeypatch):
    full = make_encode(encoder, EncodeSettings(cache_dir=str(tmp_path)))(sentences[:9])
    monkeypatch.setattr(encoder, "forward", None)  # from here on, encoding raises an error
    short = make_encode(encoder, EncodeSettings(cache_dir=str(tmp_path), truncate_dim=5))(sentences[:9])
    np.testing.assert_array_equal(short, full[:, :5])


def test_truncating_to_more_dimensions_is_an_error(encoder):
    with pytest.raises(InputError, match=r"--truncate_dim 33: the vectors have 32 dimensions"):
        make_encode(encoder, EncodeSettings(truncate_dim=33))


def test_truncated_vectors_are_contiguous(encoder):
    vectors = truncated(encoder.encode, 3)(["the cat", "a dog"])
    assert vectors.shape == (2, 3)
    assert vectors.flags.c_contiguous


def test_components_of_a_file_are_removed_from_every_text(encoder, sentences, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences[:40]), encoding="utf-8")
    before = encoder.encode(sentences[:40])
    after = make_encode(encoder, EncodeSettings(remove_components=1, fit_on=str(texts)))(sentences[:40])
    first = np.linalg.svd(before, full_matrices=False)[2][0]
    assert np.abs(before @ first).min() > 0.01
    np.testing.assert_allclose(after @ first, 0, atol=1e-4)
    np.testing.assert_allclose(after, before - np.outer(before @ first, first), atol=1e-4)


def test_components_of_each_call_need_no_file(encoder, sentences):
    encode = make_encode(encoder, EncodeSettings(remove_components=1))
    assert not np.allclose(encode(sentences[:20])[0], encode([sentences[0], *sentences[30:50]])[0], atol=1e-3)


def test_a_missing_file_of_texts_is_reported(encoder):
    with pytest.raises(InputError, match="nowhere.txt"):
        make_encode(encoder, EncodeSettings(remove_components=1, fit_on="nowhere.txt"))


def test_the_record_contains_the_settings(encoder):
    record = describe("some/model", encoder, "float32", EncodeSettings(truncate_dim=8, remove_components=2))
    assert record["model_name_or_path"] == "some/model"
    assert (record["pooling"], record["max_seq_length"], record["dtype"]) == ("mean", 64, "float32")
    assert (record["truncate_dim"], record["remove_components"], record["fit_on"]) == (8, 2, "per_language")
    assert {"python", "torch", "transformers"} <= record["versions"].keys()


def test_two_processes_share_the_encoding_and_both_get_all_vectors(bert_folder, encoder, sentences, tmp_path):
    texts = sentences[:58] + sentences[:10]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    run_two_processes("-m", "tests.evaluation.two_processes", bert_folder, str(tmp_path))
    expected = encoder.encode(texts)
    ranks = [np.load(tmp_path / f"rank{rank}.npz") for rank in range(2)]
    assert sorted(int(rank["encoded"]) for rank in ranks) == [29, 30]  # 58 distinct texts, then a single one
    for rank in ranks:
        np.testing.assert_allclose(rank["vectors"], expected, atol=1e-5)
        np.testing.assert_allclose(rank["single"], expected[:1], atol=1e-5)

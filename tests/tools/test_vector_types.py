"""Stored types by hand, as sentence-transformers has them, and their recall against a plain double loop."""

from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.tools.vector_types import encode_vectors, quantise, recall


def random_vectors(count: int, dimensions: int = 40) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, dimensions)).astype(np.float32)


def test_quantise_by_hand():
    vectors, scale = quantise(np.array([[1.27, -0.636, 0], [0, 0, 0]], dtype=np.float32))
    assert vectors.tolist() == [[127, -64, 0], [0, 0, 0]]
    assert scale == pytest.approx([0.01, 0])


def test_binary_by_hand():
    stored, scale = encode_vectors(np.array([[1, -1, 0, 2, 3, -4, 5, 6, 7]], dtype=np.float32), "binary")
    assert scale is None and stored.dtype == np.uint8
    assert stored.tolist() == [[0b10011011, 0b10000000]]


def test_binary_is_what_sentence_transformers_calls_ubinary():
    quantization = pytest.importorskip("sentence_transformers.quantization")
    vectors = random_vectors(20)
    expected = quantization.quantize_embeddings(vectors, precision="ubinary")
    np.testing.assert_array_equal(encode_vectors(vectors, "binary")[0], expected)


def test_a_value_that_float16_cannot_hold_is_refused():
    with pytest.raises(InputError, match="beyond 65504, the float16 maximum"):
        encode_vectors(np.array([[1e6]], dtype=np.float32), "float16")


@pytest.mark.parametrize("vector_type", ["float32", "float16", "int8", "binary"])
def test_recall_is_that_of_a_plain_double_loop(vector_type):
    vectors = random_vectors(300)
    stored = encode_vectors(vectors, vector_type)[0]

    def nearest(rows: np.ndarray, query: int, hamming: bool) -> set[int]:
        if hamming:
            distances = [np.unpackbits(rows[query] ^ row).sum() for row in rows[30:]]
        else:
            rows = rows.astype(np.float64)
            distances = [-rows[query] @ row / np.linalg.norm(row) for row in rows[30:]]
        return {*np.argsort(distances, kind="stable")[:10].tolist()}

    kept = [
        len(nearest(vectors, query, False) & nearest(stored, query, vector_type == "binary")) for query in range(30)
    ]
    share, entries = recall(vectors, vector_type)
    assert share == pytest.approx(np.mean(kept) / 10) and entries == 270
    assert {"float32": share == 1, "float16": share > 0.99, "int8": share > 0.95}.get(vector_type, 0.3 < share < 0.9)


def test_equal_vectors_are_counted_once_and_a_few_prove_nothing():
    share, entries = recall(np.repeat(random_vectors(20), 100, axis=0), "binary")
    assert entries == 18 and 0 < share <= 1
    assert np.isnan(recall(random_vectors(9), "binary")[0])

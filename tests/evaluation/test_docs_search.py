from __future__ import annotations

import hashlib

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.data.docstring_corpus import Docstring
from mirror.evaluation import docs_search
from mirror.evaluation.catalogue import all_tasks, listing
from mirror.evaluation.run import make_plan


def synthetic_pairs(count: int) -> tuple[tuple[str, str], ...]:
    return tuple((f"name {n}", f"Summary of number {n}.") for n in range(count))


DIRECTIONS = np.random.default_rng(0).standard_normal((3000, 64)).astype(np.float32)


def almost_right(texts) -> np.ndarray:
    """Encode a name and its summary in the same direction, except names 0 and 1, which are swapped; (N, 64)."""
    numbers = np.array([int(text.strip(".").split()[-1]) for text in texts])
    vectors = DIRECTIONS[numbers].copy()
    for row, text in enumerate(texts):
        if text.startswith("name") and numbers[row] < 2:
            vectors[row] = 0.9 * DIRECTIONS[numbers[row]] + DIRECTIONS[1 - numbers[row]]
    return vectors


def test_ranks_become_accuracy_and_mrr():
    pairs = synthetic_pairs(3000)
    fields = docs_search.score_search(almost_right, pairs)
    assert fields["num_examples"] == 3000
    # All names retrieve their own summary except the two swapped ones, for which it is second.
    assert fields["main_score"] == fields["accuracy@1"] == pytest.approx(2998 / 3000)
    assert fields["accuracy@5"] == 1
    assert fields["mrr"] == pytest.approx((2998 + 2 * 0.5) / 3000)
    assert fields["data_sha256"] != docs_search.score_search(almost_right, pairs[::-1])["data_sha256"]
    assert len(fields["data_sha256"]) == len(hashlib.sha256().hexdigest())


def test_the_lexical_baseline_is_reported():
    fields = docs_search.score_search(almost_right, synthetic_pairs(3000))
    assert set(fields["tfidf"]) == {"accuracy@1", "accuracy@5", "mrr"}
    # TF-IDF tokenises numbers of two or more digits as words and ignores the ten single digits.
    assert fields["tfidf"]["accuracy@1"] == pytest.approx(2991 / 3000)


def test_lexical_ranks_by_hand():
    candidates = ["Read a file.", "Write a file.", "Close the door."]
    np.testing.assert_array_equal(
        docs_search.lexical_ranks(["read file", "close door", "unknown"], candidates, np.array([0, 2, 1])), [1, 1, 2]
    )


def test_too_few_pairs_are_refused_before_anything_is_encoded(monkeypatch, tmp_path):
    monkeypatch.setattr(docs_search, "pairs_of", lambda part: synthetic_pairs(2999))
    with pytest.raises(InputError, match=r"found 2,999 documented names on this machine and needs 3,000"):
        make_plan(["docs_search"], tmp_path)
    assert make_plan(["docs_search"], tmp_path, skip_missing=True).missing == ["docs_search"]
    monkeypatch.setattr(docs_search, "pairs_of", lambda part: synthetic_pairs(3000))
    assert make_plan(["docs_search"], tmp_path, skip_missing=True).missing == []


def test_the_listing_does_not_collect_docstrings(monkeypatch, tmp_path):
    """That takes seconds."""
    monkeypatch.setattr(docs_search, "pairs_of", None)
    assert "    x docs_search\n" in listing(all_tasks(tmp_path), tmp_path)


def test_each_task_searches_its_own_part(monkeypatch):
    entries = [Docstring(f"name {n}", f"Summary {n}.", ()) for n in range(200)]
    monkeypatch.setattr(docs_search.docstring_corpus, "collect", lambda: entries)
    docs_search.docstrings_here.cache_clear()
    docs_search.pairs_of.cache_clear()
    parts = {part: [name for name, _ in docs_search.pairs_of(part)] for part in ("test", "dev")}
    docs_search.docstrings_here.cache_clear()
    docs_search.pairs_of.cache_clear()
    assert parts == {part: [entry.name for entry in entries if entry.part == part] for part in ("test", "dev")}
    assert 30 < len(parts["test"]) < 70 and 10 < len(parts["dev"]) < 45

from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.data.docstrings import Docstring
from mirror.evaluation import retrieval
from mirror.evaluation.run import all_tasks, listing, make_plan
from tests.evaluation.folder import task_named, write_tsv


def encode(texts):
    """Encode "s n" at n degrees from the x axis, "e n" at 10 n degrees: "s 0" retrieves "e 0", "s 9" "e 1"."""
    angles = np.radians([int(text[2:]) * (1 if text[0] == "s" else 10) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_accuracy_in_both_directions_by_hand(tmp_path):
    """Rows 0, 1 and 9. Into English, angles 0, 1, 9 retrieve 0, 0, 10; out of English, 0, 10, 90 retrieve 0, 9, 9."""
    write_tsv(tmp_path / "tatoeba/xxx-eng.tsv", ("source", "english"), [(f"s {n}", f"e {n}") for n in (0, 1, 9)])
    task = task_named("tatoeba_xxx", tmp_path)
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert fields["main_score"] == fields["accuracy_to_english"] == pytest.approx(1 / 3)
    assert fields["accuracy_from_english"] == pytest.approx(2 / 3)
    assert fields["accuracy_mean"] == pytest.approx(1 / 2)
    assert (fields["num_examples"], task.groups) == (3, ("tatoeba",))


def test_the_36_languages_of_xtreme_are_a_group(tmp_path):
    tasks = [task for name, task in all_tasks(tmp_path).items() if "tatoeba" in task.groups]
    assert len(tasks) == len(set(retrieval.XTREME)) == 36
    assert all(task.groups == ("tatoeba", "tatoeba_xtreme") for task in tasks)
    rows = {task.name: task.files[0].rows for task in tasks}
    assert (rows["tatoeba_fra"], rows["tatoeba_jav"]) == ((1000,), (205,))


def synthetic_pairs(count: int) -> tuple[tuple[str, str], ...]:
    return tuple((f"name {n}", f"Summary of number {n}.") for n in range(count))


def test_docstrings_are_ranked_by_the_encoder_and_by_tf_idf():
    directions = np.random.default_rng(0).standard_normal((3000, 64)).astype(np.float32)

    def almost_right(texts) -> np.ndarray:
        """Encode a name and its summary in the same direction, except names 0 and 1, which are swapped; (N, 64)."""
        numbers = np.array([int(text.strip(".").split()[-1]) for text in texts])
        vectors = directions[numbers].copy()
        for row, text in enumerate(texts):
            if text.startswith("name") and numbers[row] < 2:
                vectors[row] = 0.9 * directions[numbers[row]] + directions[1 - numbers[row]]
        return vectors

    pairs = synthetic_pairs(3000)
    fields = retrieval.score_search(almost_right, pairs)
    # All names retrieve their own summary except the two swapped ones, for which it is second.
    assert fields["main_score"] == fields["accuracy@1"] == pytest.approx(2998 / 3000)
    assert fields["accuracy@5"] == 1
    assert fields["mrr"] == pytest.approx((2998 + 2 * 0.5) / 3000)
    # TF-IDF tokenizes numbers of two or more digits as words and ignores the ten single digits.
    assert fields["tfidf"]["accuracy@1"] == pytest.approx(2991 / 3000)
    assert set(fields["tfidf"]) == {"accuracy@1", "accuracy@5", "mrr"}
    assert sum(fields["histogram"]["positive"]) == sum(fields["histogram"]["negative"]) == 3000
    assert fields["data_sha256"] != retrieval.score_search(almost_right, pairs[::-1])["data_sha256"]


def test_lexical_ranks_by_hand():
    candidates = ["Read a file.", "Write a file.", "Close the door."]
    ranks = retrieval.lexical_ranks(["read file", "close door", "unknown"], candidates, np.array([0, 2, 1]))
    np.testing.assert_array_equal(ranks, [1, 1, 2])


def test_too_few_pairs_are_refused_before_anything_is_encoded(monkeypatch, tmp_path):
    monkeypatch.setattr(retrieval, "pairs_of", lambda part: synthetic_pairs(2999))
    with pytest.raises(InputError, match=r"found 2,999 documented names on this machine and needs 3,000"):
        make_plan(["docs_search"], tmp_path)
    assert make_plan(["docs_search"], tmp_path, skip_missing=True).missing == ["docs_search"]
    monkeypatch.setattr(retrieval, "pairs_of", lambda part: synthetic_pairs(3000))
    assert make_plan(["docs_search"], tmp_path, skip_missing=True).missing == []
    monkeypatch.setattr(retrieval, "pairs_of", None)  # the listing does not collect docstrings, which takes seconds
    assert "    x docs_search\n" in listing(all_tasks(tmp_path), tmp_path)


def test_each_task_searches_its_own_part(monkeypatch):
    entries = [Docstring(f"name {n}", f"Summary {n}.", ()) for n in range(200)]
    monkeypatch.setattr(retrieval.docstring_corpus, "collect", lambda: entries)
    for cached in ("docstrings_here", "pairs_of"):
        monkeypatch.setattr(retrieval, cached, getattr(retrieval, cached).__wrapped__)
    parts = {part: [name for name, _ in retrieval.pairs_of(part)] for part in ("test", "dev")}
    assert parts == {part: [entry.name for entry in entries if entry.part == part] for part in ("test", "dev")}
    assert 30 < len(parts["test"]) < 70 and 10 < len(parts["dev"]) < 45

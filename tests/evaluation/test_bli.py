from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group

from mirror.common.errors import InputError
from mirror.common.vectors import gold_ranks, mean_top_k, top_k, unit_length
from mirror.evaluation import bli
from mirror.evaluation.run import PreparedTask, all_tasks, make_plan
from mirror.evaluation.task import Options
from tests.evaluation.folder import task_named, write_tsv


PAIR, NAME = ("source", "target"), "bli_aa_bb"


def cloud(count: int, width: int, seed: int = 0) -> np.ndarray:
    return unit_length(np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32))


def test_csls_by_hand_and_by_conneaus_formula():
    """Cosines of three queries (rows) to three entries; entry 0 is a hub, the nearest neighbor of all three queries.

         e0   e1   e2
    q0  .96   .8    0
    q1  .96   .8    0     with k = 1: r of e0 is .96, of e1 .8, of e2 .28
    q2  .28    0   .28
    """
    queries = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=np.float32)
    entries = np.array([[0.96, 0.28, 0], [0.8, 0, 0.6], [0, 0.28, 0.96]], dtype=np.float32)
    augmented = bli.csls_entries(queries, entries, k=1)
    np.testing.assert_allclose(augmented[:, 3], [0.96, 0.8, 0.28], atol=1e-6)
    scores = bli.csls_queries(queries) @ augmented.T
    np.testing.assert_allclose(scores[2], [0.56 - 0.96, -0.8, 0.56 - 0.28], atol=1e-6)
    assert top_k(queries, entries, 1)[1][2, 0] == 0  # cosine: the hub, as the lowest index of the tie
    assert scores[2].argmax() == 2  # CSLS: the entry that is not a neighbor of other queries
    queries, entries = cloud(20, 6), cloud(30, 6, seed=1)
    full = 2 * queries @ entries.T - mean_top_k(queries, entries, 10)[:, None] - mean_top_k(entries, queries, 10)
    difference = bli.csls_queries(queries) @ bli.csls_entries(queries, entries).T - full
    # Equal up to a constant of the query, which does not change its ranking.
    np.testing.assert_allclose(difference, np.repeat(difference[:, :1], 30, axis=1), atol=1e-5)


def test_procrustes_recovers_a_rotation_between_normalized_vectors():
    source, rotation = cloud(50, 8), ortho_group.rvs(8, random_state=0)
    mapping = orthogonal_procrustes(source, source @ rotation)[0]
    assert np.abs(rotation - np.eye(8)).max() > 0.5
    np.testing.assert_allclose(mapping, rotation, atol=1e-5)
    assert np.linalg.norm(bli.normalize(cloud(100, 5) + 3).mean(axis=0)) < 0.2  # nearly 1 before


def test_self_learning_recovers_a_rotation_from_a_poor_start():
    source, rotation = cloud(400, 12), ortho_group.rvs(12, random_state=0).astype(np.float32)
    target = unit_length(source @ rotation + 0.02 * cloud(400, 12, seed=1))
    gold = np.arange(400)
    start = orthogonal_procrustes(source[:40], target[:40] + 1.4 * cloud(40, 12, seed=2))[0]
    refined = bli.refine(source, target, start)
    before, after = ((gold_ranks(source @ mapping, target, gold) == 1).mean() for mapping in (start, refined))
    assert before < 0.9 and after == 1
    np.testing.assert_allclose(refined.T @ refined, np.eye(12), atol=1e-5)
    np.testing.assert_array_equal(refined, bli.refine(source, target, start))


def dictionaries(folder, train="train5k", rows=5000):
    """Write dictionaries in which word "wn" translates to "xn"; the 2,000 test words follow the training words."""
    write_tsv(folder / f"bli/aa-bb.{train}.tsv", PAIR, [(f"w{n}", f"x{n}") for n in range(rows)])
    write_tsv(folder / "bli/aa-bb.test2k.tsv", PAIR, [(f"w{n}", f"x{n}") for n in range(rows, rows + 2000)])


class Rotated:
    """A fake encoder: language x is language w rotated; words from number 6,000 on are not translations."""

    def __init__(self, width: int = 16):
        self.words, self.rotation = cloud(8000, width), ortho_group.rvs(width, random_state=1).astype(np.float32)

    def __call__(self, texts):
        vectors = np.stack([self.words[int(text[1:])] for text in texts])
        other = np.array([text.startswith("x") for text in texts])[:, None]
        lost = np.array([text.startswith("x") and int(text[1:]) >= 6000 for text in texts])[:, None]
        return np.where(other, vectors @ self.rotation, vectors) * np.where(lost, -1, 1).astype(np.float32)


def test_half_of_the_words_of_a_rotated_language_are_translated(tmp_path):
    dictionaries(tmp_path)
    task = task_named(NAME, tmp_path)
    task.check(tmp_path)
    fields = task.score(Rotated(), tmp_path)
    assert fields["main_score"] == fields["train5k"]["csls"]["accuracy@1"] == pytest.approx(0.5, abs=0.01)
    assert fields["train5k"]["cosine"]["accuracy@1"] == pytest.approx(0.5, abs=0.01) and 0.5 < fields["mrr"] < 0.6
    assert [fields[f"{name}_vocabulary"] for name in ("source", "target")] == [7000, 7000]
    assert "train5k" in task.protocol and "train1k" not in fields and fields["num_examples"] == 2000


class OneLanguage:
    """A fake encoder of the words of one language, such as "w", to `width` dimensions; it fails on other words."""

    def __init__(self, language: str, width: int = 16):
        self.language, self.both = language, Rotated(width)

    def __call__(self, texts):
        assert all(text.startswith(self.language) for text in texts)
        return self.both(texts)


def test_each_language_is_encoded_by_its_own_encoder(tmp_path):
    """Two encoders that know one language each score what one encoder of both languages scores; the joint task has one."""
    dictionaries(tmp_path)
    one, two = task_named(NAME, tmp_path), task_named(NAME, tmp_path, second_model_name_or_path="x")
    assert one.takes_second_encode and two.takes_second_encode
    scored = two.score(OneLanguage("w"), tmp_path, OneLanguage("x"))
    assert scored == one.score(Rotated(), tmp_path)
    assert two.protocol == one.protocol.replace("one encoder for both languages", "an encoder for each language")
    assert two.groups == one.groups == ("bli",)
    joint = task_named("bli_joint_aa_bb", tmp_path, second_model_name_or_path="x")
    assert joint.protocol == one.protocol and joint.groups == ("bli_joint",)
    entry = PreparedTask(joint, tmp_path).score(Rotated(), None, OneLanguage("x"))
    assert entry["main_score"] == pytest.approx(0.5, abs=0.01)
    with pytest.raises(InputError, match="vectors of 16 and 8 dimensions.*--truncate_dim 8"):
        one.score(OneLanguage("w"), tmp_path, OneLanguage("x", width=8))  # between which there is no map


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x1\n\nx7999\n", "line 2 is blank; give one word per line"),
        ("x1\nx7999\n\n", "line 3 is blank"),
        ("x1\nx7999\n x1\n", "line 3 repeats 'x1' of line 1; remove repeated words"),
        ("", "expected at least one"),
    ],
)
def test_a_vocabulary_with_blank_or_repeated_words_is_refused(tmp_path, content, message):
    dictionaries(tmp_path)
    words = tmp_path / "words.txt"
    words.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=rf"words\.txt.*{message}"):
        task_named(NAME, tmp_path, bli_vocabulary=str(words)).check(tmp_path)


def test_the_small_dictionary_is_used_if_it_is_the_only_one(tmp_path):
    dictionaries(tmp_path, "train1k", 1000)
    fields = task_named(NAME, tmp_path).score(Rotated(), tmp_path)
    assert fields["main_score"] == fields["train1k"]["csls"]["accuracy@1"] > 0.95
    assert "train1k" in task_named(NAME, tmp_path).protocol


def test_the_vocabulary_is_every_dictionarys_words_and_a_list(tmp_path):
    dictionaries(tmp_path)
    write_tsv(tmp_path / "bli/bb-cc.train1k.tsv", PAIR, [(f"x{n}", f"y{n}") for n in range(6500, 7500)])
    assert bli.vocabulary(tmp_path, "bb") == [f"x{n}" for n in [*range(5000), *range(6500, 7500), *range(5000, 6500)]]
    assert len(bli.vocabulary(tmp_path, "aa")) == 7000
    words = tmp_path / "words.bb.txt"
    words.write_text("x1\nx7999\n", encoding="utf-8")
    task = task_named(NAME, tmp_path, bli_vocabulary=str(tmp_path / "words.{language}.txt"))
    assert "words.bb.txt" in task.protocol
    assert task.score(Rotated(), tmp_path)["target_vocabulary"] == 7501
    words.unlink()
    with pytest.raises(InputError, match=r"needs .*words\.bb\.txt, which is missing; check the flag that names it"):
        make_plan(["bli_aa_bb"], tmp_path, options=Options(bli_vocabulary=str(tmp_path / "words.{language}.txt")))


def test_the_papers_pairs_are_there_without_data(tmp_path):
    names = [name for name in all_tasks(tmp_path) if name.startswith("bli_")]
    assert names[:6] == [f"bli_{pair}" for pair in ("en_fr", "en_it", "en_ru", "en_tr", "it_fr", "ru_fr")]
    missing = task_named("bli_it_fr", tmp_path).missing_files(tmp_path)
    assert [path.rsplit("/", 1)[1] for path in missing] == ["it-fr.train5k.tsv", "it-fr.test2k.tsv"]
    assert "self-learning" in task_named("bli_en_fr", tmp_path, bli_self_learning=True).protocol
    assert "self-learning" not in task_named("bli_en_fr", tmp_path).protocol

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from mirror.evaluation import sts
from mirror.evaluation.task import Task
from mirror.modeling.encoder import Encoder
from tests.evaluation.folder import on_a_circle, pairs, write_tsv


WORDS = ("word1", "word2", "score")


def task_named(name: str, data_dir) -> Task:
    return {task.name: task for task in sts.tasks(data_dir)}[name]


def test_cosines_in_the_order_of_the_scores_give_a_rho_of_one(tmp_path):
    write_tsv(tmp_path / "wordsim/rg65.tsv", WORDS, pairs(65, top=4))
    task = task_named("rg65", tmp_path)
    task.check(tmp_path)
    fields = task.score(on_a_circle, tmp_path)
    assert fields["main_score"] == pytest.approx(1)
    assert fields["num_examples"] == 65
    assert 0 < fields["pearson_cosine"] < 1  # the cosine is not linear in the angle
    assert "mean_of_subsets" not in fields


def test_subsets_are_concatenated_and_their_mean_is_reported_too(tmp_path):
    """Each subset is ranked perfectly, but the scores of the subsets differ, so the concatenation is not."""
    rows = pairs(250)
    shifted = [("near", a, b, score / 2) for a, b, score in rows[:125]]  # 2.5 ... 1.25
    shifted += [("far", a, b, 2.5 + score) for a, b, score in rows[125:]]  # 4.99 ... 2.5
    write_tsv(tmp_path / "sts/sts17_es.tsv", ("subset", "sentence1", "sentence2", "score"), shifted)
    fields = task_named("sts17_es", tmp_path).score(on_a_circle, tmp_path)
    assert fields["subsets"] == {"near": pytest.approx(1), "far": pytest.approx(1)}
    assert fields["mean_of_subsets"] == pytest.approx(1)
    expected = spearmanr(-np.arange(250), [row[3] for row in shifted]).statistic
    assert fields["main_score"] == pytest.approx(expected)
    assert fields["main_score"] < 0


def test_both_protocols_of_sick(tmp_path):
    header = ("subset", "sentence1", "sentence2", "score", "entailment")
    rows = [(a, b, 1 + score * 0.8) for a, b, score in pairs(4927)]
    for part, count in (("train", 4500), ("trial", 500), ("test", 4927)):
        write_tsv(tmp_path / f"sts/sickr_{part}.tsv", header, [(part, *row, "NEUTRAL") for row in rows[:count]])
    assert task_named("sickr", tmp_path).score(on_a_circle, tmp_path)["num_examples"] == 4927
    assert task_named("sickr_full", tmp_path).score(on_a_circle, tmp_path)["num_examples"] == 9927

    hub = tmp_path / "hub"  # as on the Hub: one file without a split
    write_tsv(hub / "sts/sickr_full.tsv", ("sentence1", "sentence2", "score"), (rows + rows + rows)[:9927])
    task = task_named("sickr_full", hub)
    assert [file.path for file in task.files] == ["sts/sickr_full.tsv"]
    task.check(hub)


def test_null_and_nan_reach_the_encoder_as_words(tmp_path):
    seen = []

    def encode(texts):
        seen.extend(texts)
        return np.random.default_rng(0).standard_normal((len(texts), 4)).astype(np.float32)

    rows = [("null", "nan", 3.0), ("NA", "None", 1.0), *pairs(63, top=4)]
    write_tsv(tmp_path / "wordsim/rg65.tsv", WORDS, rows)
    task_named("rg65", tmp_path).score(encode, tmp_path)
    assert {"null", "nan", "NA", "None"} <= set(seen)


def test_equal_cosines_of_all_pairs_score_zero(tmp_path, caplog):
    write_tsv(tmp_path / "wordsim/rg65.tsv", WORDS, pairs(65, top=4))
    fields = task_named("rg65", tmp_path).score(lambda texts: np.ones((len(texts), 3), np.float32), tmp_path)
    assert fields["main_score"] == 0
    assert "a correlation is undefined" in caplog.text


def test_multisimlex_has_the_declared_languages_and_those_in_the_folder(tmp_path):
    write_tsv(tmp_path / "multisimlex/KOR.tsv", WORDS, pairs(1888, top=6))
    write_tsv(tmp_path / "multisimlex/CMN-ENG.tsv", (*WORDS, "pair"), [(*row, "1a") for row in pairs(20, top=6)])
    tasks = {task.name: task for task in sts.tasks(tmp_path)}
    languages = {name for name, task in tasks.items() if "multisimlex" in task.groups}
    pairs_of_languages = {name for name, task in tasks.items() if "multisimlex_cross" in task.groups}
    assert "multisimlex_kor" in languages
    assert len(languages) == 14  # twelve, Arabic, Korean
    assert "multisimlex_cmn_eng" in pairs_of_languages
    assert "multisimlex_eng_cmn" not in pairs_of_languages  # the folder contains the reversed pair
    assert len(pairs_of_languages) == 6
    assert tasks["multisimlex_cmn_eng"].score(on_a_circle, tmp_path)["main_score"] == pytest.approx(1)


def test_cosines_by_hand():
    left = np.array([[1, 0], [2, 0], [0, 0]], dtype=np.float32)
    right = np.array([[0, 5], [3, 3], [1, 1]], dtype=np.float32)
    np.testing.assert_allclose(sts.paired_cosines(left, right), [0, np.sqrt(0.5), 0], atol=1e-7)


def test_identical_pairs_are_tied():
    vectors = np.random.default_rng(0).standard_normal((500, 33)).astype(np.float32)
    assert (sts.paired_cosines(vectors, vectors) == 1).all()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_gives_the_same_numbers(bert_folder, sentences, tmp_path, pooling):
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(bert_folder, max_seq_length=32)
    model = SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode=pooling)], device="cpu")
    generator = np.random.default_rng(1)
    left, right = (list(generator.choice(sentences, 250)) for _ in range(2))
    gold = generator.uniform(0, 5, 250).round(2)
    write_tsv(tmp_path / "sts/sts17_ar.tsv", ("sentence1", "sentence2", "score"), zip(left, right, gold, strict=True))

    theirs = EmbeddingSimilarityEvaluator(left, right, gold, similarity_fn_names=["cosine"], write_csv=False)(model)
    encoder = Encoder.from_pretrained(bert_folder, pooling, max_seq_length=32)
    ours = task_named("sts17_ar", tmp_path).score(encoder.encode, tmp_path)
    assert ours["main_score"] == pytest.approx(theirs["spearman_cosine"], abs=1e-4)
    assert ours["pearson_cosine"] == pytest.approx(theirs["pearson_cosine"], abs=1e-4)
    assert ours["main_score"] != 0

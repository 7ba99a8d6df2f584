from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from mirror.common.errors import InputError
from mirror.evaluation.labeled_pairs import compare, sample_rows, thinned_roc_curve
from mirror.evaluation.metrics import paired_cosines
from mirror.evaluation.run import all_groups, all_tasks
from mirror.modeling.encoder import Encoder
from tests.evaluation.folder import on_a_circle, pairs, task_named, write_tsv


WORDS = ("word1", "word2", "score")


def test_cosines_in_the_order_of_the_scores_give_a_rho_of_one(tmp_path):
    write_tsv(tmp_path / "wordsim/rg65.tsv", WORDS, pairs(65, top=4))
    task = task_named("rg65", tmp_path)
    task.check(tmp_path)
    fields = task.score(on_a_circle, tmp_path)
    assert (fields["main_score"], fields["num_examples"]) == (pytest.approx(1), 65)
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


def test_multisimlex_has_the_declared_languages_and_those_in_the_folder(tmp_path):
    write_tsv(tmp_path / "multisimlex/KOR.tsv", WORDS, pairs(1888, top=6))
    write_tsv(tmp_path / "multisimlex/CMN-ENG.tsv", (*WORDS, "pair"), [(*row, "1a") for row in pairs(20, top=6)])
    tasks, groups = all_tasks(tmp_path), all_groups(all_tasks(tmp_path))
    assert "multisimlex_kor" in groups["multisimlex"] and len(groups["multisimlex"]) == 14  # twelve, Arabic, Korean
    assert len(groups["multisimlex_cross"]) == 6 and "multisimlex_cmn_eng" in groups["multisimlex_cross"]
    assert "multisimlex_eng_cmn" not in tasks  # the folder contains the reversed pair
    assert tasks["multisimlex_cmn_eng"].score(on_a_circle, tmp_path)["main_score"] == pytest.approx(1)


def test_cosines_by_hand():
    left = np.array([[1, 0], [2, 0], [0, 0]], dtype=np.float32)
    right = np.array([[0, 5], [3, 3], [1, 1]], dtype=np.float32)
    np.testing.assert_allclose(paired_cosines(left, right), [0, np.sqrt(0.5), 0], atol=1e-7)
    vectors = np.random.default_rng(0).standard_normal((500, 33)).astype(np.float32)
    assert (paired_cosines(vectors, vectors) == 1).all()  # identical pairs are tied


def test_null_and_nan_are_words_and_equal_cosines_of_all_pairs_score_zero(tmp_path, caplog):
    seen = []

    def encode(texts):
        seen.extend(texts)
        return np.ones((len(texts), 3), np.float32)

    write_tsv(tmp_path / "wordsim/rg65.tsv", WORDS, [("null", "nan", 3.0), ("NA", "None", 1.0), *pairs(63, top=4)])
    assert task_named("rg65", tmp_path).score(encode, tmp_path)["main_score"] == 0
    assert {"null", "nan", "NA", "None"} <= set(seen)
    assert "a correlation is undefined" in caplog.text


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
    assert ours["pearson_cosine"] == pytest.approx(theirs["pearson_cosine"], abs=1e-4) != 0


def test_auc_gap_and_histograms_by_hand_and_a_tie_counts_as_half():
    """Positives .9 .5, negatives .5 .1: of four comparisons three are correct and one is a tie, 3.5 / 4."""
    curve = thinned_roc_curve(np.array([True, True, False, False]), np.array([0.9, 0.5, 0.5, 0.1]))
    assert curve == {"false_positive_rate": [0.0, 0.0, 0.5, 1.0], "true_positive_rate": [0.0, 0.5, 1.0, 1.0]}
    assert np.trapezoid(curve["true_positive_rate"], curve["false_positive_rate"]) == 3.5 / 4
    generator = np.random.default_rng(0)
    thinned = thinned_roc_curve(generator.random(5000) < 0.5, generator.random(5000))["true_positive_rate"]
    assert 150 < len(thinned) <= 200 and thinned[-1] == 1
    fields = compare(np.array([0.9, 0.5, 0.5, -1.0]), np.array([True, True, False, False]))
    assert fields["main_score"] == 3.5 / 4
    assert fields["mean_cosine"] == {"positive": pytest.approx(0.7), "negative": pytest.approx(-0.25)}
    assert fields["gap"] == pytest.approx(0.95)
    assert len(fields["histogram"]["bin_edges"]) == 81 and fields["histogram"]["negative"][0] == 1
    above_one = compare(np.array([1 + 1e-7, 0.0]), np.array([True, False]))
    assert above_one["histogram"]["positive"][-1] == 1


def test_the_sample_is_fixed_and_without_duplicates():
    rows = sample_rows(5000)
    assert len(set(rows.tolist())) == 1000 and rows.max() > 4000
    assert rows.tolist() == sample_rows(5000).tolist() and sample_rows(3).tolist() == [0, 1, 2]


def write(path, sides, labels):
    write_tsv(path, (*sides, "label"), [(f"a {n}", f"b {n}", label) for n, label in enumerate(labels)])


def test_entailed_pairs_are_the_positives(tmp_path):
    """Cosines decrease from row to row; rows 1 to 2,000 are entailed, row 0 is not."""
    labels = ["not_entailment"] + ["entailment"] * 2000 + ["not_entailment"] * 3462
    write(tmp_path / "qnli/dev.tsv", ("question", "sentence"), labels)
    task = task_named("qnli", tmp_path)
    task.check(tmp_path)

    def on_half_a_circle(texts):
        angles = np.array([0.0005 * int(text.split()[1]) * text.startswith("b") for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    fields = task.score(on_half_a_circle, tmp_path)
    assert fields["main_score"] == pytest.approx(1 - 1 / 3463, abs=1e-9)  # each positive is below the first row only
    assert (fields["num_examples"], fields["positive"]) == (5463, 2000)


def test_a_thousand_question_pairs_are_scored(tmp_path):
    write(tmp_path / "qqp/qqp.tsv", ("question1", "question2"), [1] * 600 + [0] * 900)
    fields = task_named("qqp_cosine", tmp_path).score(on_a_circle, tmp_path)
    assert (fields["num_examples"], fields["main_score"]) == (1000, 1)


@pytest.mark.parametrize(
    ("name", "path", "sides", "labels", "message"),
    [
        ("qnli", "qnli/dev", ("question", "sentence"), ["entailment"] * 5462 + ["0"], r"dev\.tsv, line 5464: label '0'"),
        ("qqp_cosine", "qqp/qqp", ("question1", "question2"), [1, 0, "yes"], r"line 4: label 'yes', expected '1' or '0'"),
        ("qqp_cosine", "qqp/qqp", ("question1", "question2"), [1, 1], "every label is 1"),
    ],
)  # fmt: skip
def test_invalid_labels_are_an_error(tmp_path, name, path, sides, labels, message):
    """In GLUE's numbering 0 means entailment, so numeric labels could be misinterpreted."""
    write(tmp_path / f"{path}.tsv", sides, labels)
    with pytest.raises(InputError, match=message):
        task_named(name, tmp_path).score(on_a_circle, tmp_path)

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mirror.common.errors import InputError
from mirror.evaluation import transfer
from mirror.evaluation.run import PreparedTask
from tests.evaluation.folder import write_tsv


def task_of(folder, name, **options):
    return {task.name: task for task in transfer.tasks(folder, **options)}[f"transfer_{name}"]


def encode(texts):
    """Encode "n" as axis n of six, with a small fixed noise."""
    noise = np.random.default_rng(0).normal(size=(len(texts), 6)) * 0.05
    return (np.eye(6)[[int(text.split()[0]) for text in texts]] * 15 + noise).astype(np.float32)


def blobs(count=200, gap=4.0):
    """Return features and labels of two classes whose means differ by `gap` on the first of four axes."""
    generator = np.random.default_rng(0)
    labels = np.array(["0", "1"] * (count // 2))
    features = generator.normal(size=(count, 4))
    features[:, 0] += gap * (labels == "1")
    return features, labels


def test_soft_targets_have_the_score_as_their_mean():
    targets = transfer.soft_targets(np.array([3.2, 1.0, 5.0, 4.5]))
    expected = [[0, 0, 0.8, 0.2, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0.5, 0.5]]
    np.testing.assert_allclose(targets, expected, atol=1e-9)


def test_weighted_rows_are_the_cross_entropy_to_soft_targets():
    """At the optimum of the fit the mean prediction equals the mean target for each class."""
    features, scores = np.zeros((3, 2)), np.array([1.5, 1.5, 2.25])
    model = transfer.fit_relatedness(features, scores, c=1.0)
    mean_target = transfer.soft_targets(scores).mean(axis=0)[:3]  # .333 .583 .083
    np.testing.assert_allclose(model.predict_proba(features[:1])[0], mean_target, atol=1e-3)
    np.testing.assert_allclose(transfer.expected_score(model, features), scores.mean(), atol=1e-3)


def test_relatedness_follows_a_linear_score():
    features = np.linspace(-1, 1, 300)[:, None] * np.array([[3.0, 1.0]])
    scores = 3 + 2 * np.linspace(-1, 1, 300)
    predicted = transfer.expected_score(transfer.fit_relatedness(features, scores, c=10.0), features)
    assert np.corrcoef(predicted, scores)[0, 1] > 0.98


def test_nested_folds_learn_separable_classes_but_not_shuffled_labels():
    features, labels = blobs()
    assert transfer.nested_accuracies(features, labels).shape == (10,)
    assert transfer.nested_accuracies(features, labels).mean() > 0.94
    shuffled = np.random.default_rng(1).permutation(labels)
    assert abs(transfer.nested_accuracies(features, shuffled).mean() - 0.5) < 0.12


def test_probes_are_fitted_with_one_thread_of_blas():
    class Estimator:
        def fit(self):
            return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    before = Estimator().fit()
    assert set(transfer._fit(Estimator())) == {1}
    assert Estimator().fit() == before


def test_c_is_selected_on_dev_and_not_on_test():
    (features, labels), (other, other_labels) = blobs(), blobs(60, gap=-4.0)
    train, dev = (features[:140], labels[:140]), (features[140:], labels[140:])
    same = transfer.dev_chosen([train, dev, dev])
    inverted = transfer.dev_chosen([train, dev, (other, other_labels)])
    assert same["main_score"] > 0.9
    assert inverted["main_score"] == pytest.approx(0.5, abs=0.1)  # both classes are on the side of class 0
    assert same["chosen_c"] == inverted["chosen_c"]


def test_one_factor_for_all_values():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(transfer.scaled(vectors), vectors / 2.5)
    np.testing.assert_allclose(transfer.scaled(vectors * 1000), transfer.scaled(vectors))
    assert np.isfinite(transfer.scaled(np.zeros((2, 2)))).all()


def test_pair_features_are_distance_and_product():
    columns = {"sentence1": ["0", "1"], "sentence2": ["0", "2"]}
    features = transfer.pair_features(lambda texts: np.eye(3)[[int(text) for text in texts]], columns)
    scale = 3.0  # the mean square of one-hot vectors of three dimensions is 1/3
    expected = np.array([[0, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0]]) * np.sqrt(scale) ** np.repeat([1, 2], 3)
    np.testing.assert_allclose(features, expected)


def test_cross_validated_set_with_two_accepted_sizes(tmp_path):
    rows = [("all", f"{n % 2} text {n}", n % 2) for n in range(3775)]
    write_tsv(tmp_path / "senteval/cr.tsv", ("split", "text", "label"), rows)
    task = task_of(tmp_path, "cr")
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert fields["main_score"] == 1
    assert fields["num_examples"] == 3775
    assert task.files[0].rows == (3771, 3775)


def test_train_test_set_in_another_language(tmp_path):
    """The user's folder may have fewer rows. A fifth of the test labels contradict the text."""
    rows = [("train", f"{n % 6} frage", f"class {n % 6}") for n in range(120)]
    rows += [("test", f"{n % 6} frage", f"class {n % 6 if n % 5 else (n + 1) % 6}") for n in range(60)]
    write_tsv(tmp_path / "mine/trec.tsv", ("split", "text", "label"), rows)
    task = task_of(tmp_path / "elsewhere", "trec", senteval_dir=tmp_path / "mine")
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert fields["main_score"] == pytest.approx(0.8)
    assert fields["num_examples"] == 60


def test_mrpc_reports_f1(tmp_path):
    """Pairs of equal texts are paraphrases; ten of the forty test pairs are labelled as paraphrases but differ."""
    pairs = [(f"{n % 6}", f"{(n + n % 2) % 6}", 1 - n % 2) for n in range(200)]
    rows = [("train", *pair) for pair in pairs[:160]]
    rows += [("test", a, b, 1 if n % 4 == 1 else label) for n, (a, b, label) in enumerate(pairs[160:])]
    write_tsv(tmp_path / "mine/mrpc.tsv", ("split", "sentence1", "sentence2", "label"), rows)
    fields = task_of(tmp_path, "mrpc", senteval_dir=tmp_path / "mine").score(encode, tmp_path)
    assert fields["main_score"] == pytest.approx(0.75)
    assert fields["f1"] == pytest.approx(2 * 20 / (20 + 30))  # precision 1, recall 20 of 30


def test_dev_chosen_set(tmp_path):
    rows = [(split, f"{n % 2} text", n % 2) for split in ("train", "dev", "test") for n in range(30)]
    write_tsv(tmp_path / "mine/sst2.tsv", ("split", "text", "label"), rows)
    task = task_of(tmp_path, "sst2", senteval_dir=tmp_path / "mine")
    assert task.score(encode, tmp_path)["main_score"] == 1
    write_tsv(tmp_path / "mine/sst2.tsv", ("split", "text", "label"), rows[:30])
    with pytest.raises(InputError, match=r"sst2\.tsv: no row has split 'dev'; it has train"):
        task.score(encode, tmp_path)


def test_both_sick_tasks(tmp_path):
    """Equal texts entail each other and score 5, others contradict and score 1."""
    header = ("subset", "sentence1", "sentence2", "score", "entailment")
    for part, count in (("train", 4500), ("trial", 500), ("test", 4927)):
        rows = [
            (part, f"{n % 6}", f"{(n + n % 2) % 6}", (5.0, 1.0)[n % 2], ("ENTAILMENT", "CONTRADICTION")[n % 2])
            for n in range(count)
        ]
        write_tsv(tmp_path / f"sts/sickr_{part}.tsv", header, rows)
    entailment, relatedness = (task_of(tmp_path, name).score(encode, tmp_path) for name in ("sicke", "sickr"))
    assert entailment["main_score"] == 1
    assert relatedness["main_score"] > 0.99
    assert relatedness["num_examples"] == 4927


def test_too_few_rows_of_a_class(tmp_path):
    rows = [("train", f"{n % 2} x", int(n < 4)) for n in range(40)] + [("test", "0 x", 0)]
    write_tsv(tmp_path / "mine/trec.tsv", ("split", "text", "label"), rows)
    with pytest.raises(InputError, match="needs 10 rows"):
        task_of(tmp_path, "trec", senteval_dir=tmp_path / "mine").score(encode, tmp_path)


def test_a_training_part_of_one_class_is_one_line(tmp_path):
    rows = [(split, f"{number} x", "1") for split in ("train", "dev", "test") for number in range(6)]
    write_tsv(tmp_path / "own/sst2.tsv", ("split", "text", "label"), rows)
    task = PreparedTask(task_of(tmp_path, "sst2", senteval_dir=tmp_path / "own"), tmp_path)
    with pytest.raises(InputError, match=r"^task transfer_sst2: .*at least 2 classes") as refused:
        task.score(encode)
    assert "\n" not in str(refused.value)

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mirror.common.errors import InputError
from mirror.evaluation import transfer
from mirror.evaluation.run import PreparedTask, all_groups, all_tasks
from mirror.evaluation.task import Options
from tests.evaluation.folder import task_named, write_tsv


def encode(texts):
    """Encode "n" as axis n of six, with a small fixed noise."""
    noise = np.random.default_rng(0).normal(size=(len(texts), 6)) * 0.05
    return (np.eye(6)[[int(text.split()[0]) for text in texts]] * 15 + noise).astype(np.float32)


def test_weighted_rows_are_the_cross_entropy_to_soft_targets():
    """At the optimum of the fit the mean prediction equals the mean target for each class."""
    np.testing.assert_allclose(transfer.soft_targets(np.array([3.2, 5.0])), [[0, 0, 0.8, 0.2, 0], [0, 0, 0, 0, 1]])
    features, scores = np.zeros((3, 2)), np.array([1.5, 1.5, 2.25])
    model = transfer.fit_relatedness(features, scores, c=1.0)
    mean_target = transfer.soft_targets(scores).mean(axis=0)[:3]  # .333 .583 .083
    np.testing.assert_allclose(model.predict_proba(features[:1])[0], mean_target, atol=1e-3)
    np.testing.assert_allclose(transfer.expected_score(model, features), scores.mean(), atol=1e-3)


def test_nested_folds_learn_separable_classes_but_not_shuffled_labels():
    labels = np.array(["0", "1"] * 100)
    features = np.random.default_rng(0).normal(size=(200, 4)) + np.outer(labels == "1", [4.0, 0, 0, 0])
    separable = transfer.nested_accuracies(features, labels)
    assert separable.shape == (10,) and separable.mean() > 0.94
    shuffled = np.random.default_rng(1).permutation(labels)
    assert abs(transfer.nested_accuracies(features, shuffled).mean() - 0.5) < 0.12


def test_probes_are_fitted_with_one_thread_of_blas():
    class Estimator:
        def fit(self):
            return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    before = Estimator().fit()
    assert set(transfer.fit(Estimator())) == {1}
    assert Estimator().fit() == before


def test_features_have_one_factor_for_all_values_and_of_pairs_are_distance_and_product():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(transfer.scaled(vectors), vectors / 2.5)
    np.testing.assert_allclose(transfer.scaled(vectors * 1000), transfer.scaled(vectors))
    assert np.isfinite(transfer.scaled(np.zeros((2, 2)))).all()
    columns = {"sentence1": ["0", "1"], "sentence2": ["0", "2"]}
    features = transfer.pair_features(lambda texts: np.eye(3)[[int(text) for text in texts]], columns)
    scale = 3.0  # the mean square of one-hot vectors of three dimensions is 1/3
    expected = np.array([[0, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0]]) * np.sqrt(scale) ** np.repeat([1, 2], 3)
    np.testing.assert_allclose(features, expected)


def test_train_test_set_in_another_language(tmp_path):
    """The user's folder may have fewer rows. A fifth of the test labels contradict the text."""
    rows = [("train", f"{n % 6} frage", f"class {n % 6}") for n in range(120)]
    rows += [("test", f"{n % 6} frage", f"class {n % 6 if n % 5 else (n + 1) % 6}") for n in range(60)]
    write_tsv(tmp_path / "mine/trec.tsv", ("split", "text", "label"), rows)
    task = task_named("transfer_trec", tmp_path / "elsewhere", senteval_dir=tmp_path / "mine")
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert (fields["main_score"], fields["num_examples"]) == (pytest.approx(0.8), 60)


def test_mrpc_reports_f1(tmp_path):
    """Pairs of equal texts are paraphrases; ten of the forty test pairs are labeled as paraphrases but differ."""
    pairs = [(f"{n % 6}", f"{(n + n % 2) % 6}", 1 - n % 2) for n in range(200)]
    rows = [("train", *pair) for pair in pairs[:160]]
    rows += [("test", a, b, 1 if n % 4 == 1 else label) for n, (a, b, label) in enumerate(pairs[160:])]
    write_tsv(tmp_path / "mine/mrpc.tsv", ("split", "sentence1", "sentence2", "label"), rows)
    fields = task_named("transfer_mrpc", tmp_path, senteval_dir=tmp_path / "mine").score(encode, tmp_path)
    assert fields["main_score"] == pytest.approx(0.75)
    assert fields["f1"] == pytest.approx(2 * 20 / (20 + 30))  # precision 1, recall 20 of 30


def test_c_is_selected_on_dev_and_not_on_test(tmp_path):
    rows = [(split, f"{n % 2} text", n % 2) for split in ("train", "dev", "test") for n in range(30)]
    write_tsv(tmp_path / "mine/sst2.tsv", ("split", "text", "label"), rows)
    task = task_named("transfer_sst2", tmp_path, senteval_dir=tmp_path / "mine")
    fields = task.score(encode, tmp_path)
    assert fields["main_score"] == 1
    inverted = rows[:60] + [(*row[:2], 1 - row[2]) for row in rows[60:]]
    write_tsv(tmp_path / "mine/sst2.tsv", ("split", "text", "label"), inverted)
    assert task.score(encode, tmp_path) == fields | {"main_score": 0}  # the same C
    write_tsv(tmp_path / "mine/sst2.tsv", ("split", "text", "label"), rows[:30])
    with pytest.raises(InputError, match=r"sst2\.tsv: no row has split 'dev'; it has train"):
        task.score(encode, tmp_path)


def test_both_sick_tasks(tmp_path):
    """Equal texts entail each other and score 5, others contradict and score 1."""
    header = ("subset", "sentence1", "sentence2", "score", "entailment")
    labels = ((5.0, "ENTAILMENT"), (1.0, "CONTRADICTION"))
    for part, count in (("train", 4500), ("trial", 500), ("test", 4927)):
        rows = [(part, f"{n % 6}", f"{(n + n % 2) % 6}", *labels[n % 2]) for n in range(count)]
        write_tsv(tmp_path / f"sts/sickr_{part}.tsv", header, rows)
    assert task_named("transfer_sicke", tmp_path).score(encode, tmp_path)["main_score"] == 1
    relatedness = task_named("transfer_sickr", tmp_path).score(encode, tmp_path)
    assert relatedness["main_score"] > 0.99 and relatedness["num_examples"] == 4927


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("trec", [("train", f"{n % 2} x", int(n < 4)) for n in range(40)] + [("test", "0 x", 0)], "needs 10 rows"),
        ("sst2", [(s, "0 x", "1") for s in ("train", "dev", "test")] * 6, "^task transfer_sst2: .*at least 2 classes"),
    ],
)
def test_too_few_rows_of_a_class_are_one_line(tmp_path, name, rows, message):
    write_tsv(tmp_path / f"mine/{name}.tsv", ("split", "text", "label"), rows)
    task = PreparedTask(task_named(f"transfer_{name}", tmp_path, senteval_dir=str(tmp_path / "mine")), tmp_path)
    with pytest.raises(InputError, match=message) as refused:
        task.score(encode)
    assert "\n" not in str(refused.value)


def write_language(folder, rows: int = 60) -> None:
    """SentEval's files, small: the label is in the text."""
    labels, pairs = ("split", "text", "label"), ("split", "sentence1", "sentence2", "label")
    splits = dict.fromkeys(("mr", "cr", "subj", "mpqa"), ("all",)) | {"sst2": ("train", "dev", "test")}
    for name, parts in (splits | {"trec": ("train", "test")}).items():
        lines = [(split, f"{n % 2} {n}", n % 2) for split in parts for n in range(rows)]
        write_tsv(folder / f"{name}.tsv", labels, lines)
    lines = [(split, f"1 {n}", f"{n % 2} {n}", n % 2) for split in ("train", "test") for n in range(rows)]
    write_tsv(folder / "mrpc.tsv", pairs, lines)
    graded = (("NEUTRAL", 1), ("ENTAILMENT", 5))
    lines = [(f"1 {n}", f"{n % 2} {n}", *graded[n % 2]) for n in range(rows)]
    for part in ("train", "trial", "test"):
        write_tsv(folder / f"sickr_{part}.tsv", ("sentence1", "sentence2", "entailment", "score"), lines)


def test_the_score_of_a_language_is_the_mean_of_its_nine_tasks(tmp_path, monkeypatch):
    """The label is along x, and a little of the number."""
    monkeypatch.setattr(transfer, "C_GRID", (1.0,))

    def encode(texts):
        rows = [(1 + float(text.split()[0]), int(text.split()[1]) / 1e4) for text in texts]
        return np.array(rows, dtype=np.float32)

    write_language(tmp_path / "xeval" / "de")
    task = task_named("xeval_de", tmp_path)
    task.check(tmp_path)
    result = task.score(encode, tmp_path)
    in_german = all_tasks(tmp_path, Options(senteval_dir=str(tmp_path / "xeval" / "de")))
    single = {name: one.score(encode, tmp_path) for name, one in in_german.items() if "transfer" in one.groups}
    assert result["scores"] == {name.removeprefix("transfer_"): one["main_score"] for name, one in single.items()}
    assert len(single) == 9 and result["main_score"] == pytest.approx(np.mean(list(result["scores"].values())))


def test_there_are_the_papers_fifteen_languages_and_english_is_senteval(tmp_path):
    tasks, languages = all_tasks(tmp_path), "ar bg de el en es fr hi ru sw th tr ur vi zh".split()
    assert all_groups(tasks)["xeval"] == [f"xeval_{code}" for code in languages]
    of_senteval = {file.path for task in tasks.values() if "transfer" in task.groups for file in task.files}
    assert {file.path for file in tasks["xeval_en"].files} == of_senteval

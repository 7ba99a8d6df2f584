"""A user's tables: pairs with a score or a label, triplets and classes, each against another library's number."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator, TripletEvaluator
from sklearn.cluster import KMeans
from sklearn.metrics import average_precision_score, roc_auc_score, v_measure_score

from mirror.common.errors import InputError
from mirror.evaluation.run import all_tasks, make_plan, resolve
from mirror.modeling.encoder import Encoder
from tests.conftest import make_sentences
from tests.evaluation.test_benchmark_formats import encode, write_rows


TEXTS = make_sentences()
RNG = np.random.default_rng(0)
LEFT, RIGHT = TEXTS[:60], [f"{text} {other}" for text, other in zip(TEXTS[:60], TEXTS[60:120], strict=True)]
LABELS = RNG.integers(0, 2, 60)
SCORED = [{"a": a, "b": b, "score": f"{n % 7 / 2}"} for n, (a, b) in enumerate(zip(LEFT, RIGHT, strict=True))]
LABELED = [{"idx": str(n), "query": a, "text2": b, "label": str(LABELS[n])}
           for n, (a, b) in enumerate(zip(LEFT, RIGHT, strict=True))]  # fmt: skip
TRIPLETS = [{"anchor": a, "positive": b, "negative": c} for a, b, c in zip(LEFT, RIGHT, TEXTS[120:180], strict=True)]
CLASSES = [{"text": text, "label": ["animal", "1", "null"][n % 3]} for n, text in enumerate(TEXTS[:90])]
ENDINGS = ["csv", "tsv", "jsonl", "json", "parquet", "csv.gz"]


def score(path, using=encode):
    (entry,) = make_plan([str(path)], path.parent / "no data").run(using)["tasks"].values()
    return entry


def cosines(encode):
    left, right = (vectors.astype(float) for vectors in (encode(LEFT), encode(RIGHT)))
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_pairs_with_a_score(tmp_path, ending):
    write_rows(path := tmp_path / f"mine.{ending}", SCORED)
    entry, gold = score(path), [float(row["score"]) for row in SCORED]
    assert entry["main_score"] == pytest.approx(spearmanr(cosines(encode).round(7), gold).statistic)
    assert entry["pearson_cosine"] == pytest.approx(pearsonr(cosines(encode), gold).statistic)
    assert (entry["metric"], entry["num_examples"]) == ("spearman_cosine", 60)
    assert entry["data_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    (task,) = resolve([str(path), str(path)], all_tasks(tmp_path))
    assert task.dataset_fields() == {"dataset_name": path.name, "dataset_type": "mine"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_pairs_with_a_label(tmp_path, ending):
    write_rows(path := tmp_path / f"mine.{ending}", LABELED)
    entry = score(path)
    assert entry["main_score"] == pytest.approx(average_precision_score(LABELS, cosines(encode).round(7)))
    assert entry["roc_auc"] == pytest.approx(roc_auc_score(LABELS, cosines(encode).round(7)))
    predicted = cosines(encode) >= entry["best_f1_threshold"] - 1e-6
    f1 = 2 * (predicted & (LABELS == 1)).sum() / (predicted.sum() + LABELS.sum())
    assert entry["best_f1"] == pytest.approx(f1)


def test_best_f1_and_triplets_are_those_of_sentence_transformers(tmp_path, bert_folder):
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    write_rows(labeled := tmp_path / "labeled.csv", LABELED)
    write_rows(triplets := tmp_path / "triplets.csv", TRIPLETS)
    scores = cosines(encoder.encode)
    f1, _, _, threshold = BinaryClassificationEvaluator.find_best_f1_and_threshold(scores, LABELS, True)
    entry = score(labeled, encoder.encode)
    assert entry["best_f1"] == pytest.approx(f1)
    assert ((scores >= entry["best_f1_threshold"] - 1e-6) == (scores >= threshold)).all()
    evaluator = TripletEvaluator(*([row[name] for row in TRIPLETS] for name in TRIPLETS[0]), write_csv=False)
    evaluator.embed_inputs = lambda model, texts, **_: encoder.encode(list(texts))
    model = type("Model", (), {"similarity_fn_name": "cosine", "model_card_data": None})()
    evaluator.store_metrics_in_model_card_data = lambda *_: None
    assert score(triplets, encoder.encode)["main_score"] == pytest.approx(evaluator(model)["cosine_accuracy"])


def test_triplets_by_hand_with_a_tie_as_an_error(tmp_path):
    space = {"a": (1, 0), "near": (1, 0.1), "far": (0, 1), "same": (2, 0.2)}
    rows = [("a", "near", "far"), ("a", "far", "near"), ("a", "near", "same"), ("near", "same", "a")]
    write_rows(tmp_path / "t.csv", [dict(zip(("anchor", "positive", "negative"), row, strict=True)) for row in rows])
    entry = score(tmp_path / "t.csv", lambda texts: np.array([space[text] for text in texts], np.float32))
    assert (entry["main_score"], entry["num_examples"]) == (0.5, 4)


@pytest.mark.parametrize("ending", ENDINGS)
def test_classes(tmp_path, ending):
    """Of words that say the class the probe finds it, of others it does not; "1" and "null" are labels like others."""
    write_rows(path := tmp_path / f"mine.{ending}", CLASSES)
    entry = score(path)
    assert entry["main_score"] < 0.6 and (entry["classes"], entry["folds"]) == (3, 10)
    assert entry == score(path) | {"seconds": entry["seconds"]}
    vectors = encode([row["text"] for row in CLASSES])
    clusters = KMeans(3, n_init=10, random_state=0).fit_predict(vectors / np.linalg.norm(vectors, axis=1)[:, None])
    assert entry["v_measure"] == pytest.approx(v_measure_score([row["label"] for row in CLASSES], clusters))
    told = [row | {"text": f"{row['text']} {row['label']} {row['label']}"} for row in CLASSES]
    write_rows(path, told)
    assert score(path)["main_score"] > 0.95


def test_a_class_of_few_rows_makes_fewer_folds(tmp_path):
    write_rows(tmp_path / "few.csv", [*CLASSES[:20], {"text": "a", "label": "rare"}, {"text": "b", "label": "rare"}])
    assert score(tmp_path / "few.csv")["folds"] == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": "x", "b": "y", "score": "high"}], "line 1: the score is 'high', not a number"),
        ([*SCORED, {"a": "x", "b": "y", "score": "inf"}], "line 61: the score is 'inf', not a number"),
        ([{"a": "x", "b": "y", "score": "1"}] * 3, "every score is 1; a correlation needs different ones"),
        ([{"a": "x", "b": " ", "score": "1"}], "line 1: 'b' is empty; fill it or remove the row"),
        ([{"a": "x", "b": "y", "label": "1"}, {"a": "x", "b": "y", "label": "2"}], "line 2: label '2', expected 0 or 1"),
        ([{"a": "x", "b": "y", "label": "1"}] * 3, "every label is 1; at least two are needed"),
        ([{"a": "x", "b": "y", "label": "1"}, {"a": "x", "b": "y", "label": "1.0"}], "every label is 1"),
        ([{"anchor": "x", "positive": "y", "negative": ""}], "line 1: 'negative' is empty"),
        ([{"text": "x", "label": "a"}, {"text": "y", "label": ""}], "line 2: 'label' is empty"),
        ([{"text": "x", "label": "a"}, {"text": "y", "label": "b"}], "label 'a' has one row; each needs two"),
        ([{"text": "x", "other": "y", "label": "1"}], "can be classes or pairs; keep text and label for classes"),
        ([{"a": "x", "score": "1"}], "columns a, score; a task needs two columns of texts and score or label"),
        ([{"a": "x", "b": "1"}], "columns a, b; a task needs two columns"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_wrong_table_is_one_line(tmp_path, rows, message, ending):
    write_rows(tmp_path / f"mine.{ending}", rows)
    if ending == "csv":  # the first line is the header
        message = re.sub(r"line (\d+)", lambda match: f"line {int(match[1]) + 1}", message)
    with pytest.raises(InputError, match=f"mine.{ending}.*{message}"):
        make_plan([str(tmp_path / f"mine.{ending}")], tmp_path)


@pytest.mark.parametrize("name", ["gone.csv", "some/gone", "notes.docx"])
def test_a_file_that_is_none(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.docx").write_text("x")
    with pytest.raises(InputError, match=f"{name}: (no such file|unknown ending)"):
        resolve([name], {})
    with pytest.raises(InputError, match="unknown task"):
        resolve(["a" * 5000], {})


def test_columns_that_are_no_texts_are_left_out_and_third_texts_are_named(tmp_path, caplog):
    write_rows(tmp_path / "glue.csv", LABELED)
    (tmp_path / "setfit.csv").write_text("text,label,label_text\n" + "a,0,x\nb,0,x\nc,1,y\nd,1,y\n")
    glue, setfit = resolve([str(tmp_path / "glue.csv"), str(tmp_path / "setfit.csv")], {})
    assert (glue.metric, setfit.metric) == ("average_precision", "accuracy")
    write_rows(tmp_path / "three.csv", [row | {"note": "x"} for row in SCORED])
    assert score(tmp_path / "three.csv")["num_examples"] == 60
    assert "three.csv: the pairs are 'a' and 'b'; note not used" in caplog.text

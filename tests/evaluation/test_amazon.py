from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import amazon
from tests.evaluation.folder import write_tsv


def test_features_are_u_v_difference_and_product():
    features = amazon.review_features(np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]]))
    np.testing.assert_array_equal(features, [[1, 2, 3, -1, 2, 3, 3, -2]])


@pytest.fixture
def reviews(tmp_path):
    """Every file has 2,000 reviews with 1, 2, 4, 5, 1, ... stars; the summary contains the number of stars."""
    for file in (*amazon.TRAIN.values(), *amazon.TEST.values()):
        language = file.path.split("/")[1][:2]
        stars = [(1, 2, 4, 5)[n % 4] for n in range(2000)]
        rows = [(s > 3, s, f"{language} {s}", f"text {n}") for n, s in enumerate(stars)]
        write_tsv(tmp_path / file.path, ("label", "rating", "summary", "text"), rows)
    return tmp_path


def encode(texts):
    """Encode the sentiment along x: as it is in English and German, inverted in French, absent in Japanese."""
    sign = {"en": 1, "de": 1, "fr": -1, "jp": 0, "text": 0}
    words = [text.split() for text in texts]
    along = [sign[kind] * (int(number) - 3) for kind, number in words]
    noise = np.random.default_rng(0).normal(size=(len(texts), 3)) * 0.1
    return np.column_stack([along, noise]).astype(np.float32)


def check_accuracies(fields: dict) -> None:
    accuracy = fields["accuracy"]
    assert accuracy["en"] == accuracy["de"] == 1
    assert accuracy["fr"] == 0
    assert accuracy["jp"] == fields["accuracy_jp"] == pytest.approx(0.5, abs=0.1)
    assert fields["main_score"] == pytest.approx((1 + 0 + accuracy["jp"]) / 3)
    assert fields["num_examples"] == 18000


def test_one_classifier_on_pooled_english_reviews_is_tested_on_each_language(reviews):
    """CMLM section 4.5.2: 6,000 reviews of three domains, 90% for training; 6,000 test reviews in each language."""
    calls = []

    def counting(texts):
        calls.append(len(texts))
        return encode(texts)

    task, _ = amazon.tasks(reviews)
    task.check(reviews)
    fields = task.score(counting, reviews)
    check_accuracies(fields)
    assert calls == [12000] * 5  # summaries and texts of English, then of the four test languages
    assert set(fields) & {"chosen_c", "accuracy_by_domain"} == {"chosen_c"}


def test_the_split_is_nine_to_one_with_equal_shares_and_the_same_every_time():
    labels = np.arange(6000) % 2 == 0
    train, dev = amazon.train_dev_rows(labels)
    assert (len(train), len(dev), labels[dev].mean()) == (5400, 600, 0.5)
    assert sorted([*train, *dev]) == list(range(6000))
    np.testing.assert_array_equal(dev, amazon.train_dev_rows(labels)[1])


def test_a_classifier_for_each_domain_is_another_task(reviews):
    _, task = amazon.tasks(reviews)
    fields = task.score(encode, reviews)
    check_accuracies(fields)
    assert task.name == "amazon_by_domain" and not task.published
    assert set(fields["accuracy_by_domain"]["jp"]) == {"books", "dvd", "music"}


def test_three_stars_are_not_positive(reviews):
    file = amazon.TEST["de", "dvd"]
    rows = [("1", "34"[n % 2], "de 4", "text 0") for n in range(2000)]
    write_tsv(reviews / file.path, ("label", "rating", "summary", "text"), rows)
    assert amazon.is_positive(file, reviews)[:4].tolist() == [False, True, False, True]


def test_an_invalid_rating_is_an_error(reviews):
    file = amazon.TEST["de", "dvd"]
    rows = [("1", "4", "de 4", "text 0")] * 1999 + [("1", "six", "de 4", "text 0")]
    write_tsv(reviews / file.path, ("label", "rating", "summary", "text"), rows)
    with pytest.raises(InputError, match=r"de_dvd_test\.tsv, line 2001: rating 'six'"):
        amazon.is_positive(file, reviews)

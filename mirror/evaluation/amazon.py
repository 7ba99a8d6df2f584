"""Amazon reviews: a sentiment classifier trained on English reviews, tested on English, German, French and Japanese ones.

In the upper half of CMLM Table 4 (`amazon_zero_shot`) the encoder is frozen, in the lower half (`amazon_zero_shot_tuned`) a
copy of it is trained with the classifier, without cache and transformations. `amazon_by_domain` has a classifier per domain.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from mirror.common.errors import InputError
from mirror.evaluation.task import Columns, DataFile, Options, Task
from mirror.evaluation.transfer import SEED, cross_validated_probe, dev_selected_probe, root_mean_square
from mirror.modeling.encoder import Encode, Encoder
from mirror.modeling.pooling import pair_features


TARGETS = ("de", "fr", "jp")
LANGUAGES = ("en", *TARGETS)
DOMAINS = ("books", "dvd", "music")
ROWS = (2000,)
# The paper does not report these hyperparameters; they are common for fine-tuning BERT and were not tuned.
LEARNING_RATE = 2e-5
EPOCHS = 2
BATCH_SIZE = 32
TUNING_SEED = 0

_file = partial(DataFile, columns=("rating", "summary", "text"), rows=ROWS)
TRAIN = {domain: _file(f"amazon_cls10/en_{domain}_train.tsv") for domain in DOMAINS}
TEST = {(code, domain): _file(f"amazon_cls10/{code}_{domain}_test.tsv") for code in LANGUAGES for domain in DOMAINS}


def tasks(data_dir: Path, options: Options) -> list[Task]:
    """Return the three tasks of this family. They are in no group, because the tuned one costs a training run."""
    task = partial(Task, metric="accuracy", files=(*TRAIN.values(), *TEST.values()))
    data, features = "Amazon reviews, Webis CLS-10", "[u, v, |u-v|, u*v] of summary and text"
    return [
        task(
            name="amazon_zero_shot",
            protocol=f"frozen vectors, {features}; one logistic regression on 5,400 of the 6,000 English reviews of three "
            "domains, C by accuracy on the other 600; 6,000 test reviews in each language; mean of de, fr, jp",
            score=score,
            dataset=f"{data} (frozen)",
            published="CMLM Table 4, frozen",
        ),
        task(
            name="amazon_by_domain",
            protocol=f"frozen vectors, {features}; one logistic regression per domain on 2,000 English reviews, C by 5-fold "
            "cross-validation on them; mean of three domains, then of de, fr, jp",
            score=score_by_domain,
            dataset=f"{data} (frozen, by domain)",
        ),
        task(
            name="amazon_zero_shot_tuned",
            protocol=f"encoder trained with a linear classifier on {features}, on 5,400 of the 6,000 English reviews of three "
            f"domains, AdamW at a constant learning rate of {LEARNING_RATE:g}, batch size {BATCH_SIZE}, float32, not tuned; "
            f"the best of {EPOCHS} epochs by accuracy on the other 600; 6,000 test reviews in each language; mean of de, fr, jp",
            score=score_tuned,
            dataset=f"{data} (tuned)",
            published="CMLM Table 4, encoder trained",
            trains=True,
        ),
    ]


def score(encode: Encode, data_dir: Path) -> dict:
    """Compute the accuracy for each language, by the paper's protocol. The main score leaves out English."""
    features, labels, scale = encoded(TRAIN.values(), encode, data_dir)
    train, dev = train_dev_rows(labels)
    probe, c = dev_selected_probe((features[train], labels[train]), (features[dev], labels[dev]))
    accuracy = {}
    for language in LANGUAGES:
        features, labels, _ = encoded([TEST[language, domain] for domain in DOMAINS], encode, data_dir, scale)
        accuracy[language] = float(probe.score(features, labels))
    return _summary(accuracy) | {"chosen_c": c}


def score_by_domain(encode: Encode, data_dir: Path) -> dict:
    """Compute the accuracy for each language and domain, with a classifier for each domain."""
    by_domain: dict[str, dict[str, float]] = {language: {} for language in LANGUAGES}
    for domain in DOMAINS:
        features, labels, scale = encoded([TRAIN[domain]], encode, data_dir)
        probe = cross_validated_probe(features, labels, folds=5)
        for language in LANGUAGES:
            features, labels, _ = encoded([TEST[language, domain]], encode, data_dir, scale)
            by_domain[language][domain] = float(probe.score(features, labels))
    accuracy = {language: float(np.mean(list(domains.values()))) for language, domains in by_domain.items()}
    return _summary(accuracy) | {"accuracy_by_domain": by_domain}


def score_tuned(encoder: Encoder, data_dir: Path) -> dict:
    """Compute the accuracy for each language with a trained copy of the encoder."""
    reviews, labels = read_reviews(TRAIN.values(), data_dir)
    train, dev = (
        ({name: [values[row] for row in rows] for name, values in reviews.items()}, labels[rows])
        for rows in train_dev_rows(labels)
    )
    classifier, epoch = train_classifier(encoder, train, dev)
    tests = {language: [TEST[language, domain] for domain in DOMAINS] for language in LANGUAGES}
    accuracy = {key: classifier.accuracy(*read_reviews(files, data_dir)) for key, files in tests.items()}
    settings = {"learning_rate": LEARNING_RATE, "epochs": EPOCHS, "chosen_epoch": epoch}
    return _summary(accuracy) | settings | {"train_batch_size": BATCH_SIZE, "seed": TUNING_SEED}


def train_dev_rows(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into 90% for training and 10% for development (CMLM section 4.5.2), with equal shares of both labels."""
    train, dev = train_test_split(np.arange(len(labels)), test_size=0.1, stratify=labels, random_state=SEED)
    return train, dev


def read_reviews(files: Iterable[DataFile], data_dir: Path) -> tuple[Columns, np.ndarray]:
    """Read N reviews of several files: the columns `summary` and `text`, and (N,) bool, True for more than three stars."""
    reviews: Columns = {"summary": [], "text": []}
    positive = []
    for file in files:
        columns = file.read(data_dir)
        for number, rating in enumerate(columns["rating"], start=2):
            if rating not in ("1", "2", "3", "4", "5"):
                raise InputError(f"{file.path}, line {number}: rating {rating!r}, expected 1 to 5 stars")
            positive.append(int(rating) > 3)
        for name, values in reviews.items():
            values += columns[name]
    return reviews, np.array(positive)


def encoded(
    files: Iterable[DataFile], encode: Encode, data_dir: Path, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Encode the reviews of files of one language in one call of `encode`: features (N, 4D), labels (N,), and the scale.

    The vectors are divided by `scale`, or by their root mean square. That of English is used for all languages.
    """
    columns, labels = read_reviews(files, data_dir)
    vectors = encode(columns["summary"] + columns["text"])  # (2N, D)
    scale = scale or root_mean_square(vectors)
    summary, text = torch.from_numpy(vectors / scale).chunk(2)
    return pair_features(summary, text).numpy(), labels, scale


def _summary(accuracy: dict[str, float]) -> dict:
    """Return the fields of a result that every protocol has. `accuracy` maps each language to its accuracy."""
    main_score, examples = float(np.mean([accuracy[each] for each in TARGETS])), len(TARGETS) * len(DOMAINS) * ROWS[0]
    fields = {"main_score": main_score, "num_examples": examples, "accuracy": accuracy}
    return fields | {f"accuracy_{language}": accuracy[language] for language in LANGUAGES}


class ReviewClassifier(nn.Module):
    """A copy of an encoder with a linear layer on top, in float32, so that small updates are not lost to rounding."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.model, head = (copy.deepcopy(module).float() for module in (encoder.model, encoder.head))
        settings = (encoder.tokenizer, encoder.pooling, encoder.max_seq_length)
        settings += (head, encoder.prompt, encoder.truncate_dim, encoder.role_prompts, encoder.include_prompt)
        self.encoder = Encoder(self.model, *settings)
        self.head = self.encoder.head
        self.linear = nn.Linear(4 * encoder.dimension, 1, device=self.model.device)

    def forward(self, summaries: list[list[int]], texts: list[list[int]]) -> Tensor:
        """Compute (B,) logits for the token ids of B summaries and B texts, positive for a positive review."""
        features = pair_features(self.encoder.forward(summaries), self.encoder.forward(texts))  # (B, 4D)
        return self.linear(features).squeeze(1)

    @torch.inference_mode()
    def accuracy(self, reviews: Columns, positive: np.ndarray) -> float:
        """Compute the share of N reviews whose class is `positive`, (N,) bool."""
        summary, text = np.split(self.encoder.encode(reviews["summary"] + reviews["text"]), 2)  # (N, D) each
        features = pair_features(torch.from_numpy(summary), torch.from_numpy(text))  # (N, 4D)
        predicted = (self.linear(features.to(self.model.device)).squeeze(1) > 0).cpu().numpy()
        return float(np.mean(predicted == positive))


def train_classifier(
    encoder: Encoder, train: tuple[Columns, np.ndarray], dev: tuple[Columns, np.ndarray]
) -> tuple[ReviewClassifier, int]:
    """Train a copy of `encoder` on reviews and their (N,) bool labels. Return the best epoch's classifier by dev, and the epoch.

    The random state of the caller is not changed.
    """
    best: tuple[float, int, dict] = (-1.0, 0, {})
    with torch.random.fork_rng():
        torch.manual_seed(TUNING_SEED)  # initializes the linear layer, shuffles the rows and seeds dropout
        classifier = ReviewClassifier(encoder)
        optimizer = torch.optim.AdamW(classifier.parameters(), lr=LEARNING_RATE)
        summaries, texts = (classifier.encoder.tokenize(train[0][column]) for column in ("summary", "text"))
        labels = torch.tensor(train[1], dtype=torch.float32, device=classifier.model.device)  # (N,)
        for epoch in range(1, EPOCHS + 1):
            classifier.train()
            for rows in torch.randperm(len(labels)).split(BATCH_SIZE):
                logits = classifier([summaries[row] for row in rows], [texts[row] for row in rows])
                F.binary_cross_entropy_with_logits(logits, labels[rows.to(labels.device)]).backward()
                optimizer.step()
                optimizer.zero_grad()
            on_dev = classifier.eval().accuracy(*dev)
            if on_dev > best[0]:
                best = on_dev, epoch, copy.deepcopy(classifier.state_dict())
    classifier.load_state_dict(best[2])
    return classifier, best[1]

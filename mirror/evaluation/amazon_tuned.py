"""`amazon_zero_shot_tuned`: the encoder is trained together with the sentiment classifier on English reviews.

Lower half of CMLM Table 4; `amazon_zero_shot` is the upper half. A copy of the encoder is trained and the original is
not modified. Unlike other tasks this one uses the encoder itself, without the cache and without the transformations of
embeddings in `encoding.py`.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mirror.evaluation import amazon
from mirror.evaluation.task import Columns, Task
from mirror.modeling.encoder import Encoder
from mirror.modeling.pooling import pair_features


# The paper does not report these hyperparameters; they are common for fine-tuning BERT and were not tuned.
LEARNING_RATE = 2e-5
EPOCHS = 2
BATCH_SIZE = 32
SEED = 0


def tasks(data_dir: Path) -> list[Task]:
    """Return the only task of this family. It is in no group because it costs a training run."""
    return [
        Task(
            name="amazon_zero_shot_tuned",
            metric="accuracy",
            protocol="encoder trained with a linear classifier on [u, v, |u-v|, u*v] of summary and text, on 5,400 of the "
            "6,000 English reviews of three domains, AdamW at a constant learning rate of "
            f"{LEARNING_RATE:g}, batch size {BATCH_SIZE}, float32, not tuned; the best of {EPOCHS} epochs by accuracy on the "
            "other 600; 6,000 test reviews in each language; mean of de, fr, jp",
            files=(*amazon.TRAIN.values(), *amazon.TEST.values()),
            score=score,
            trains=True,
            published="CMLM Table 4, encoder trained",
        )
    ]


def score(encoder: Encoder, data_dir: Path) -> dict:
    """Compute the accuracy for each language. English, the training language, is not in the main score."""
    reviews, labels = amazon.read_reviews(amazon.TRAIN.values(), data_dir)
    train, dev = ((_rows(reviews, rows), labels[rows]) for rows in amazon.train_dev_rows(labels))
    classifier, epoch = train_classifier(encoder, train, dev)
    accuracy = {
        language: classifier.accuracy(*amazon.read_reviews(amazon.tests_of(language), data_dir))
        for language in amazon.LANGUAGES
    }
    return amazon.summary(accuracy) | {
        "learning_rate": LEARNING_RATE,
        "epochs": EPOCHS,
        "chosen_epoch": epoch,
        "train_batch_size": BATCH_SIZE,
        "seed": SEED,
    }


def _rows(reviews: Columns, rows: np.ndarray) -> Columns:
    return {name: [values[row] for row in rows] for name, values in reviews.items()}


class ReviewClassifier(nn.Module):
    """A copy of an encoder with a linear layer on top; float32, so that small updates are not lost to rounding."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.model, head = (copy.deepcopy(module).float() for module in (encoder.model, encoder.head))
        self.encoder = Encoder(
            self.model,
            encoder.tokenizer,
            encoder.pooling,
            encoder.max_seq_length,
            head,
            encoder.prompt,
            encoder.truncate_dim,
        )
        self.head = self.encoder.head
        self.linear = nn.Linear(4 * encoder.dimension, 1, device=self.model.device)

    def forward(self, summaries: list[list[int]], texts: list[list[int]]) -> Tensor:
        """Compute (B,) logits for the token ids of B summaries and B texts; positive for a positive review."""
        features = pair_features(self.encoder.forward(summaries), self.encoder.forward(texts))  # (B, 4D)
        return self.linear(features).squeeze(1)

    @torch.inference_mode()
    def predict(self, reviews: Columns) -> np.ndarray:
        """Classify N reviews; returns (N,) bool, True for a positive review."""
        summary, text = np.split(self.encoder.encode(reviews["summary"] + reviews["text"]), 2)  # (N, D) each
        features = pair_features(torch.from_numpy(summary), torch.from_numpy(text))  # (N, 4D)
        return (self.linear(features.to(self.model.device)).squeeze(1) > 0).cpu().numpy()

    def accuracy(self, reviews: Columns, positive: np.ndarray) -> float:
        """Compute the share of N reviews whose class is `positive`, (N,)."""
        return float(np.mean(self.predict(reviews) == positive))


def train_classifier(
    encoder: Encoder, train: tuple[Columns, np.ndarray], dev: tuple[Columns, np.ndarray]
) -> tuple[ReviewClassifier, int]:
    """Train a copy of `encoder` to classify reviews; the random state of the caller is not changed.

    Args:
        train, dev: reviews and (N,) labels, True for a positive review.

    Returns:
        The classifier of the epoch with the best accuracy on dev, and which epoch that is, from 1.
    """
    best: tuple[float, int, dict] = (-1.0, 0, {})
    with torch.random.fork_rng():
        torch.manual_seed(SEED)  # initialises the linear layer, shuffles the rows and seeds dropout
        classifier = ReviewClassifier(encoder)
        optimizer = torch.optim.AdamW(classifier.parameters(), lr=LEARNING_RATE)
        for epoch in range(1, EPOCHS + 1):
            _train_epoch(classifier.train(), optimizer, *train)
            on_dev = classifier.eval().accuracy(*dev)
            if on_dev > best[0]:
                best = on_dev, epoch, copy.deepcopy(classifier.state_dict())
    classifier.load_state_dict(best[2])
    return classifier, best[1]


def _train_epoch(classifier: ReviewClassifier, optimizer, reviews: Columns, positive: np.ndarray) -> None:
    encoder = classifier.encoder
    summaries, texts = (encoder.tokenize(reviews[column]) for column in ("summary", "text"))
    labels = torch.tensor(positive, dtype=torch.float32, device=encoder.model.device)  # (N,)
    for rows in torch.randperm(len(labels)).split(BATCH_SIZE):
        logits = classifier([summaries[row] for row in rows], [texts[row] for row in rows])
        F.binary_cross_entropy_with_logits(logits, labels[rows.to(labels.device)]).backward()
        optimizer.step()
        optimizer.zero_grad()

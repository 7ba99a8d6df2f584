"""`amazon_zero_shot_tuned`: the encoder is trained together with the sentiment classifier on English reviews.

Lower half of CMLM Table 4; `amazon_zero_shot` is the upper half. A copy of the encoder is trained and the original is
not modified. Unlike other tasks this one uses the encoder itself, without the cache and without the transformations of
embeddings in `encoding.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mirror.evaluation.amazon import DOMAINS, LANGUAGES, ROWS, TARGETS, TEST, TRAIN, is_positive
from mirror.evaluation.task import Columns, Task
from mirror.modeling.encoder import Encoder
from mirror.modeling.pooling import pair_features


# The paper does not report these hyperparameters; they are common for fine-tuning BERT and were not tuned.
LEARNING_RATE = 2e-5
EPOCHS = 2
BATCH_SIZE = 32
SEED = 0


def tasks(data_dir: Path) -> list[Task]:
    """Return the only task of this family. It is in no group because it costs one training run per domain."""
    return [
        Task(
            name="amazon_zero_shot_tuned",
            metric="accuracy",
            protocol="encoder trained with a linear classifier on [u, v, |u-v|, u*v] of summary and text; one copy "
            f"per domain on 2,000 English reviews, AdamW at a constant learning rate of {LEARNING_RATE:g}, {EPOCHS} "
            f"epochs, batch size {BATCH_SIZE}, float32, not tuned; mean of three domains, then of de, fr, jp",
            files=(*TRAIN.values(), *TEST.values()),
            score=score,
            trains=True,
            published="CMLM Table 4, encoder trained",
        )
    ]


def score(encoder: Encoder, data_dir: Path) -> dict:
    """Compute the accuracy for each language and domain. English, the training language, is not in the main score."""
    by_domain: dict[str, dict[str, float]] = {language: {} for language in LANGUAGES}
    for domain in DOMAINS:
        reviews = TRAIN[domain].read(data_dir)
        classifier = train_classifier(encoder, reviews, is_positive(TRAIN[domain], data_dir))
        for language in LANGUAGES:
            file = TEST[language, domain]
            predicted = classifier.predict(file.read(data_dir))
            by_domain[language][domain] = float(np.mean(predicted == is_positive(file, data_dir)))
    accuracy = {language: float(np.mean(list(domains.values()))) for language, domains in by_domain.items()}
    return {
        "main_score": float(np.mean([accuracy[language] for language in TARGETS])),
        "num_examples": len(TARGETS) * len(DOMAINS) * ROWS[0],
        "accuracy": accuracy,
        "accuracy_by_domain": by_domain,
        "learning_rate": LEARNING_RATE,
        "epochs": EPOCHS,
        "train_batch_size": BATCH_SIZE,
        "seed": SEED,
    }


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


def train_classifier(encoder: Encoder, reviews: Columns, positive: Sequence[bool]) -> ReviewClassifier:
    """Train a copy of `encoder` to classify N reviews; the random state of the caller is not changed.

    Args:
        positive: (N,) labels, True for a positive review.
    """
    with torch.random.fork_rng():
        torch.manual_seed(SEED)  # initialises the linear layer, shuffles the rows and seeds dropout
        classifier = ReviewClassifier(encoder).train()
        optimizer = torch.optim.AdamW(classifier.parameters(), lr=LEARNING_RATE)
        summaries, texts = (encoder.tokenize(reviews[column]) for column in ("summary", "text"))
        labels = torch.tensor(positive, dtype=torch.float32, device=encoder.model.device)  # (N,)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(labels)).split(BATCH_SIZE):
                logits = classifier([summaries[row] for row in rows], [texts[row] for row in rows])
                F.binary_cross_entropy_with_logits(logits, labels[rows.to(labels.device)]).backward()
                optimizer.step()
                optimizer.zero_grad()
    return classifier.eval()

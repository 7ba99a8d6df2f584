"""Loss of a masked language model at a fraction of its cost: last layer and vocabulary only where they are needed.

Only masked positions are predicted. So the last layer computes queries, output and feed-forward there alone, which gives the
same loss. The loss compares each target with a sample of the vocabulary instead of all of it (Bengio & Senecal 2008; Jean et
al. 2015), which gives an estimate of it: frequent words and the targets of the batch are always in the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

from mirror.training.losses import info_nce


NEIGHBOR_TEMPERATURE = 0.05


@dataclass
class CandidateSampler:
    """Sampler of the part of the vocabulary that the targets of a batch are compared with."""

    frequent: np.ndarray  # word ids that are always candidates
    rare: np.ndarray  # the other word ids
    size: int  # number of candidates of a batch

    @classmethod
    def from_counts(cls, counts: np.ndarray, size: int) -> CandidateSampler:
        """Make the most frequent `size // 2` words candidates of every batch.

        Args:
            counts: how often each word occurs, (vocabulary,).
            size: number of candidates. 0, or the size of the vocabulary and more, is the whole vocabulary.
        """
        if not 0 < size < len(counts):
            return cls(np.arange(len(counts)), np.arange(0), len(counts))
        order = np.argsort(-counts, kind="stable")
        return cls(order[: size // 2], order[size // 2 :], size)

    def draw(self, targets: np.ndarray, rng: np.random.Generator) -> dict[str, Tensor]:
        """Draw the candidates of a batch.

        Args:
            targets: word ids to predict, (masked,).

        Returns:
            `candidates` (size,), word ids; `log_weights` (size,), the log of how many words each stands for; and `labels`
            (masked,), the index of each target among the candidates.
        """
        certain = np.concatenate([self.frequent, np.intersect1d(targets, self.rare)])
        left = np.setdiff1d(self.rare, targets)
        drawn = rng.choice(left, max(self.size - len(certain), min(1, len(left))), replace=False)
        candidates = np.concatenate([certain, drawn])
        log_weights = np.zeros(len(candidates), dtype=np.float32)
        log_weights[len(certain) :] = np.log(max(len(left), 1) / max(len(drawn), 1))
        order = np.argsort(candidates)
        labels = order[np.searchsorted(candidates, targets, sorter=order)]
        columns = {"candidates": candidates, "log_weights": log_weights, "labels": labels}
        return {name: torch.from_numpy(values) for name, values in columns.items()}


def pretraining_loss(
    model: BertForMaskedLM,
    input_ids,
    positions,
    candidates,
    log_weights,
    labels,
    bag=None,
    bag_weight: float = 0.0,
    neighbor_weight: float = 0.0,
) -> Tensor:
    """Return the mean cross-entropy of the masked words among the candidates, and up to two losses of whole rows.

    With `bag` the first token also predicts all words of its row, so that its vector represents the text (Ma et al. 2024,
    arXiv 2401.11248, have this head for passages). The mean over the rows, times `bag_weight`, is added. With
    `neighbor_weight` a model in training also predicts, by the mean of a row's vectors, which other row is the text beside it
    (Logeswaran & Lee 2018, QuickThought, with the `info_nce` of Mirror-BERT).

    Args:
        input_ids: (rows, length), without padding. With `neighbor_weight`, row i of the first half is the neighbor of row i
            of the second.
        positions: masked positions of each row, (rows, masked of a row).
        candidates: word ids, (candidates,).
        log_weights: (candidates,), added to the scores.
        labels: indices into `candidates`, (rows * masked of a row,).
        bag: the words of each row before masking as indices into `candidates`, (rows, words). -1 if not among them.
    """
    first = 0 if bag is None else 1
    if first:
        positions = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
    neighbors = 0.0
    if neighbor_weight and model.training:  # the rows of an evaluation are no pairs
        states = hidden_at(model, input_ids)
        neighbors = neighbor_weight * info_nce(*states.mean(dim=1).chunk(2), NEIGHBOR_TEMPERATURE)
        states = at(positions, states)
    else:
        states = hidden_at(model, input_ids, positions)
    hidden = model.cls.predictions.transform(states)
    words = model.get_output_embeddings()
    scores = F.linear(hidden, words.weight[candidates]).float() + (words.bias[candidates] + log_weights)
    loss = F.cross_entropy(scores[:, first:].flatten(0, 1), labels)  # of (rows * masked of a row, candidates)
    bags = 0.0 if bag is None else bag_weight * bag_of_words_loss(scores[:, 0], bag)
    return loss + bags + neighbors


def bag_of_words_loss(scores: Tensor, bag: Tensor) -> Tensor:
    """Return the mean over rows of the mean cross-entropy of the words of a row.

    Args:
        scores: (rows, candidates)
        bag: indices of candidates, (rows, words). -1 is left out.
    """
    known = bag >= 0
    losses = -scores.log_softmax(-1).gather(1, bag.clamp(min=0)) * known
    return (losses.sum(1) / known.sum(1).clamp(min=1)).mean()


def hidden_at(model: BertForMaskedLM, input_ids: Tensor, positions: Tensor | None = None) -> Tensor:
    """Return hidden states of the last layer at some positions only, equal to those of `model.bert`, without padding.

    Args:
        input_ids: (rows, length)
        positions: (rows, masked). Default: all of them.

    Returns:
        (rows, masked, H)
    """
    hidden = model.bert.embeddings(input_ids)
    *layers, last = model.bert.encoder.layer
    for layer in layers:
        hidden = apply_layer(layer, hidden, hidden)
    return apply_layer(last, hidden if positions is None else at(positions, hidden), hidden)


def at(positions: Tensor, states: Tensor) -> Tensor:
    """Return `states` (rows, length, H) at `positions` (rows, positions): (rows, positions, H)."""
    return states.gather(1, positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def apply_layer(layer: BertLayer, hidden: Tensor, context: Tensor) -> Tensor:
    """Apply a layer to the positions in `hidden` (rows, queries, H), which attend to all of `context` (rows, length, H).

    For rows this short, plain products are faster on a CPU than PyTorch's fused attention, above all backwards.
    """
    attention = layer.attention.self

    def heads(states: Tensor) -> Tensor:  # (rows, heads, positions, head width)
        return states.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)

    query, key, value = heads(attention.query(hidden)), heads(attention.key(context)), heads(attention.value(context))
    scores = query @ key.transpose(-1, -2) * attention.attention_head_size**-0.5
    attended = attention.dropout(scores.softmax(-1)).to(value.dtype) @ value
    hidden = layer.attention.output(attended.transpose(1, 2).flatten(2), hidden)
    return layer.output(layer.intermediate(hidden), hidden)

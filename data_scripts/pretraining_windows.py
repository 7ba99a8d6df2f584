"""Batches of windows of running text for pretraining. Item i of the dataset is a function of the seed and i alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertTokenizerFast

from data_scripts.predicted_words import CandidateSampler


# Sequence length -> share of the steps. Most texts that users encode are short, so most sequences are.
LENGTHS = {16: 0.2, 32: 0.4, 64: 0.3, 128: 0.1}


@dataclass
class Corpus:
    """All texts as one sequence of token ids, and the positions at which sentences start."""

    ids: np.ndarray  # (tokens,) uint16
    starts: np.ndarray  # (sentences,) int64

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        return cls(np.load(folder / "ids.npy"), np.load(folder / "starts.npy"))

    def save(self, folder: Path) -> None:
        """Write both files. `starts.npy` is renamed into place last, so if it exists the folder is complete."""
        np.save(folder / "ids.npy", self.ids)
        np.save(folder / "_starts.npy", self.starts)
        (folder / "_starts.npy").replace(folder / "starts.npy")


class WindowBatches(Dataset):
    """Dataset of batches: item i is a batch of masked windows of one length, a function of (seed, i).

    Args:
        corpus: windows begin at its sentence starts.
        sampler: of the vocabulary.
        mask_probability: share of the tokens to predict, the same number in each row.
        mask_all: replace each of them by [MASK] instead of 80%.
        with_bag: also return the words of each row, which the first token predicts.
        with_neighbors: fill the second half of the rows with the text that follows that of the first half.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: BertTokenizerFast,
        sampler: CandidateSampler,
        tokens: int,
        mask_probability: float,
        seed: int,
        steps: int,
        mask_all: bool = False,
        with_bag: bool = False,
        with_neighbors: bool = False,
    ):
        self.corpus, self.tokenizer, self.sampler, self.tokens = corpus, tokenizer, sampler, tokens
        self.mask_probability, self.seed, self.steps = mask_probability, seed, steps
        self.mask_all, self.with_bag, self.with_neighbors = mask_all, with_bag, with_neighbors

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng([self.seed, index])
        length = int(rng.choice(list(LENGTHS), p=list(LENGTHS.values())))
        rows = self.tokens // length
        starts = (
            self._pairs(rows // 2, length - 2, rng) if self.with_neighbors else rng.choice(self.corpus.starts, rows)
        )
        ids = np.empty((len(starts), length), dtype=np.int64)
        ids[:, 0], ids[:, -1] = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        words = self.corpus.ids[starts[:, None] + np.arange(length - 2)]
        ids[:, 1:-1] = words
        positions, targets = self._mask(ids, rng)
        batch = {"input_ids": torch.from_numpy(ids), "positions": torch.from_numpy(positions)}
        batch |= self.sampler.draw(targets.reshape(-1), rng)
        return batch | ({"bag": self._bag(words, batch["candidates"])} if self.with_bag else {})

    def _pairs(self, count: int, words: int, rng: np.random.Generator) -> np.ndarray:
        """Draw starts of windows, and for each of them the first sentence start behind its words: (2 count,)."""
        starts = self.corpus.starts
        first = rng.choice(starts[: np.searchsorted(starts, starts[-1] - words, side="right")], count)
        return np.concatenate([first, starts[np.searchsorted(starts, first + words)]])

    def _bag(self, words: np.ndarray, candidates: torch.Tensor) -> torch.Tensor:
        """Return indices of words among the candidates, -1 for other words and special tokens. Both are (rows, words)."""
        index = np.full(len(self.tokenizer), -1)
        index[candidates] = np.arange(len(candidates))
        index[self.tokenizer.all_special_ids] = -1
        return torch.from_numpy(index[words])

    def _mask(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mask a fixed number of tokens of each row as in BERT: 80% become [MASK], 10% a random token, 10% are unchanged.

        Args:
            ids: (rows, length), modified in place.

        Returns:
            Positions and targets of the prediction, both (rows, masked).
        """
        noise = rng.random(ids.shape)
        noise[np.isin(ids, self.tokenizer.all_special_ids)] = 2.0
        masked = max(1, round(self.mask_probability * ids.shape[1]))
        positions = np.argpartition(noise, masked, axis=1)[:, :masked]
        targets = np.take_along_axis(ids, positions, axis=1)
        choice = np.zeros(targets.shape) if self.mask_all else rng.random(targets.shape)
        random_ids = rng.integers(5, len(self.tokenizer), targets.shape)
        shown = np.where(choice < 0.8, self.tokenizer.mask_token_id, np.where(choice < 0.9, random_ids, targets))
        np.put_along_axis(ids, positions, shown, axis=1)
        return positions, targets

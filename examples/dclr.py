"""DCLR's negatives (Zhou et al., ACL 2022) as a loss: noise vectors as further negatives, and no likely paraphrases among them.

    python examples/dclr.py my_texts.txt out/dclr

docs/augmentation.md measured both parts: no gain on any base. As in the paper, noise is new at every step. Unlike there it is not moved by
gradient ascent, and the encoder in training is its own guide to which negatives are false.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from mirror import MirrorConfig, MirrorTrainer, info_nce, load_corpus


class DCLR(nn.Module):
    """InfoNCE with `noise` Gaussian negatives, without the negatives whose cosine with the anchor is above `phi`."""

    def __init__(self, temperature: float = 0.05, noise: int = 200, phi: float = 0.9):
        super().__init__()
        self.temperature, self.noise, self.phi = temperature, noise, phi
        self.register_buffer("step", torch.zeros((), dtype=torch.long))  # a buffer is stored in the checkpoints

    def forward(self, first: Tensor, second: Tensor, **gathered) -> Tensor:
        # A generator of the step's own: the same noise on all processes and after a resume, and no other random state changes.
        generator = torch.Generator().manual_seed(self.step.item())
        self.step += 1
        noise = torch.randn(self.noise, first.shape[1], generator=generator).to(first.device)
        return info_nce(first, second, self.temperature, negatives=noise, false_negative_cosine=self.phi, **gathered)


def main(texts: str, output_dir: str, model: str = "sentence-transformers/all-MiniLM-L6-v2", **settings) -> None:
    trainer = MirrorTrainer(model, MirrorConfig(output_dir=output_dir, **settings), load_corpus(texts), loss=DCLR())
    trainer.train()
    trainer.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Train an encoder with a loss and a noise of your own.

python examples/own_loss_and_noise.py my_texts.txt out/own
"""

from __future__ import annotations

import sys

import torch.nn.functional as F
from torch import Tensor

from mirror import MirrorConfig, MirrorTrainer, load_corpus


def first_letters(text: str, rng) -> str:
    """Return the text with one word cut to its first letter. `rng` is a NumPy generator of this text and epoch."""
    words = text.split()
    place = int(rng.integers(len(words)))
    return " ".join([*words[:place], words[place][0], *words[place + 1 :]])


def triplet_margin(first: Tensor, second: Tensor, margin: float = 0.3) -> Tensor:
    """Return the mean distance by which each text is closer to the hardest other text than to its second view, (B, D) each."""
    cosines = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T  # (B, B)
    others = cosines - 2 * cosines.new_ones(len(cosines)).diag()  # without the diagonal, the second views
    return F.relu(margin + others.amax(dim=1) - cosines.diagonal()).mean()


def main(texts: str, output_dir: str, model: str = "sentence-transformers/all-MiniLM-L6-v2", **settings) -> None:
    config = MirrorConfig(output_dir=output_dir, augmentation=first_letters, **settings)
    trainer = MirrorTrainer(model, config, load_corpus(texts), loss=triplet_margin)
    trainer.train()
    trainer.finish()  # saves, verifies, writes the record and the card


if __name__ == "__main__":
    main(*sys.argv[1:])

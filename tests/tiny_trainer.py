"""A trainer on a tiny model, for the tests of training."""

from __future__ import annotations

import torch
from datasets import Dataset
from transformers import TrainerCallback

from mirror.data.corpus import Corpus
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


def make_trainer(
    model_folder: str, texts: list[str], output_dir, score=None, streaming: bool = False, **flags
) -> MirrorTrainer:
    """The defaults are float32, batch 20, two epochs; repeated texts are kept."""
    defaults = {
        "bf16": False,
        "per_device_train_batch_size": 20,
        "num_train_epochs": 2,
        "pooling": "mean",
        "max_seq_length": 24,
        "span_mask_min_chars": 10,
        "disable_tqdm": True,
        "seed": 5,
    }
    config = MirrorConfig(output_dir=str(output_dir), **defaults | flags)
    rows = Dataset.from_dict({"text": texts})
    corpus = Corpus(rows.to_iterable_dataset() if streaming else rows)
    return MirrorTrainer(model=model_folder, args=config, train_dataset=corpus, score=score)


class At(TrainerCallback):
    """Does something at the end of one step, before the step's checkpoint is written."""

    def __init__(self, step: int, act):
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


def weights(trainer: MirrorTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}

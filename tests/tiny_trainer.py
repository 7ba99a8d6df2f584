"""A trainer on a tiny model, for the tests of training."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback

from mirror.data.cleaning import Corpus
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


def make_trainer(
    model_folder: str, texts: list[str], output_dir, score=None, streaming: bool = False, loss_module=None, **flags
) -> MirrorTrainer:
    """Return a trainer in float32 with batch 20 and two epochs. Repeated texts are kept.

    Args:
        loss_module: the argument `loss` of the trainer, or a class of it.
    """
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
    loss = loss_module() if isinstance(loss_module, type) else loss_module
    return MirrorTrainer(model=model_folder, args=config, train_dataset=corpus, score=score, loss=loss)


class At(TrainerCallback):
    """Does something at the end of one step, before the step's checkpoint is written."""

    def __init__(self, step: int, act):
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


def run_whole_and_resumed(
    model_folder: str, texts: list[str], folder: Path, **flags
) -> tuple[MirrorTrainer, MirrorTrainer]:
    """Trainers after nine steps in `folder / "whole"`, and after the same resumed from step 4 (`save_steps`). Their weights are equal bits."""
    flags = {"save_steps": 4} | flags | {"save_strategy": "steps", "learning_rate": 1e-3, "max_steps": 9}
    whole = make_trainer(model_folder, texts, folder / "whole", **flags)
    start = weights(whole)
    whole.train()
    resumed = make_trainer(model_folder, texts, folder / "again", **flags)
    resumed.train(resume_from_checkpoint=str(folder / "whole" / f"checkpoint-{flags['save_steps']}"))
    assert resumed.state.global_step == whole.state.global_step == 9
    after, again = weights(whole), weights(resumed)
    assert any(not torch.equal(after[name], value) for name, value in start.items())
    for name, value in after.items():
        assert torch.equal(again[name], value), name
    return whole, resumed


def weights(trainer: MirrorTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}

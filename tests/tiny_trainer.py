"""A trainer on a tiny model, for the tests of training."""

from __future__ import annotations

from datasets import Dataset

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

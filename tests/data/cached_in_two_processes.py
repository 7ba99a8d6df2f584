"""The program of each of two processes, the second of which has to read the cache that the first one wrote."""

from __future__ import annotations

import sys
from pathlib import Path

from mirror.common.distributed import shutdown
from mirror.data.corpus import load_corpus
from mirror.data.views import ViewTokenizer
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


def main(model: str, folder: str) -> None:
    """Train two epochs and write down how many batches of texts this process tokenized."""
    batches = []
    tokenize = ViewTokenizer.__call__
    ViewTokenizer.__call__ = lambda self, views: batches.append(1) or tokenize(self, views)
    config = MirrorConfig(
        output_dir=f"{folder}/out", per_device_train_batch_size=20, num_train_epochs=2, bf16=False, disable_tqdm=True
    )
    with config.main_process_first():
        corpus = load_corpus(f"{folder}/texts.txt")
    trainer = MirrorTrainer(model, config, corpus)
    trainer.train()
    (Path(folder) / f"batches-{config.process_index}").write_text(str(len(batches)))
    shutdown(trainer.accelerator)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Trains a tiny model, always from its last complete checkpoint: what the tests of interruptions kill and start again."""

from __future__ import annotations

import sys
from pathlib import Path

from mirror.common.distributed import shutdown
from mirror.training.checkpoints import last_complete_checkpoint
from tests.tiny_trainer import make_trainer


def main(
    model_folder: str, texts: str, output_dir: str, steps: str, save_steps: str = "1", workers: str = "0"
) -> None:
    options = {"max_steps": int(steps), "dataloader_num_workers": int(workers)}
    options |= {"save_strategy": "steps", "save_steps": int(save_steps), "save_total_limit": 2}
    lines = Path(texts).read_text(encoding="utf-8").splitlines()
    trainer = make_trainer(model_folder, lines, output_dir, learning_rate=1e-3, **options)
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(output_dir))
    trainer.save_model()
    shutdown(trainer.accelerator)


if __name__ == "__main__":
    main(*sys.argv[1:])

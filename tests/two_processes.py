"""Trains in each of two processes, for the tests that two processes do what one does."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from mirror.common.distributed import shutdown
from tests.tiny_trainer import make_trainer


def value_of(text: str):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def main(model_folder: str, folder: str, *flags: str) -> None:
    texts = (Path(folder) / "texts.txt").read_text().splitlines()
    options = {key: value_of(value) for key, _, value in (flag.partition("=") for flag in flags)}
    resume = options.pop("resume", None)
    trainer = make_trainer(
        *(model_folder, texts, Path(folder) / "two"), per_device_train_batch_size=10, gather_negatives=True, **options
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    shutdown(trainer.accelerator)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Script that each of two processes runs in the test of distributed encoding."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from accelerate import PartialState

from mirror.common.distributed import exit_process
from mirror.evaluation.encoding import EncodeSettings, make_encode
from mirror.modeling.encoder import Encoder


def main(model_folder: str, folder: str) -> None:
    state = PartialState(cpu=True)
    encoder = Encoder.from_pretrained(model_folder, "mean")
    encoded: list[str] = []
    original = encoder.encode
    encoder.encode = lambda texts, **options: encoded.extend(texts) or original(texts, **options)
    encode = make_encode(encoder, EncodeSettings())
    texts = (Path(folder) / "texts.txt").read_text().splitlines()
    vectors, single = encode(texts), encode(texts[:1])
    np.savez(Path(folder) / f"rank{state.process_index}.npz", vectors=vectors, single=single, encoded=len(encoded))
    state.wait_for_everyone()
    exit_process(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

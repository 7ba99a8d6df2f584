"""Files of a checkpoint can be read by whom the umask allows."""

from __future__ import annotations

import os

import pytest

from mirror.tools.whitening import transform_checkpoint
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


@pytest.mark.parametrize("umask", [0o027, pytest.param(0o002, marks=pytest.mark.slow)])
def test_every_file_of_a_run_follows_the_umask(bert_folder, sentences, tmp_path, umask):
    before = os.umask(umask)
    try:
        config = MirrorConfig(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=16,
            max_steps=2,
            save_strategy="steps",
            save_steps=1,
            projection_head=True,
        )
        trainer = MirrorTrainer(bert_folder, config, sentences[:60])
        trainer.train()
        trainer.finish()
        transform_checkpoint(str(tmp_path / "out"), str(tmp_path / "whitened"), sentences[:60], 1)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.suffix == ".safetensors" for path in files) >= 4
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {oct(0o666 & ~umask)}

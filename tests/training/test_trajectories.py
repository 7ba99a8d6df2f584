"""Losses of 20 steps on the embedded model, equal to stored ones: a refactoring changes no bit.

    python -m tests.training.test_trajectories      # stores them again, where a change of the numbers is wanted

Bits depend on the processor and on the versions of the libraries, which are stored too: elsewhere only the first steps are
compared, and roughly.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from mirror.assets import EMBEDDED_MODEL
from mirror.cmlm.trainer import CMLMConfig, CMLMTrainer
from mirror.training.config import MirrorConfig
from mirror.training.record import hardware, versions
from mirror.training.trainer import MirrorTrainer
from tests.conftest import make_sentences


STORED = Path(__file__).with_name("trajectories.json")
SEEDS = (1, 2)
METHODS = {
    "word": {"level": "word"},
    "phrase": {"level": "phrase"},
    "sentence": {"level": "sentence"},
    "drophead": {"drophead_rate": 0.2},
    "multi_similarity": {"loss": "multi_similarity"},
    "gradient_cache": {"mini_batch_size": 10},
}
RUNS = {
    f"{name} {packing}": {**flags, "packing": packing} for name, flags in METHODS.items() for packing in ("on", "off")
}
# Eq. (1) of CMLM as printed
RUNS |= {
    f"cmlm {stage}": {"stage": stage, "normalize_embeddings": False} for stage in ("cmlm", "cmlm_bitext", "bitext")
}
COMMON = {
    "bf16": False,
    "per_device_train_batch_size": 24,
    "max_steps": 20,
    "logging_steps": 1,
    "disable_tqdm": True,
    "report_to": [],
}


def make_trainer(flags: dict, seed: int, output_dir: str) -> MirrorTrainer | CMLMTrainer:
    texts, flags = make_sentences(), COMMON | {"seed": seed, "output_dir": output_dir} | flags
    if "stage" not in flags:
        return MirrorTrainer(str(EMBEDDED_MODEL), MirrorConfig(**flags), texts)
    documents = [". ".join(texts[start : start + 4]) + "." for start in range(0, len(texts), 4)]
    pairs = Dataset.from_dict({"text": texts[:-1], "text_pair": texts[1:]})
    config = CMLMConfig(**flags | {"max_seq_length": 64, "per_device_train_batch_size": 12})
    main = pairs if config.stage == "bitext" else documents
    return CMLMTrainer(str(EMBEDDED_MODEL), config, main, pairs if config.stage == "cmlm_bitext" else None)


def trajectory(name: str, seed: int) -> list[float]:
    """The loss of every step, on one thread."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(RUNS[name], seed, folder)
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def environment() -> dict:
    torch.set_num_threads(1)
    return {"hardware": hardware(), "versions": versions()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", RUNS)
def test_losses_are_the_stored_ones(name, seed):
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    losses, expected = trajectory(name, seed), stored["losses"][f"{name} {seed}"]
    assert len(expected) == 20 and expected[0] != expected[-1]
    if {key: stored[key] for key in ("hardware", "versions")} == environment():
        assert losses == expected
    else:
        assert losses[:5] == pytest.approx(expected[:5], rel=0.02)


if __name__ == "__main__":
    losses = {f"{name} {seed}": trajectory(name, seed) for name in RUNS for seed in SEEDS}
    STORED.write_text(json.dumps(environment() | {"losses": losses}, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{STORED}: {len(losses)} trajectories\n")

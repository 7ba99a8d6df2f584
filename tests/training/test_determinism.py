"""Tests that the same command twice on one machine gives the same weights and scores, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.evaluation.folder import pairs, write_tsv


ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *flags) -> None:
    command = [sys.executable, script, *map(str, flags)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def train_and_score(bert_folder: str, folder: Path, out: Path, *flags: str) -> tuple[dict[str, torch.Tensor], dict]:
    run(
        *("run_mirror.py", "--model_name_or_path", bert_folder, "--train_file", folder / "texts.txt"),
        *("--output_dir", out, "--max_seq_length", 24, "--per_device_train_batch_size", 20, "--learning_rate", 1e-3),
        *("--drophead_rate", 0.2, "--seed", 7, *flags),
    )
    run(
        *("run_eval.py", "--model_name_or_path", out, "--tasks", "rg65", "--data_dir", folder),
        *("--output_dir", out / "scores"),
    )
    results = json.loads((out / "scores" / "results.json").read_text())
    for task in results["tasks"].values():
        del task["seconds"]
    return load_file(out / "model.safetensors"), results


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--full_determinism"]], ids=["default", "full_determinism"])
def test_two_runs_are_one(bert_folder, sentences, flags, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    rows = [
        (first, second, score)
        for (_, _, score), first, second in zip(pairs(65, 4.0), sentences, sentences[65:], strict=False)
    ]
    write_tsv(tmp_path / "wordsim/rg65.tsv", ("word1", "word2", "score"), rows)
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    first, second = (train_and_score(bert_folder, tmp_path, tmp_path / name / "encoder", *flags) for name in "ab")
    before = load_file(Path(bert_folder) / "model.safetensors")
    moved = [(first[0][name] - before[f"bert.{name}"]).abs().max() for name in first[0] if f"bert.{name}" in before]
    assert len(moved) > 30 and max(moved) > 1e-3  # the base has no pooler, the encoder one of its own
    assert all(torch.equal(value, second[0][name]) for name, value in first[0].items())
    assert first[1]["tasks"] and first[1] == second[1] | {"model_name_or_path": first[1]["model_name_or_path"]}

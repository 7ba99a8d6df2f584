"""The report for a GPU, run on the CPU: the program is right before the first GPU sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_proofs, gpu_report
from benchmarks.gpu_proofs import attention_ways, packed_equals_padded, relative, row


ROOT = Path(__file__).resolve().parents[1]


def test_a_difference_above_the_tolerance_or_none_at_all_is_wrong():
    assert row("x", 0.1, 0.2)["outcome"] == "ok"
    assert row("x", 0.3, 0.2)["outcome"] == row("x", float("nan"), 0.2)["outcome"] == "WRONG"
    one = torch.ones(4)
    assert relative([one * 1.1], [one]) == pytest.approx(0.1)


@pytest.mark.slow
def test_packed_is_padded_in_every_precision_on_six_architectures():
    rows = packed_equals_padded()
    assert len(rows) == 6 * 3
    assert {found["outcome"] for found in rows} == {"ok"}, rows


def test_a_wrong_packed_row_is_seen(monkeypatch):
    monkeypatch.setattr(gpu_proofs, "MODELS", {"BERT": gpu_proofs.MODELS["BERT"]})
    monkeypatch.setattr(
        gpu_proofs, "packed_vectors", lambda model, texts: gpu_proofs.padded_vectors(model, texts[::-1])
    )
    assert {found["outcome"] for found in packed_equals_padded()} == {"WRONG"}


def test_a_way_of_attention_that_is_not_here_is_a_row_with_its_reason():
    rows = attention_ways(texts=6, heads=2, width=8, repeats=1)
    outcomes = {(found["check"].split(", ")[1], found["outcome"]) for found in rows}
    others = {"flash-attn", "kernels", "torch.nn.attention.varlen"}
    assert outcomes == {("padded SDPA", "ok"), *((name, "FAILED") for name in others)}
    assert any("needs an Ampere GPU" in found["detail"] for found in rows)


@pytest.mark.slow
@pytest.mark.parametrize("proof", ["fp16-overflow", "resume"])
def test_training_goes_on_after_an_overflow_and_after_an_interruption(proof):
    rows = gpu_proofs.PROOFS[proof]()
    assert {found["outcome"] for found in rows} == {"ok"}, rows


def test_the_tables_show_what_failed_and_the_share_of_the_limit(tmp_path, capsys):
    args = gpu_report.parse_arguments(["--output_dir", str(tmp_path), "--models", "BERT-base"])
    facts = {"gpu": True, "machine": "1 x A card", "tokens": {"BERT-base": 10.0}}
    results = {
        "resume": {"failed": "exit status 1: no | luck"},
        "fp16-overflow": {"rows": [row("overflow", 0.1, 0.2)]},
        "BERT-base/200/matmul-bf16": {"gflops": 6.0, "flops_per_token": 1e6},
        "BERT-base/200/sentence-transformers-flash-bf16": {"step_seconds": 8.0, "peak_gb": 2.0},
        "BERT-base/200/ours-bf16": {"step_seconds": 4.0, "peak_gb": 1.0},
        "BERT-base/4096/ours-cached-bf16": {"failed": "out of memory"},
    }
    gpu_report.write(args, facts, results)
    text = (tmp_path / "gpu_report.md").read_text()
    assert text in capsys.readouterr().out
    assert "| resume | FAILED | exit status 1: no \\| luck |" in text and "| overflow | ok |" in text
    # 200 texts x 2 views x 10 tokens in 4 s are 1,000 tokens a second of 3 x 1 MFLOP each: 3 of 6 GFLOP/s
    assert "| BERT-base | 200 | ours-bf16 | 200.00 | 50 | 1,000 | 50% | 1.00 | 2.00x |" in text
    assert "| BERT-base | 4096 | ours-cached-bf16 | out of memory |" in text
    assert json.loads((tmp_path / "gpu_report.json").read_text())["facts"] == facts


def test_every_row_of_a_table_has_as_many_cells_as_its_head(tmp_path):
    args = gpu_report.parse_arguments(["--output_dir", str(tmp_path)])
    names = [*gpu_report.PROOFS, *gpu_report.measurements(args, gpu=True)]
    assert len(names) == len(set(names)) == 4 + 2 * (1 + 5 + 4)
    facts = {"gpu": False, "machine": "a CPU", "tokens": {}}
    gpu_report.write(args, facts, {name: {"failed": "why"} for name in names})
    for table in (tmp_path / "gpu_report.md").read_text().split("\n\n"):
        assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) <= 1
    assert "No GPU here" in (tmp_path / "gpu_report.md").read_text()


def test_no_part_is_started_after_the_last_minute(capsys):
    assert gpu_report.attempt("resume", [], deadline=0) == {"failed": "left out: the --minutes are over"}
    assert "resume: left out" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("model", gpu_report.MODELS)
def test_the_models_of_both_sizes_train(model, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])
    args = Namespace(work=str(tmp_path), models=gpu_report.MODELS)
    facts = gpu_report.make_inputs(args)
    assert not facts["gpu"] and facts["tokens"][model] > 5
    found = gpu_report.measure(f"{model}/16/ours-cached-bf16", args)
    assert found["step_seconds"] > 0
    settings = gpu_report.training_arguments(args, model, 200)
    assert (settings.steps + settings.warmup_steps) * settings.batch_size == gpu_report.SENTENCES


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_whole_command(processes, tmp_path):
    command = [sys.executable, "benchmarks/gpu_report.py", "--output_dir", str(tmp_path), "--minutes", "20"]
    command += ["--processes", str(processes), "--models", "BERT-base"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WRONG" not in done.stdout
    reasons = [line for line in done.stdout.splitlines() if "FAILED" in line]
    known = ("needs an Ampere GPU", "has no kernel for a CPU", "on accelerators only")
    assert all(any(reason in line for reason in known) for line in reasons), reasons

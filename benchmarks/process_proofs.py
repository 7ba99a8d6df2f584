"""What must hold with several processes, on NCCL where there are GPUs: the list in docs/scaling.md."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.gpu_proofs import Row, failing_as_a_row, relative, row
from benchmarks.stand_in import made_up_sentences, make_model


ROOT = Path(__file__).resolve().parents[1]
BATCH, ROWS = 24, 240
TOLERANCES = {"loss": 1e-2, "weights": 1e-3}  # bfloat16 rounds a batch of half the size otherwise


def several_processes(processes: int, work: Path) -> list[Row]:
    """Train once on one process, then on `processes` in every way, and compare loss and weights; encode on several."""
    texts = list(dict.fromkeys(made_up_sentences(2 * ROWS)))[:ROWS]
    (work / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    make_model(work / "model", texts, layers=2, width=64)
    rows: list[Row] = []
    launched(work, "one", [], "--per_device_train_batch_size", BATCH)
    data_parallel = "multi_gpu_bf16.yaml" if torch.cuda.is_available() else "cpu_2proc.yaml"
    ways = {
        "gathered negatives": (data_parallel, [], []),
        "gathered negatives and gradient caching": (data_parallel, [], ["--mini_batch_size", "5"]),
        "FSDP": ("fsdp.yaml", ["--fsdp_transformer_layer_cls_to_wrap", "BertLayer"], []),
        "DeepSpeed ZeRO-2": ("deepspeed_zero2.yaml", [], []),
    }
    for name, (configuration, launcher, flags) in ways.items():
        check = f"{processes} processes = one, {name}"
        with failing_as_a_row(rows, check):
            check_accelerator(configuration)
            several = [f"accelerate_configs/{configuration}", "--num_processes", str(processes), *launcher]
            flags = [*flags, "--gather_negatives", "--per_device_train_batch_size", BATCH // processes]
            folder = name.replace(" ", "-")
            launched(work, folder, several, *flags)
            rows.extend(same_training(check, work / "one", work / folder))
            rows.append(resumed(f"{name}: resumed = not interrupted", work, folder, several, *flags))
    rows.extend(encoded(processes, work, len(texts)))
    return rows


def check_accelerator(configuration: str) -> None:
    if configuration in ("fsdp.yaml", "deepspeed_zero2.yaml") and not torch.cuda.is_available():
        raise RuntimeError("accelerate sets this up on accelerators only")


def launched(work: Path, name: str, launcher: list[str], *flags) -> None:
    """Train, on several processes with the `launcher` arguments of accelerate; all runs have one global batch and no dropout.

    Raises:
        RuntimeError: it failed; the message is the first error that it wrote.
    """
    start = ["-m", "accelerate.commands.launch", "--config_file", *launcher] if launcher else []
    run(
        sys.executable, *start, "run_mirror.py", "--model_name_or_path", work / "model", "--train_file", work / "texts.txt",
        "--output_dir", work / name, "--num_train_epochs", 1, "--dropout_rate", 0, "--validation_samples", 0,
        "--near_duplicates", "off", "--keep_duplicates", "--disable_tqdm", "true", "--save_strategy", "steps",
        "--save_steps", ROWS // BATCH // 2, *flags,
    )  # fmt: skip


def run(*command) -> None:
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "rror" in line] or ["no message"]
        raise RuntimeError(f"exit status {done.returncode}: {said[0]}")


def same_training(check: str, one: Path, several: Path) -> list[Row]:
    losses = [
        json.loads((folder / "train_results.json").read_text())["metrics"]["train_loss"] for folder in (one, several)
    ]
    first, second = (load_file(folder / "model.safetensors") for folder in (one, several))
    names = sorted(first)
    weights = relative([second[name] for name in names], [first[name] for name in names])
    error = abs(losses[1] - losses[0]) / max(abs(losses[0]), math.ulp(1))
    return [row(f"{check}: loss", error, TOLERANCES["loss"]), row(f"{check}: weights", weights, TOLERANCES["weights"])]


def resumed(check: str, work: Path, name: str, launcher: list[str], *flags) -> Row:
    """Delete all that came after the middle of a run, go on from there, and compare."""
    expected = load_file(work / name / "model.safetensors")
    shutil.rmtree(work / name / f"checkpoint-{ROWS // BATCH}")
    (work / name / "model.safetensors").unlink()
    launched(work, name, launcher, *flags, "--resume_from_checkpoint", "auto")
    found = load_file(work / name / "model.safetensors")
    return row(check, relative(*([tensors[key] for key in sorted(expected)] for tensors in (found, expected))), 0.0)


def encoded(processes: int, work: Path, count: int) -> list[Row]:
    """Every text has one vector, whichever process encoded it."""
    import pyarrow.dataset

    rows: list[Row] = []
    check = f"run_encode.py on {processes} processes: every row once"
    with failing_as_a_row(rows, check):
        run(
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "run_encode.py",
            "--model_name_or_path", work / "one", "--input_file", work / "texts.txt", "--output_dir", work / "vectors",
            "--shard_rows", 20,
        )  # fmt: skip
        found = pyarrow.dataset.dataset(work / "vectors", format="parquet").to_table()["row"].to_pylist()
        right = found == list(range(count))
        rows.append({"check": check, "outcome": "ok" if right else "WRONG", "detail": f"{len(found)} of {count}"})
    return rows

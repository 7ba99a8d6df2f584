"""What a run is: its flags, the model it starts from, its texts, its processes. A checkpoint is resumed by the same run only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset
from torch import nn

from mirror.common.atomic_files import atomic_write_text
from mirror.common.errors import InputError


FILE = "run_identity.json"
READ_ROWS = 10_000  # rows in memory at once
STREAMED_ROWS = 1000  # of a stream, which has no end
# Flags by how they begin that change nothing in the weights, or (files, model) whose content is compared.
NOT_COMPARED = (
    "data_dir",
    "dataloader_num_workers",
    "dataloader_persistent_workers",
    "dataloader_pin_memory",
    "dataloader_prefetch_factor",
    "ddp_",
    "disable_tqdm",
    "eval_",
    "greater_is_better",
    "hub_",
    "load_best_model_at_end",
    "log_",
    "logging_",
    "metric_for_best_model",
    "model_name_or_path",
    "per_device_eval_batch_size",
    "preprocessing_num_workers",
    "project",
    "push_to_hub",
    "report_to",
    "resume_from_checkpoint",
    "run_name",
    "save_",
    "select_by",
    "trackio_",
)
FILES = ("train_file", "bitext_file", "nli_file")
LENGTHS = ("max_steps", "num_train_epochs")  # of a training at a constant rate, which may go on for longer


def run_identity(settings: dict, model: str, rows: Iterable[Dataset | IterableDataset], processes: int) -> dict:
    """What is compared when a run is resumed, as plain data.

    Args:
        settings: all flags, resolved (`mirror.training.run_record.collect_settings`).
        model: digest of the weights before the first step.
        rows: what is trained on.
    """
    return {
        "settings": json.loads(json.dumps(settings, default=str)),
        "model": model,
        "texts": digest_of_rows(rows),
        "processes": processes,
    }


def save_identity(identity: dict, folder: str | Path) -> None:
    atomic_write_text(Path(folder) / FILE, json.dumps(identity, indent=2) + "\n")


def check_identity(identity: dict, folder: str) -> None:
    """Refuse to resume from the checkpoint of another run.

    Raises:
        InputError: names every difference.
    """
    try:
        stored = json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))
        found = differences(stored, identity)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder}: no readable {FILE}, which every checkpoint of this project has") from error
    if found:
        raise InputError(
            f"--resume_from_checkpoint: {folder} is of another run ({', '.join(found)}); give what that run had, or "
            "--force to go on with the change"
        )


def differences(stored: dict, now: dict) -> list[str]:
    """What differs between two identities, in words."""
    before, after = stored["settings"], now["settings"]
    skipped = (*NOT_COMPARED, *FILES)
    if after.get("lr_scheduler_type") == "constant":
        skipped += LENGTHS
    found = [
        f"--{key} was {_shown(before, key)}, now {_shown(after, key)}"
        for key in sorted(before.keys() | after.keys())
        if not key.startswith(skipped) and before.get(key) != after.get(key)
    ]
    if stored["processes"] != now["processes"]:
        found.append(f"processes: {stored['processes']}, now {now['processes']}")
    kinds = {"model": "another model to start from", "texts": "other training texts"}
    return found + [words for key, words in kinds.items() if stored[key] != now[key]]


def digest_of_model(model: nn.Module) -> str:
    """SHA-256 of the names and bytes of all weights."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def digest_of_rows(parts: Iterable[Dataset | IterableDataset]) -> str:
    """SHA-256 of all rows in their order; of a stream, of the first thousand."""
    digest = hashlib.sha256()
    for rows in parts:
        rows = rows.take(STREAMED_ROWS) if isinstance(rows, IterableDataset) else rows
        for batch in rows.iter(READ_ROWS):
            digest.update(json.dumps(batch).encode())
    return digest.hexdigest()


def _shown(settings: dict, key: str) -> str:
    return str(settings[key]) if key in settings else "not given"

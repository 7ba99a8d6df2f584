"""The record of a finished run, `train_results.json`, and the facts that go into it. Imports no torch."""

from __future__ import annotations

import glob
import json
import logging
import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.errors import InputError, reason
from mirror.common.files import atomic_write_text
from mirror.common.trust import model_file


if TYPE_CHECKING:
    from transformers import TrainingArguments


logger = logging.getLogger(__name__)

FILE = "train_results.json"
LOCAL_BASE = "_base_model.txt"  # the underscore keeps it out of pushes
PACKAGES = ("torch", "transformers", "datasets", "accelerate", "sentence-transformers", "numpy")
ALWAYS_KEPT = {"learning_rate", "num_train_epochs", "gradient_accumulation_steps", "seed", "weight_decay"}
ALWAYS_KEPT |= {"per_device_train_batch_size"}
LIKE_PATHS = ("hub_model_id", "prompt")  # values that may look like a path and are none
LATER = ("own_text", "own_text_together", "kept", "merged", "distilled")  # not in earlier records
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual")  # as the Hub spells it
NOT_KEPT = ("output_dir", "data_dir", "hub_token", "force", "label_names", "use_cpu", "disable_tqdm")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that a result depends on."""
    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}


def hardware() -> str:
    """Return the GPU or processor that this process computes on, in a few words."""
    import torch  # costs seconds, which tools that only read a record should not pay

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.9 has no such function
    name = capabilities.get("cpu_name") or platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' * (threads > 1)} of {name}"


@dataclass
class RunRecord:
    """The content of `train_results.json`.

    Args:
        method: "mirror", "cmlm" or "distilled".
        metrics: the metrics that `Trainer.train` returned.
        run: facts that are not settings (`run_facts`).
        corpus: the corpus report. Numbers only, no text.
        settings: every setting that matters, as plain data (`collect_settings`).
        cosine_after_reload: lowest cosine between the encoder in memory and the saved one, by library.
        own_text, own_text_together: `OwnTextTest.compare` for each test on held-out texts, and `compare_together`.
        kept: `mirror.training.selection.outcome`. None without `--keep`.
        merged: what `mirror.training.selection.Merge` chose. None without `--merge`.
        distilled: measures of teacher and student by name. None: the run was no distillation, or was not compared.
    """

    method: str
    metrics: dict
    run: dict
    corpus: dict
    settings: dict
    cosine_after_reload: dict[str, float] = field(default_factory=dict)
    hardware: str = field(default_factory=hardware)
    versions: dict[str, str] = field(default_factory=versions)
    own_text: list[dict] | None = None
    own_text_together: dict[str, float] | None = None
    kept: dict | None = None
    merged: dict | None = None
    distilled: dict[str, list[float]] | None = None

    def save(self, folder: str | Path) -> None:
        """Write `train_results.json` into `folder`, atomically."""
        atomic_write_text(Path(folder) / FILE, json.dumps(asdict(self), indent=2, default=str) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> RunRecord:
        """Read the record of the run in `folder`, or raise an InputError if the file is missing or damaged."""
        try:
            content = dict.fromkeys(LATER) | json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))
            return cls(**{item.name: content[item.name] for item in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder}: no readable {FILE}; give the --output_dir of a finished run") from error


def collect_settings(args: TrainingArguments, **others) -> dict:
    """Return the configuration of a run, and `others`, as plain data without secrets and paths of this machine.

    Settings of transformers are left out where they have their default, except those that always matter.
    """
    from transformers import TrainingArguments

    defaults, kept = {item.name: item.default for item in fields(TrainingArguments)}, {}
    for key, value in sorted((args.to_dict() | others).items()):
        changed = value is not None and (key not in defaults or value != defaults[key])
        if (changed or key in ALWAYS_KEPT) and key not in NOT_KEPT and value != []:
            kept[key] = value if key in LIKE_PATHS else _map_leaves(_without_folder, value)
    return kept


def well_formed(value):
    """Return plain data that a UTF-8 file can hold: bytes of names that are not UTF-8 become `\udcff`, as text."""
    return _map_leaves(
        lambda leaf: leaf.encode(errors="backslashreplace").decode() if isinstance(leaf, str) else leaf, value
    )


def keep_folders_private(state_file: Path) -> None:
    """Cut the path of the best checkpoint in a `trainer_state.json` to its name."""
    state = json.loads(state_file.read_text(encoding="utf-8"))
    if best := state["best_model_checkpoint"]:
        state["best_model_checkpoint"] = Path(best).name
        atomic_write_text(state_file, json.dumps(state, indent=2, sort_keys=True) + "\n")


def _map_leaves(change: Callable, value):
    """Return plain data with `change` applied to all that is neither a dict nor a list."""
    if isinstance(value, dict):
        return {key: _map_leaves(change, item) for key, item in value.items()}
    return [_map_leaves(change, item) for item in value] if isinstance(value, list) else change(value)


def _without_folder(value):
    """Return a path or pattern cut to its last part, the name of a function or module, anything else as it is."""
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if not isinstance(value, str):
        return value
    # `os.path.exists` is False for a text that is too long for a name, where `Path.exists` raises an error.
    is_path = Path(value).is_absolute() or os.path.exists(value) or any(glob.iglob(value, recursive=True))
    return Path(value).name if is_path else value


def run_facts(args: TrainingArguments, base_model: str, dataset: str | None, step: str | None = None) -> dict:
    """Return the facts of a run that are not settings. Of a base model or dataset in a folder only the name is kept."""
    license, languages = facts_on_card(base_model)
    hub_id = None if Path(base_model).exists() else base_model
    return {
        "base_model": {"name": Path(base_model).name, "hub_id": hub_id, "license": license},
        "language": languages,
        "dataset": dataset if dataset and not Path(dataset).exists() else None,
        "processes": args.world_size,
        "effective_batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "step": step,
    }


def note_local_base(folder: str | Path, base_model: str) -> None:
    """Write the path of a local base model into a file of its own, which is never pushed."""
    if base_model and Path(base_model).is_dir():
        atomic_write_text(Path(folder) / LOCAL_BASE, f"{Path(base_model).resolve()}\n")


def local_base(folder: str | Path) -> str | None:
    """Return the path of the base model of a run if it was a local folder that still exists, else None."""
    note = Path(folder) / LOCAL_BASE
    path = note.read_text(encoding="utf-8").strip() if note.is_file() else ""
    return path if path and Path(path).is_dir() else None


def facts_on_card(base_model: str) -> tuple[dict[str, str], list[str]]:
    """Return the license entries and the valid language codes on the card of a base model, empty without a card."""
    from huggingface_hub import ModelCard

    card = {}
    try:
        if path := model_file(base_model, "README.md"):
            card = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except Exception as error:  # of YAML, of the text's encoding, or of the file: others wrote it
        message = "%s: its README.md cannot be read, so the new card names no license and no language: %s"
        logger.warning(message, base_model, reason(error))
    keys, languages = ("license", "license_name", "license_link"), card.get("language") or []
    languages = [languages] if isinstance(languages, str) else languages
    languages = [code for code in languages if isinstance(code, str) and LANGUAGE.fullmatch(code)]
    return {key: card[key] for key in keys if isinstance(card.get(key), str)}, languages

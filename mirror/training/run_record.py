"""`train_results.json`: what a finished run records, its one writer and its one reader."""

from __future__ import annotations

import glob
import json
import platform
import re
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.atomic_files import atomic_write_text
from mirror.common.errors import InputError
from mirror.common.loading_policy import model_file


if TYPE_CHECKING:
    from transformers import TrainingArguments


FILE = "train_results.json"
LOCAL_BASE = "_base_model.txt"  # the underscore keeps it out of pushes
PACKAGES = ("torch", "transformers", "datasets", "accelerate", "sentence-transformers", "numpy")
ALWAYS_KEPT = (
    "learning_rate",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
    "weight_decay",
)
LATER = ("own_text", "own_text_together", "held_out_views", "kept")  # fields that records of earlier versions lack
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual")  # as the Hub spells it
NOT_KEPT = ("output_dir", "data_dir", "hub_token", "force", "label_names", "use_cpu", "disable_tqdm")


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that a result depends on."""
    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}


def hardware() -> str:
    """What this process computes on, in a few words."""
    import torch  # seconds of imports that the tools that only read a record do not need

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
        method: "mirror" or "cmlm".
        metrics: what `Trainer.train` returned.
        run: facts that are not settings: base model, dataset, processes, batch, `step_summary`.
        corpus: the corpus report; numbers only, no text.
        settings: every setting that matters, as plain data.
        cosine_after_reload: lowest cosine between the encoder in memory and the saved one, for each reader.
        own_text: `OwnTextTest.compare` of the base model and the encoder, for each test; None if there was none.
        own_text_together: `compare_together` of the tests; None where there are fewer than two.
        kept: `mirror.training.keep.outcome`; None without `--keep`.
        held_out_views: alignment and uniformity of the encoder on the held-out texts, with the same noise in every run.
    """

    method: str
    metrics: dict
    run: dict
    corpus: dict
    settings: dict
    cosine_after_reload: dict[str, float]
    hardware: str = field(default_factory=hardware)
    versions: dict[str, str] = field(default_factory=versions)
    own_text: list[dict] | None = None
    own_text_together: dict[str, float] | None = None
    held_out_views: dict[str, float] | None = None
    kept: dict | None = None

    def save(self, folder: str | Path) -> None:
        atomic_write_text(Path(folder) / FILE, json.dumps(asdict(self), indent=2, default=str) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> RunRecord:
        """
        Raises:
            InputError: there is none, or it is damaged.
        """
        try:
            content = json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))
            return cls(
                **{
                    item.name: content.get(item.name) if item.name in LATER else content[item.name]
                    for item in fields(cls)
                }
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder}: no readable {FILE}; give the --output_dir of a finished run") from error


def collect_settings(args: TrainingArguments, **others) -> dict:
    """The configuration of a run as plain data, to be kept in the checkpoint: no secrets and no paths of this machine.

    Of transformers' own settings only those that differ from its defaults, and those that always matter.
    """
    from transformers import TrainingArguments

    defaults = {item.name: item.default for item in fields(TrainingArguments)}
    merged = {}
    for key, value in (args.to_dict() | others).items():
        is_own = key not in defaults
        if key in ALWAYS_KEPT or (value is not None and (is_own or value != defaults[key])):
            merged[key] = value
    return {
        key: value if key == "hub_model_id" else _without_folders(value)  # the id may look like a folder
        for key, value in sorted(merged.items())
        if key not in NOT_KEPT and value != []
    }


def keep_folders_private(state_file: Path) -> None:
    """Keep only the name of the best checkpoint in a `trainer_state.json`, not its folder on this machine."""
    state = json.loads(state_file.read_text(encoding="utf-8"))
    if best := state["best_model_checkpoint"]:
        state["best_model_checkpoint"] = Path(best).name
        atomic_write_text(state_file, json.dumps(state, indent=2, sort_keys=True) + "\n")


def _without_folders(value):
    """The names of files and folders, and the last parts of patterns, instead of their paths."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and _is_path(value) else value


def _is_path(text: str) -> bool:
    return Path(text).is_absolute() or Path(text).exists() or any(glob.iglob(text, recursive=True))


def run_facts(args: TrainingArguments, base_model: str, dataset: str | None, step: str | None = None) -> dict:
    """What a model card needs beside the settings: origins by their Hub ids, never by paths, and sizes of a step."""
    card = card_of(base_model)
    return {
        "base_model": {
            "name": Path(base_model).name,
            "hub_id": _hub_id(base_model),
            "license": license_in(card),
        },
        "language": languages_in(card),
        "dataset": _hub_id(dataset) if dataset else None,
        "processes": args.world_size,
        "effective_batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "step": step,
    }


def note_local_base(folder: str | Path, base_model: str) -> None:
    """Keep the path of a base model that is a local folder in a file of its own, which is never pushed."""
    if Path(base_model).is_dir():
        atomic_write_text(Path(folder) / LOCAL_BASE, f"{Path(base_model).resolve()}\n")


def local_base(folder: str | Path) -> str | None:
    """The path of the base model of a run, if it was a local folder that still exists."""
    note = Path(folder) / LOCAL_BASE
    path = note.read_text(encoding="utf-8").strip() if note.is_file() else ""
    return path if path and Path(path).is_dir() else None


def card_of(base_model: str) -> dict:
    """The metadata on the card of a base model; empty where there is no card, or it cannot be read."""
    from huggingface_hub import ModelCard

    path = model_file(base_model, "README.md")
    return ModelCard.load(path, ignore_metadata_errors=True).data.to_dict() if path else {}


def license_in(card: dict) -> dict[str, str]:
    """What the metadata of a card say about the licence."""
    keys = ("license", "license_name", "license_link")
    return {key: card[key] for key in keys if isinstance(card.get(key), str)}


def languages_in(card: dict) -> list[str]:
    """The language codes in the metadata of a card."""
    stated = card.get("language") or []
    stated = [stated] if isinstance(stated, str) else stated
    return [code for code in stated if isinstance(code, str) and LANGUAGE.fullmatch(code)]


def _hub_id(name_or_path: str) -> str | None:
    return None if Path(name_or_path).exists() else name_or_path

"""Dense layers after the pooling, saved in the checkpoint so that every reader applies them.

Knows the folder of a sentence-transformers checkpoint; knows nothing of texts or training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from mirror.common.atomic_files import atomic_write_text
from mirror.common.errors import InputError
from mirror.modeling.checkpoint import NOT_EXPORTABLE, save_dense
from mirror.modeling.checkpoint_settings import MIRROR_CONFIG


if TYPE_CHECKING:
    from sentence_transformers.models import Dense

SETTINGS = "training_settings.json"


def dense(weight: Tensor, bias: Tensor | None, activation: nn.Module) -> Dense:
    """A layer of sentence-transformers with these weights: (out, in) and (out,)."""
    from sentence_transformers.models import Dense

    out_features, in_features = weight.shape
    layer = Dense(in_features, out_features, bias=bias is not None, activation_function=activation)
    state = {"weight": weight.detach().float().cpu()}
    layer.linear.load_state_dict(state | ({} if bias is None else {"bias": bias.detach().float().cpu()}))
    return layer


def append_layers(folder: str | Path, layers: Sequence[Dense]) -> None:
    """Append `layers` to the modules of the checkpoint in `folder`.

    Afterwards `modules.json` alone defines the embedding: `mirror_config.json`, which has no further modules, is renamed to
    `training_settings.json`.

    Raises:
        InputError: no checkpoint, or a pooling that `modules.json` cannot express.
    """
    folder = Path(folder)
    if not (folder / "modules.json").exists():
        raise InputError(f"{folder}: no modules.json; give a checkpoint of this project or of sentence-transformers")
    if not layers:
        return
    check_pooling(folder)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    for index, layer in enumerate(layers, start=len(modules)):
        name = f"{index}_Dense"
        save_dense(folder / name, layer)
        modules.append({"idx": index, "name": str(index), "path": name, "type": "sentence_transformers.models.Dense"})
    atomic_write_text(folder / "modules.json", json.dumps(modules, indent=2) + "\n")
    if (folder / MIRROR_CONFIG).exists():
        (folder / MIRROR_CONFIG).replace(folder / SETTINGS)


def check_pooling(folder: Path) -> None:
    """
    Raises:
        InputError: a pooling that `modules.json` cannot express.
    """
    note = folder / MIRROR_CONFIG
    pooling = json.loads(note.read_text(encoding="utf-8"))["pooling"] if note.exists() else None
    if pooling in NOT_EXPORTABLE:
        raise InputError(f"{folder}: pooling '{pooling}' cannot be followed by a layer; retrain with mean or cls")

"""Dense layers after the pooling, kept inside a checkpoint so that every reader applies them.

Knows the folder of a sentence-transformers checkpoint; knows nothing of texts or training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mirror.checkpoint import NOT_EXPORTABLE, save_dense
from mirror.cmlm.model import Projection
from mirror.encoder import MIRROR_CONFIG
from mirror.errors import InputError
from mirror.files import write_whole


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


def mean_projection(projection: Projection) -> list[Dense]:
    """The mean of CMLM's N projected vectors as three dense layers, exactly.

    The identity, which is one of the N, passes the two ReLUs as its positive and its negative part.
    """
    count, width = projection.num_projections, projection.width
    if projection.mlp is None:
        return []
    first, _, second, _, third = projection.mlp
    eye, both = torch.eye(width), torch.eye(2 * width)
    zeros = torch.zeros(2 * width)
    blocks = third.weight.detach().cpu().view(count - 1, width, width).sum(0) / count  # (D, D)
    bias = third.bias.detach().cpu().view(count - 1, width).sum(0) / count
    weights = [
        torch.cat([first.weight.detach().cpu(), eye, -eye]),  # (3D, D)
        torch.block_diag(second.weight.detach().cpu(), both),  # (3D, 3D)
        torch.cat([blocks, eye / count, -eye / count], dim=1),  # (D, 3D)
    ]
    biases = [torch.cat([layer.bias.detach().cpu(), zeros]) for layer in (first, second)]
    return [
        dense(weight, bias, activation)
        for weight, bias, activation in zip(
            weights, [*biases, bias], [nn.ReLU(), nn.ReLU(), nn.Identity()], strict=True
        )
    ]


def append_layers(folder: str | Path, layers: Sequence[Dense]) -> None:
    """Put `layers` after the modules of the checkpoint in `folder`.

    From then on `modules.json` alone says how a vector is made: this project's own note of the pooling is kept for the
    record under another name, for it knows no further modules.

    Raises:
        InputError: no checkpoint, or a pooling that `modules.json` cannot tell.
    """
    folder = Path(folder)
    if not (folder / "modules.json").exists():
        raise InputError(f"{folder}: no modules.json; give a checkpoint of this project or of sentence-transformers")
    if not layers:
        return
    note = folder / MIRROR_CONFIG
    if note.exists():
        pooling = json.loads(note.read_text(encoding="utf-8"))["pooling"]
        if pooling in NOT_EXPORTABLE:
            raise InputError(f"{folder}: pooling '{pooling}' cannot be followed by a layer; retrain with mean or cls")
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    for index, layer in enumerate(layers, start=len(modules)):
        name = f"{index}_Dense"
        save_dense(folder / name, layer)
        modules.append({"idx": index, "name": str(index), "path": name, "type": "sentence_transformers.models.Dense"})
    write_whole(folder / "modules.json", json.dumps(modules, indent=2) + "\n")
    if note.exists():
        note.replace(folder / SETTINGS)

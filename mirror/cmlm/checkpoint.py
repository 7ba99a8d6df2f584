"""CMLM checkpoints: an encoder that every reader loads, and in `cmlm/` the parts that only training needs.

A later stage, or a resumed run, restores both bit for bit.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from mirror.cmlm.model import CMLMModel, CMLMModelConfig, Projection
from mirror.common import loading_policy
from mirror.common.errors import InputError
from mirror.modeling.backbone import check_size, keep_pooler, load_config, load_tokenizer, loading, quiet
from mirror.modeling.checkpoint import save_encoder
from mirror.modeling.dense_layers import append_layers, dense


if TYPE_CHECKING:
    from sentence_transformers.models import Dense

logger = logging.getLogger(__name__)

PARTS_FOLDER = "cmlm"
PARTS_FILE = "model.safetensors"


def save_cmlm(
    folder: str | Path,
    model: CMLMModel,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    sentence_vector: str,
    settings: dict | None = None,
) -> None:
    """Save the encoder in `folder`, as run_mirror.py does, and MLM head, projection and classifier in `cmlm/`."""
    folder = Path(folder)
    save_encoder(folder, model.encoder, tokenizer, model.config.pooling, max_seq_length, settings)
    if sentence_vector == "proj":
        append_layers(folder, mean_projection(model.projection))
    parts = folder / PARTS_FOLDER
    parts.mkdir(exist_ok=True)
    model.config.save_pretrained(parts)
    save_file({name: value.detach().cpu().contiguous() for name, value in parts_of(model).items()}, parts / PARTS_FILE)


def mean_projection(projection: Projection) -> list[Dense]:
    """The mean of CMLM's N projected vectors as three dense layers, exactly.

    The identity, one of the N, passes the two ReLUs as its positive and its negative part.
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


def parts_of(model: CMLMModel) -> dict[str, Tensor]:
    """The parameters outside the encoder, by name, without those that the head shares with it."""
    inside = {id(parameter) for parameter in model.encoder.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in inside}


def load_cmlm(
    name_or_path: str,
    num_projections: int = 15,
    skip_connection: bool = False,
    pooling: str = "mean",
    from_scratch: bool = False,
) -> tuple[CMLMModel, PreTrainedTokenizerBase]:
    """A model to train: from any masked LM, or from the checkpoint of an earlier stage.

    Raises:
        InputError: not a masked LM, or an earlier stage of another shape.
    """
    mlm, tokenizer = load_mlm(name_or_path, from_scratch)
    keep_pooler(mlm.base_model, name_or_path, from_scratch)
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = CMLMModelConfig(mlm.config.to_dict(), num_projections, skip_connection, pooling, **special)
    model = CMLMModel(config, mlm)
    if not from_scratch and loading_policy.model_file(name_or_path, PARTS_FILE, PARTS_FOLDER):
        load_parts(model, name_or_path)
    return model, tokenizer


def load_mlm(name_or_path: str, from_scratch: bool = False) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Masked LM and tokenizer; a checkpoint without an MLM head gets a new one.

    Raises:
        InputError: not found, or not a masked LM.
    """
    config = load_config(name_or_path)
    with loading(name_or_path):
        tokenizer = load_tokenizer(name_or_path, config)
        if from_scratch:
            model = AutoModelForMaskedLM.from_config(config, dtype=torch.float32, **loading_policy.remote_code())
            return model, tokenizer
        loading_policy.check_weights(name_or_path)
        check_size(name_or_path, config)
        with quiet():
            model, report = AutoModelForMaskedLM.from_pretrained(
                name_or_path, dtype=torch.float32, output_loading_info=True, **loading_policy.weights()
            )
    inside = {name for name, _ in model.base_model.named_parameters(prefix=model.base_model_prefix)}
    if lost := sorted(inside & set(report["missing_keys"])):
        raise InputError(f"{name_or_path} lacks {len(lost)} weights of the encoder, first {lost[0]}")
    if report["missing_keys"]:
        logger.info("%s has no MLM head: using a new one, or the one in its folder %s/",
                    name_or_path, PARTS_FOLDER)  # fmt: skip
    return model, tokenizer


def load_weights(model: CMLMModel, folder: str | Path) -> None:
    """Load the weights that `save_cmlm` saved in `folder` into `model`."""
    model.mlm.load_state_dict(load_mlm(str(folder))[0].state_dict())
    load_parts(model, folder)


@torch.no_grad()
def load_parts(model: CMLMModel, name_or_path: str | Path) -> None:
    """Load MLM head, projection and classifier of a checkpoint, in a folder or on the Hub, into `model`.

    Raises:
        InputError: they have another shape.
    """
    with loading(f"{name_or_path}/{PARTS_FOLDER}"):
        stored = load_file(loading_policy.model_file(str(name_or_path), PARTS_FILE, PARTS_FOLDER))
    own = parts_of(model)
    differ = sorted(name for name in stored.keys() | own.keys() if _shape(stored, name) != _shape(own, name))
    if differ:
        was = CMLMModelConfig.from_pretrained(str(name_or_path), subfolder=PARTS_FOLDER)
        raise InputError(
            f"{name_or_path} was trained with --num_projections {was.num_projections}"
            f"{' --skip_connection' if was.skip_connection else ''}; give the same, or remove its folder {PARTS_FOLDER} "
            f"to initialize that part again (first difference: {differ[0]})"
        )
    for name, value in stored.items():
        own[name].copy_(value)


def _shape(tensors: dict[str, Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None

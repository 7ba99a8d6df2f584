"""CMLM checkpoints: an encoder that every library loads, and in `cmlm/` the parts that only training needs.

A later stage, or a resumed run, restores both bit for bit.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from mirror.cmlm.model import CMLMModel, CMLMModelConfig, Projection
from mirror.common import trust
from mirror.common.errors import InputError
from mirror.common.files import follow_umask
from mirror.modeling.backbone import keep_pooler, load_tokenizer
from mirror.modeling.read_checkpoint import check_size, load_config, loading, quiet
from mirror.modeling.save_checkpoint import append_layers, dense, save_encoder


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
    follow_umask(parts)


def mean_projection(projection: Projection) -> list[nn.Module]:
    """Return the mean of the N projected vectors ('proj' in Table 7) as three dense layers, exactly.

    The identity, one of the N, passes the two ReLUs as its positive and its negative part.
    """
    if projection.mlp is None:
        return []
    count, width = projection.num_projections, projection.width
    first, second, third = (
        (layer.weight.detach().cpu(), layer.bias.detach().cpu())
        for layer in projection.mlp
        if isinstance(layer, nn.Linear)
    )
    eye, zeros = torch.eye(width), torch.zeros(2 * width)
    blocks = third[0].view(count - 1, width, width).sum(0) / count  # (D, D)
    bias = third[1].view(count - 1, width).sum(0) / count  # (D,)
    return [
        dense(torch.cat([first[0], eye, -eye]), torch.cat([first[1], zeros]), nn.ReLU()),  # (3D, D)
        dense(torch.block_diag(second[0], torch.eye(2 * width)), torch.cat([second[1], zeros]), nn.ReLU()),  # (3D, 3D)
        dense(torch.cat([blocks, eye / count, -eye / count], dim=1), bias, nn.Identity()),  # (D, 3D)
    ]


def parts_of(model: CMLMModel) -> dict[str, Tensor]:
    """Return the parameters outside the encoder by name, without those that the head shares with it."""
    inside = {id(parameter) for parameter in model.encoder.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in inside}


def load_cmlm(
    name_or_path: str,
    num_projections: int = 15,
    skip_connection: bool = False,
    pooling: str = "mean",
    from_scratch: bool = False,
) -> tuple[CMLMModel, PreTrainedTokenizerBase]:
    """Load a model to train, and its tokenizer: any masked LM, or the checkpoint of an earlier stage."""
    mlm, tokenizer = load_mlm(name_or_path, from_scratch)
    keep_pooler(mlm.base_model, name_or_path, from_scratch)
    settings = {"num_projections": num_projections, "skip_connection": skip_connection, "pooling": pooling}
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    model = CMLMModel(CMLMModelConfig(backbone=mlm.config.to_dict(), **settings, **ids), mlm)
    if not from_scratch and trust.model_file(name_or_path, PARTS_FILE, PARTS_FOLDER):
        load_parts(model, name_or_path)
    return model, tokenizer


def load_mlm(name_or_path: str, from_scratch: bool = False) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a masked LM and its tokenizer. A checkpoint without an MLM head gets a new one."""
    config = load_config(name_or_path, masked=True)
    with loading(name_or_path):
        tokenizer = load_tokenizer(name_or_path, config)
        if from_scratch:
            return AutoModelForMaskedLM.from_config(config, dtype=torch.float32, **trust.remote_code()), tokenizer
        trust.check_weights(name_or_path)
        check_size(name_or_path, config)
        options = {"dtype": torch.float32, "output_loading_info": True} | trust.weights()
        with quiet():
            model, report = AutoModelForMaskedLM.from_pretrained(name_or_path, **options)
    inside = {name for name, _ in model.base_model.named_parameters(prefix=model.base_model_prefix)}
    if lost := sorted(inside & set(report["missing_keys"])):
        raise InputError(f"{name_or_path} lacks {len(lost)} weights of the encoder, first {lost[0]}")
    if report["missing_keys"]:
        logger.info("%s has no MLM head: using a new one, or the one in its folder %s/", name_or_path, PARTS_FOLDER)
    return model, tokenizer


@torch.no_grad()
def load_parts(model: CMLMModel, name_or_path: str | Path) -> None:
    """Load MLM head, projection and classifier of a checkpoint, in a folder or on the Hub, into `model`."""
    with loading(f"{name_or_path}/{PARTS_FOLDER}"):
        stored = load_file(trust.model_file(str(name_or_path), PARTS_FILE, PARTS_FOLDER))
    own = parts_of(model)
    shapes, expected = ({name: value.shape for name, value in parts.items()} for parts in (stored, own))
    if differ := sorted(name for name, _ in shapes.items() ^ expected.items()):
        was = CMLMModelConfig.from_pretrained(str(name_or_path), subfolder=PARTS_FOLDER)
        flags = f"--num_projections {was.num_projections}{' --skip_connection' if was.skip_connection else ''}"
        raise InputError(
            f"{name_or_path} was trained with {flags}; give the same, or remove its folder {PARTS_FOLDER} "
            f"to initialize that part again (first difference: {differ[0]})"
        )
    for name, value in stored.items():
        own[name].copy_(value)

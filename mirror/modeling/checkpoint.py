"""One checkpoint format for every reader: transformers, sentence-transformers of any version, and this project.

A folder states its pooling three times: in `mirror_config.json` (ours, exact), and in `1_Pooling/config.json` in the spelling
of sentence-transformers since 5.4 and in the older one, which servers still read. A reader that finds neither silently pools by
mean. Versions before 5.4 pass every key of that file to their pooling class, where an unknown key is an error; so the file has
only keys that all versions know, and the width under its older name.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mirror.common import loading_policy
from mirror.common.errors import InputError, library_errors
from mirror.modeling.backbone import TRANSFORMER_SETTINGS, lowercases_first, quiet, spare_pooler
from mirror.modeling.checkpoint_settings import MIRROR_CONFIG
from mirror.modeling.encoder import Encoder


logger = logging.getLogger(__name__)

# The nearest mode for other readers, which have neither a mean over padding nor one over layers.
EXPORTED_POOLING = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "pooler": "cls",
    "mean_padded": "mean",
    "first_last_mean": "mean",
}
NOT_EXPORTABLE = ("mean_padded", "first_last_mean")
_OLD_SPELLING = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
MINIMUM_COSINE = 0.9999


def save_encoder(
    folder: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pooling: str,
    max_seq_length: int,
    settings: dict | None = None,
    head: Sequence[nn.Module] = (),
    prompts: dict | None = None,
    state_dict: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write weights, tokenizer and every description of the pooling into `folder`.

    Args:
        head: modules of sentence-transformers after the pooling.
        prompts: `prompts`, `default_prompt_name` and `truncate_dim` of the base model.
        settings: the configuration of the run, kept in `mirror_config.json`.
        state_dict: the weights, where those of `model` are spread over several processes (FSDP).
    """
    folder = Path(folder)
    shutil.rmtree(folder / "onnx", ignore_errors=True)  # an export of other weights
    with quiet():
        model.save_pretrained(folder, state_dict=(state_dict or model.state_dict()) | spare_pooler(model))
    tokenizer.save_pretrained(folder)
    ours = {"pooling": pooling, "max_seq_length": max_seq_length, **(prompts or {}), "settings": settings or {}}
    ours |= {"has_head": True} if head else {}
    _write_json(folder / MIRROR_CONFIG, ours)
    transformer = {"max_seq_length": max_seq_length, "do_lower_case": lowercases_first(tokenizer)}
    _write_json(folder / TRANSFORMER_SETTINGS, transformer)
    _write_sentence_transformers(folder, model, pooling, head, prompts)
    if pooling in NOT_EXPORTABLE:
        logger.warning(
            "other readers have no pooling '%s' and will use '%s'; run_eval.py uses '%s'",
            pooling,
            EXPORTED_POOLING[pooling],
            pooling,
        )


def verify_encoder(folder: str | Path, encoder: Encoder, texts: list[str]) -> dict[str, float]:
    """Load `folder` with each reader and compare its embeddings of `texts` with those of the encoder in memory.

    Returns:
        The lowest cosine for each reader that has the pooling.

    Raises:
        InputError: a reader cannot load the folder, or computes other embeddings.
    """
    from sentence_transformers import SentenceTransformer

    with library_errors(f"{folder} cannot be read back"):
        expected = encoder.encode(texts)
        ours = Encoder.from_pretrained(str(folder), device=encoder.model.device)
        with quiet():
            theirs = SentenceTransformer(str(folder), device=str(encoder.model.device), **loading_policy.remote_code())
        cosines = {"transformers AutoModel and pool()": _lowest_cosine(expected, ours.encode(texts))}
        if encoder.pooling not in NOT_EXPORTABLE:
            cosines["sentence-transformers"] = _lowest_cosine(expected, theirs.encode(texts))
    for reader, cosine in cosines.items():
        if not cosine > MINIMUM_COSINE:
            raise InputError(f"{folder} reads differently in {reader}: lowest cosine {cosine:.6f}, expected 1")
    return cosines


def stored_pooling(folder: Path) -> str:
    """The pooling of a checkpoint folder: from `mirror_config.json`, otherwise from that of sentence-transformers.

    Raises:
        InputError: neither can be read.
    """
    is_ours = (folder / MIRROR_CONFIG).exists()
    path = folder / MIRROR_CONFIG if is_ours else folder / "1_Pooling" / "config.json"
    with library_errors(str(path)):
        return json.loads(path.read_text(encoding="utf-8"))["pooling" if is_ours else "pooling_mode"]


def _write_sentence_transformers(
    folder: Path,
    model: PreTrainedModel,
    pooling: str,
    head: Sequence[nn.Module],
    prompts: dict | None,
) -> None:
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    mode, width = EXPORTED_POOLING[pooling], model.config.hidden_size
    old_spelling = {f"pooling_mode_{old}": mode == new for new, old in _OLD_SPELLING.items()}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    _write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": width,
            "pooling_mode": mode,
            **old_spelling,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    if pooling == "pooler":
        _write_dense(folder / "2_Dense", model)
        modules.append(("2_Dense", "Dense"))
    for module in head:
        modules.append((f"{len(modules)}_{type(module).__name__}", type(module).__name__))
        save_module(folder / modules[-1][0], module)
    _write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
    )
    packages = {"sentence_transformers": "sentence-transformers", "transformers": "transformers", "pytorch": "torch"}
    versions = {name: version(package) for name, package in packages.items()}
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "__version__": versions,
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        }
        | (prompts or {}),
    )


def _write_dense(folder: Path, model: PreTrainedModel) -> None:
    """BERT's pooler, as the dense layer that sentence-transformers applies to the CLS vector."""
    from sentence_transformers.models import Dense

    linear = model.pooler if isinstance(model.pooler, nn.Linear) else model.pooler.dense  # ALBERT's is a plain Linear
    dense = Dense(linear.in_features, linear.out_features, activation_function=nn.Tanh())
    dense.linear.load_state_dict({name: tensor.detach().float().cpu() for name, tensor in linear.state_dict().items()})
    save_dense(folder, dense)


def save_module(folder: Path, module: nn.Module) -> None:
    """Any module of sentence-transformers that comes after the pooling, such as Normalize."""
    if type(module).__name__ == "Dense":
        save_dense(folder, module)
    else:
        folder.mkdir(exist_ok=True)
        module.save(str(folder))


def save_dense(folder: Path, layer: nn.Module) -> None:
    """Save a `Dense` of sentence-transformers with only those configuration keys that older versions accept."""
    folder.mkdir(exist_ok=True)
    layer.save(str(folder))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = ("in_features", "out_features", "bias", "activation_function")
    residual = {"use_residual": True} if config.get("use_residual") else {}  # which older versions cannot compute
    _write_json(folder / "config.json", {key: config[key] for key in kept} | residual)


def _lowest_cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(torch.cosine_similarity(torch.from_numpy(first), torch.from_numpy(second)).min())


def _write_json(path: Path, content: dict | list) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

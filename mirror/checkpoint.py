"""One save that every reader loads: transformers, sentence-transformers of any age, and this project.

A folder says its pooling three times: in `mirror_config.json` (ours, exact), and in `1_Pooling/config.json` in the
spelling of sentence-transformers since 5.4 and in the older one, which servers still read. A reader that finds neither
pools by mean without a word. Versions before 5.4 hand every key of that file to their pooling, and a key that they do not
know is an error; so it holds only keys that all of them know, and its width goes by the older name.
"""

from __future__ import annotations

import json
import logging
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mirror import trust
from mirror.encoder import MIRROR_CONFIG, Encoder, quiet


logger = logging.getLogger(__name__)

# What other readers are told. They know neither padding in the mean nor a mean over layers.
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
) -> None:
    """Write weights, tokenizer and every description of the pooling into `folder`.

    Args:
        settings: the configuration of the run, kept in `mirror_config.json`.
    """
    folder = Path(folder)
    shutil.rmtree(folder / "onnx", ignore_errors=True)  # a copy of other weights
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ours = {"pooling": pooling, "max_seq_length": max_seq_length, "settings": settings or {}}
    _write_json(folder / MIRROR_CONFIG, ours)
    _write_sentence_transformers(folder, model, pooling, max_seq_length)
    if pooling in NOT_EXPORTABLE:
        logger.warning(
            "pooling '%s' cannot be told to other readers: they will use '%s'; run_eval.py uses '%s'",
            *(pooling, EXPORTED_POOLING[pooling], pooling),
        )


def verify_encoder(folder: str | Path, encoder: Encoder, texts: list[str]) -> dict[str, float]:
    """Load `folder` with each reader and compare its vectors of `texts` with those of the encoder in memory.

    Returns:
        The lowest cosine for each reader.

    Raises:
        RuntimeError: a reader gives other vectors, unless the pooling is one that it cannot be told.
    """
    from sentence_transformers import SentenceTransformer

    expected = encoder.encode(texts)
    ours = Encoder.from_pretrained(str(folder), device=encoder.model.device)
    with quiet():
        theirs = SentenceTransformer(str(folder), device=str(encoder.model.device), **trust.remote_code())
    cosines = {
        "transformers AutoModel and pool()": _lowest_cosine(expected, ours.encode(texts)),
        "sentence-transformers": _lowest_cosine(expected, theirs.encode(texts)),
    }
    for reader, cosine in cosines.items():
        told = encoder.pooling not in NOT_EXPORTABLE or reader.startswith("transformers")
        if told and not cosine > MINIMUM_COSINE:
            raise RuntimeError(f"{folder} reads differently in {reader}: cosine {cosine:.6f}, expected 1")
    return cosines


def stored_pooling(folder: Path) -> str:
    """The pooling of a checkpoint folder: ours where it says, otherwise what sentence-transformers is told."""
    if (folder / MIRROR_CONFIG).exists():
        return json.loads((folder / MIRROR_CONFIG).read_text(encoding="utf-8"))["pooling"]
    return json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))["pooling_mode"]


def _write_sentence_transformers(folder: Path, model: PreTrainedModel, pooling: str, max_seq_length: int) -> None:
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
    _write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
    )
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    packages = {"sentence_transformers": "sentence-transformers", "transformers": "transformers", "pytorch": "torch"}
    versions = {name: version(package) for name, package in packages.items()}
    _write_json(
        folder / "config_sentence_transformers.json",
        {"__version__": versions, "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )


def _write_dense(folder: Path, model: PreTrainedModel) -> None:
    """BERT's pooler, as the dense layer that sentence-transformers applies to the CLS vector."""
    from sentence_transformers.models import Dense

    linear = model.pooler if isinstance(model.pooler, nn.Linear) else model.pooler.dense  # ALBERT's is bare
    dense = Dense(linear.in_features, linear.out_features, activation_function=nn.Tanh())
    dense.linear.load_state_dict({name: tensor.detach().float().cpu() for name, tensor in linear.state_dict().items()})
    save_dense(folder, dense)


def save_dense(folder: Path, layer: nn.Module) -> None:
    """A `Dense` of sentence-transformers, with only those keys in its configuration that older versions take too."""
    folder.mkdir(exist_ok=True)
    layer.save(str(folder))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = ("in_features", "out_features", "bias", "activation_function")
    _write_json(folder / "config.json", {key: config[key] for key in kept})


def _lowest_cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(torch.cosine_similarity(torch.from_numpy(first), torch.from_numpy(second)).min())


def _write_json(path: Path, content: dict | list) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

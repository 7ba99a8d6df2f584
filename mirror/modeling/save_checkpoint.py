"""Save one checkpoint that every library reads: transformers, sentence-transformers of any version, and this project.

A folder states its pooling three times: in `mirror_config.json` (ours, exact), and in `1_Pooling/config.json` in the spelling of
sentence-transformers since 5.4 and in the older one, which servers still read. A library that finds neither silently pools by mean.
Versions before 5.4 pass every key of that file to their pooling class, which rejects unknown keys. So the file has only keys
that all versions know, and the width under its older name.
"""

from __future__ import annotations

import inspect
import json
import logging
import shutil
from collections.abc import Container, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.utils import CONFIG_NAME

from mirror.common import trust
from mirror.common.errors import InputError, library_errors
from mirror.common.files import atomic_write_text, follow_umask
from mirror.modeling.backbone import TRANSFORMER_SETTINGS, lowercases_first, spare_pooler
from mirror.modeling.encoder import Encoder
from mirror.modeling.read_checkpoint import MIRROR_CONFIG, STATIC, is_static, quiet
from mirror.modeling.static import StaticModel, save_static


if TYPE_CHECKING:
    from sentence_transformers.models import Dense

logger = logging.getLogger(__name__)

# Other libraries have neither a mean over padding nor one over layers. They get the nearest mode.
NOT_EXPORTABLE = {"mean_padded": "mean", "first_last_mean": "mean"}
EXPORTED_POOLING = {"cls": "cls", "mean": "mean", "max": "max", "last": "lasttoken", "pooler": "cls"} | NOT_EXPORTABLE
OLD_SPELLING = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
MINIMUM_COSINE = 0.9999
EXPORTS = ("onnx", "openvino")  # folders of mirror.tools.onnx in a checkpoint


def save_encoder(
    folder: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pooling: str,
    max_seq_length: int,
    settings: dict | None = None,
    head: Sequence[nn.Module] = (),
    prompts: dict | None = None,
    state_dict: dict[str, Tensor] | None = None,
) -> None:
    """Write weights, tokenizer and every description of the pooling into `folder`.

    The `settings` of the run are kept in `mirror_config.json`. `head` are modules after the pooling.
    `prompts` holds `prompts`, `default_prompt_name`, `include_prompt`, `truncate_dim` and `similarity_fn_name` of the base
    model. `state_dict` are the weights, if those of `model` are spread over several processes (FSDP).
    """
    folder = Path(folder)
    for export in EXPORTS:  # of other weights
        shutil.rmtree(folder / export, ignore_errors=True)
    if isinstance(model, StaticModel):
        folder.mkdir(parents=True, exist_ok=True)
        save_static(folder, model, tokenizer, normalize=[type(module).__name__ for module in head] == ["Normalize"])
    else:
        with quiet():
            model.save_pretrained(folder, state_dict=(state_dict or model.state_dict()) | spare_pooler(model))
        _spell_angles_twice(folder / CONFIG_NAME)
        _save_tokenizer(folder, tokenizer, inspect.signature(model.forward).parameters)
        transformer = {"max_seq_length": max_seq_length, "do_lower_case": lowercases_first(tokenizer)}
        _write_json(folder / TRANSFORMER_SETTINGS, transformer)
    ours = {"pooling": pooling, "max_seq_length": max_seq_length, **(prompts or {}), "settings": settings or {}}
    _write_json(folder / MIRROR_CONFIG, ours | ({"has_head": True} if head else {}))
    _write_sentence_transformers(folder, model, pooling, head, prompts or {})
    if pooling in NOT_EXPORTABLE:
        message = "other libraries have no pooling '%s' and will use '%s'; run_eval.py uses '%s'"
        logger.warning(message, pooling, EXPORTED_POOLING[pooling], pooling)
    follow_umask(folder)


def _spell_angles_twice(path: Path) -> None:
    """Add the rotary angles of a ModernBERT in the words of transformers 4, which would silently take its defaults."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("model_type") == "modernbert" and (angles := config.get("rope_parameters")):
        for old, new in (("global", "full_attention"), ("local", "sliding_attention")):
            config[f"{old}_rope_theta"] = angles[new]["rope_theta"]
        _write_json(path, config)


def _save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase, model_inputs: Container[str]) -> None:
    """Save a tokenizer in words that transformers 4 knows too, for a model with these inputs."""
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / TOKENIZER_CONFIG_FILE).read_text(encoding="utf-8"))
    if config["tokenizer_class"] == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        # Its default in transformers 4 has token types, which some models do not take.
        config["model_input_names"] = [name for name in tokenizer.model_input_names if name in model_inputs]
    if isinstance(config.get("extra_special_tokens"), list):  # transformers 4 expects names and tokens here
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    _write_json(folder / TOKENIZER_CONFIG_FILE, config)


def verify_encoder(folder: str | Path, encoder: Encoder, texts: list[str]) -> dict[str, float]:
    """Load `folder` with each library and compare its embeddings of `texts` with those of the encoder in memory.

    Returns the lowest cosine for each library that has the pooling. An `InputError`: a library cannot load the folder,
    or computes other embeddings.
    """
    from sentence_transformers import SentenceTransformer

    vectors = {}
    with library_errors(f"{folder} cannot be read back"):
        expected = torch.from_numpy(encoder.encode(texts))
        ours = Encoder.from_pretrained(str(folder), device=encoder.model.device)
        with quiet():
            theirs = SentenceTransformer(str(folder), device=str(encoder.model.device), **trust.remote_code())
        vectors["transformers AutoModel and pool()"] = ours.encode(texts)
        if encoder.pooling not in NOT_EXPORTABLE:
            vectors["sentence-transformers"] = theirs.encode(texts)
    cosines = {}
    for name, found in vectors.items():
        cosines[name] = cosine = float(torch.cosine_similarity(expected, torch.from_numpy(found)).min())
        if not cosine > MINIMUM_COSINE:
            raise InputError(f"{folder} reads differently in {name}: lowest cosine {cosine:.6f}, expected 1")
    return cosines


def stored_pooling(folder: Path) -> str:
    """Return the pooling of a checkpoint folder, from `mirror_config.json` or else sentence-transformers' file."""
    is_ours = (folder / MIRROR_CONFIG).exists()
    if not is_ours and is_static(str(folder)):
        return "mean"
    path = folder / MIRROR_CONFIG if is_ours else folder / "1_Pooling" / "config.json"
    with library_errors(str(path)):
        stored = json.loads(path.read_text(encoding="utf-8"))["pooling" if is_ours else "pooling_mode"]
        return "last" if stored == "lasttoken" else stored


def _write_sentence_transformers(
    folder: Path, model: PreTrainedModel, pooling: str, head: Sequence[nn.Module], prompts: dict
) -> None:
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if isinstance(model, StaticModel):
        modules = [(".", STATIC)]
    else:
        _write_pooling(folder, model, pooling, prompts)
    if pooling == "pooler":  # BERT's pooler is a dense layer on the CLS vector. ALBERT's is a plain Linear.
        linear = model.pooler if isinstance(model.pooler, nn.Linear) else model.pooler.dense
        save_dense(folder / "2_Dense", dense(linear.weight, linear.bias, nn.Tanh()))
        modules.append(("2_Dense", "Dense"))
    for module in head:
        kind = type(module).__name__
        modules.append((f"{len(modules)}_{kind}", kind))
        if kind == "Dense":
            save_dense(folder / modules[-1][0], module)
        else:
            (folder / modules[-1][0]).mkdir(exist_ok=True)
            module.save(str(folder / modules[-1][0]))
    _write_json(folder / "modules.json", [_entry(index, path, kind) for index, (path, kind) in enumerate(modules)])
    packages = {"sentence_transformers": "sentence-transformers", "transformers": "transformers", "pytorch": "torch"}
    versions = {name: version(package) for name, package in packages.items()}
    described = {"model_type": "SentenceTransformer", "__version__": versions}
    described |= {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"} | prompts
    described.pop("include_prompt", None)  # of the pooling
    _write_json(folder / "config_sentence_transformers.json", described)


def _write_pooling(folder: Path, model: PreTrainedModel, pooling: str, prompts: dict) -> None:
    mode = EXPORTED_POOLING[pooling]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    described = {"word_embedding_dimension": model.config.hidden_size, "pooling_mode": mode}
    described |= {f"pooling_mode_{old}": mode == new for new, old in OLD_SPELLING.items()}
    described |= {"pooling_mode_mean_sqrt_len_tokens": False}
    described |= {"pooling_mode_lasttoken": True} if mode == "lasttoken" else {}  # a key that versions before 2.3 lack
    described |= {} if prompts.get("include_prompt", True) else {"include_prompt": False}
    _write_json(folder / "1_Pooling" / "config.json", described)


def dense(weight: Tensor, bias: Tensor | None, activation: nn.Module) -> Dense:
    """Return a layer of sentence-transformers with these weights: (out, in) and (out,)."""
    from sentence_transformers.models import Dense

    out_features, in_features = weight.shape
    layer = Dense(in_features, out_features, bias=bias is not None, activation_function=activation)
    state = {"weight": weight.detach().float().cpu()}
    layer.linear.load_state_dict(state | ({} if bias is None else {"bias": bias.detach().float().cpu()}))
    return layer


def save_dense(folder: Path, layer: nn.Module) -> None:
    """Save a `Dense` of sentence-transformers with only those configuration keys that older versions accept."""
    folder.mkdir(exist_ok=True)
    layer.save(str(folder))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = ("in_features", "out_features", "bias", "activation_function")
    residual = {"use_residual": True} if config.get("use_residual") else {}  # older versions cannot compute it anyway
    _write_json(folder / "config.json", {key: config[key] for key in kept} | residual)


def append_layers(folder: str | Path, layers: Sequence[Dense]) -> None:
    """Append dense layers to the modules of the checkpoint in `folder`.

    Afterwards `modules.json` alone defines the embedding: `mirror_config.json`, which lists no further modules, is renamed to
    `training_settings.json`. An `InputError`: `modules.json` cannot express its pooling.
    """
    folder = Path(folder)
    if not layers:
        return
    check_pooling(folder)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    for index, layer in enumerate(layers, start=len(modules)):
        save_dense(folder / f"{index}_Dense", layer)
        modules.append(_entry(index, f"{index}_Dense", "Dense"))
    atomic_write_text(folder / "modules.json", json.dumps(modules, indent=2) + "\n")
    if (folder / MIRROR_CONFIG).exists():
        (folder / MIRROR_CONFIG).replace(folder / "training_settings.json")
    follow_umask(folder)


def check_pooling(folder: Path) -> None:
    """Raise an `InputError` if `modules.json` cannot express the pooling of a checkpoint."""
    note = folder / MIRROR_CONFIG
    pooling = json.loads(note.read_text(encoding="utf-8"))["pooling"] if note.exists() else None
    if pooling in NOT_EXPORTABLE:
        raise InputError(f"{folder}: pooling '{pooling}' cannot be followed by a layer; retrain with mean or cls")


def _entry(index: int, path: str, kind: str) -> dict:
    return {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}


def _write_json(path: Path, content: dict | list) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

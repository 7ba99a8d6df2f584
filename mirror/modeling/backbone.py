"""Loading a pretrained encoder and its tokenizer, and its limits."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from tokenizers import normalizers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_FAMILIES
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED_FAMILIES
from transformers.utils import logging as transformers_logging

from mirror.common import loading_policy
from mirror.common.errors import InputError, library_errors
from mirror.modeling.module_list import backbone_subfolder, read_json


TRANSFORMER_SETTINGS = "sentence_bert_config.json"
MINIMUM_VOCABULARY = 0.5  # tokens per embedding; embeddings are often padded to a round number
MAXIMUM_UNKNOWN = 0.5  # share of unknown tokens
SPARE = "_spare_pooler"  # attribute of a model


def load_backbone(
    name_or_path: str, pooling: str, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Encoder and tokenizer; a pooler that `pooling` does not use is set aside for `save_encoder`.

    Raises:
        InputError: not found, not a model, not a bidirectional encoder, or not to be trusted (`mirror.common.loading_policy`).
    """
    check_name(name_or_path)
    with loading(name_or_path):
        subfolder = backbone_subfolder(name_or_path)
        config = load_config(name_or_path, subfolder)
        tokenizer = load_tokenizer(name_or_path, config, subfolder)
        loading_policy.check_weights(name_or_path, subfolder)
        check_size(name_or_path, config, subfolder)
        model, has_pooler = _load_weights(name_or_path, subfolder, config=config, dtype=dtype)
    if pooling == "pooler":
        if not has_pooler:
            raise InputError(f"{name_or_path} ({config.model_type}) has no pooler; use --pooling cls or mean")
    elif _can_go_without_pooler(model):
        _set_pooler_aside(model, has_pooler)
    return model, tokenizer


def load_tokenizer(
    name_or_path: str, config: PretrainedConfig, subfolder: str | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; its `backbone_subfolder` is looked up where it is not given, here and below.

    Raises:
        InputError: its files are missing, where transformers would make one of five tokens, or it is another model's.
    """
    with loading(name_or_path):
        subfolder = backbone_subfolder(name_or_path) if subfolder is None else subfolder
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, subfolder=subfolder, **loading_policy.remote_code())
        lowercase_as_told(tokenizer, name_or_path, subfolder)
    check_vocabulary(tokenizer, config, name_or_path)
    return tokenizer


def lowercase_as_told(tokenizer: PreTrainedTokenizerBase, name_or_path: str, subfolder: str) -> None:
    """Lowercase every text, if the sentence-transformers checkpoint of the tokenizer says so, as that library does.

    A tokenizer's own files cannot say it: transformers builds the normalizer of most from their class.
    """
    settings = read_json(name_or_path, f"{subfolder}/{TRANSFORMER_SETTINGS}".lstrip("/"), dict) or {}
    if not settings.get("do_lower_case") or lowercases_first(tokenizer):
        return
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        own = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    else:
        tokenizer.do_lower_case = True


def lowercases_first(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer lowercases a text before anything else, so that a saved checkpoint has to say so."""
    if not tokenizer.is_fast:
        return bool(getattr(tokenizer, "do_lower_case", False))
    normalizer = json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"] or {}
    return [step["type"] for step in normalizer.get("normalizers", ())][:1] == ["Lowercase"]


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, name_or_path: str) -> None:
    """
    Raises:
        InputError: the vocabulary does not fit the embeddings of the model.
    """
    rows = getattr(config, "vocab_size", None) or len(tokenizer)
    beyond = max(tokenizer.get_vocab().values(), default=0) >= rows
    if beyond or not MINIMUM_VOCABULARY * rows <= len(tokenizer) <= rows:
        raise InputError(
            f"{name_or_path}: the tokenizer has {len(tokenizer):,} tokens, but the model has embeddings for {rows:,}; its files "
            "(such as tokenizer.json or vocab.txt) are missing, or belong to another model"
        )


def unknown_share(ids: Iterable[list[int]], tokenizer: PreTrainedTokenizerBase) -> float:
    """Share of unknown tokens among token ids, special tokens included; 0 for a tokenizer that knows every text."""
    if tokenizer.unk_token_id is None:
        return 0.0
    unknown = total = 0
    for row in ids:
        unknown += row.count(tokenizer.unk_token_id)
        total += len(row)
    return unknown / max(1, total)


def check_texts_are_known(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Raises:
        InputError: most tokens of `texts` are unknown to the tokenizer.
    """
    encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)
    if (share := unknown_share(encoded["input_ids"], tokenizer)) > MAXIMUM_UNKNOWN:
        raise InputError(
            f"{share:.0%} of the tokens of these texts are unknown to the tokenizer of {tokenizer.name_or_path}, so there is "
            "nothing to learn from; choose a model for this language or domain, or go on with --force"
        )


def load_config(name_or_path: str, subfolder: str | None = None) -> PretrainedConfig:
    """The configuration of a bidirectional encoder.

    Raises:
        InputError: not found, not a model, or a decoder.
    """
    check_name(name_or_path)
    with loading(name_or_path):
        subfolder = backbone_subfolder(name_or_path) if subfolder is None else subfolder
        config = AutoConfig.from_pretrained(name_or_path, subfolder=subfolder, **loading_policy.remote_code())
    _refuse_decoder(name_or_path, config)
    return config


def check_name(name_or_path: str) -> None:
    """
    Raises:
        InputError: neither a folder with a model in it nor a Hub id.
    """
    if Path(name_or_path).is_dir():
        if not any((Path(name_or_path) / name).exists() for name in ("config.json", "modules.json")):
            raise InputError(f"{name_or_path}: no config.json in this folder; give a model folder or a Hub id")
        return
    try:
        validate_repo_id(name_or_path)
    except HFValidationError as error:
        raise InputError(
            f"cannot load model '{name_or_path}': there is no such folder, and it is not a Hub id"
        ) from error


@contextmanager
def loading(name_or_path: str) -> Iterator[None]:
    """Context in which an error of the libraries becomes one line that names the model."""
    with library_errors(f"cannot load model '{name_or_path}'"):
        try:
            yield
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise InputError(
                f"cannot load model '{name_or_path}': the sizes in its config.json are not those of its weights"
            ) from error


def check_size(name_or_path: str, config: PretrainedConfig, subfolder: str | None = None) -> None:
    """Refuse a configuration of more weights than are stored, before transformers allocates them all.

    Raises:
        InputError: the file has less than one bit for each weight.
    """
    subfolder = backbone_subfolder(name_or_path) if subfolder is None else subfolder
    stored = loading_policy.weights_bytes(name_or_path, subfolder)
    if stored is None:
        return
    layers, width = (getattr(config, name, None) or 0 for name in ("num_hidden_layers", "hidden_size"))
    needed = layers * width**2  # at least; or building very many layers would take minutes
    if needed <= 8 * stored:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = AutoModel.from_config(config, **loading_policy.remote_code())
        needed = sum(weight.numel() for weight in model.parameters())
    if needed > 8 * stored:
        raise InputError(
            f"cannot load model '{name_or_path}': its config.json asks for {layers:,} layers and {needed:,} weights or more, but "
            f"what is stored has {stored:,} bytes"
        )


def keep_pooler(model: PreTrainedModel, name_or_path: str, from_scratch: bool = False) -> None:
    """Set the pooler of a checkpoint aside for `save_encoder`, for an encoder that was loaded without it in a masked LM."""
    if from_scratch:
        with torch.random.fork_rng(devices=[]):
            whole, has_pooler = AutoModel.from_config(model.config, **loading_policy.remote_code()), False
    else:
        with loading(name_or_path):
            subfolder = backbone_subfolder(name_or_path)
            whole, has_pooler = _load_weights(name_or_path, subfolder, config=model.config, dtype=torch.float32)
    if _can_go_without_pooler(whole):
        _set_pooler_aside(whole, has_pooler)
        setattr(model, SPARE, getattr(whole, SPARE))


def spare_pooler(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights of a pooler that `load_backbone` set aside, by their names in a checkpoint."""
    return {
        f"pooler.{key}": value for pooler in getattr(model, SPARE, ()) for key, value in pooler.state_dict().items()
    }


def _can_go_without_pooler(model: PreTrainedModel) -> bool:
    accepts = "add_pooling_layer" in inspect.signature(type(model).__init__).parameters
    return accepts and isinstance(getattr(model, "pooler", None), nn.Module)


@torch.no_grad()
def _set_pooler_aside(model: PreTrainedModel, is_trained: bool) -> None:
    """Take the pooler out of the forward pass and of training, and keep it for the checkpoint.

    Readers that expect a pooler warn of random weights where a checkpoint has none. So the one of the base model is saved
    again; a base model without one gets the identity, for which `pooler_output` is tanh of the first token's vector.
    """
    pooler, model.pooler = model.pooler, None
    for layer in () if is_trained else (module for module in pooler.modules() if isinstance(module, nn.Linear)):
        layer.weight.copy_(torch.eye(*layer.weight.shape))
        layer.bias.zero_()
    setattr(model, SPARE, [pooler])  # in a list, so that it is not a module of the model


def _load_weights(name_or_path: str, subfolder: str, **options) -> tuple[PreTrainedModel, bool]:
    """`from_pretrained` without its table of unused head weights, and whether the checkpoint has a pooler.

    Raises:
        InputError: a weight other than the pooler's is missing.
    """
    with quiet(), torch.random.fork_rng(devices=[]):  # a pooler that is missing is drawn at random
        model, report = AutoModel.from_pretrained(
            name_or_path,
            subfolder=subfolder,
            output_loading_info=True,
            **loading_policy.weights(),
            **options,
        )
    lacks_pooler = any(key.startswith("pooler.") for key in report["missing_keys"])
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
        raise InputError(
            f"{name_or_path} lacks {len(missing)} weights of a {type(model).__name__}, first {missing[0]}"
        )
    return model, getattr(model, "pooler", None) is not None and not lacks_pooler


@contextmanager
def quiet() -> Iterator[None]:
    """Context without progress bars and tables of the libraries."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def check_length(model: PreTrainedModel, max_seq_length: int) -> None:
    """Refuse rows that are longer than the position embeddings allow.

    Raises:
        InputError
    """
    if max_seq_length > position_limit(model):
        raise InputError(
            f"--max_seq_length {max_seq_length} is more than the {position_limit(model)} positions of the model"
        )


def position_limit(model: PreTrainedModel) -> int:
    """Longest row, in tokens, that the position embeddings allow (in RoBERTa they start after the padding index)."""
    limit = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    embedding = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding_idx = getattr(embedding, "padding_idx", None)
    return limit if padding_idx is None else limit - padding_idx - 1


def _refuse_decoder(name_or_path: str, config: PretrainedConfig) -> None:
    only_causal = config.model_type in CAUSAL_FAMILIES and config.model_type not in MASKED_FAMILIES
    if config.is_encoder_decoder or only_causal:
        raise InputError(
            f"{name_or_path} ({config.model_type}) is not a bidirectional encoder; "
            "give a masked LM such as bert-base-uncased"
        )

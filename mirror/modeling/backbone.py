"""Load the weights and the tokenizer of a pretrained encoder, and check its limits."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable

import torch
from tokenizers import normalizers
from torch import nn
from transformers import AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from mirror.common import trust
from mirror.common.errors import InputError
from mirror.modeling.read_checkpoint import (
    backbone_subfolder,
    check_name,
    check_size,
    is_decoder,
    load_config,
    loading,
    quiet,
    read_json,
)
from mirror.modeling.static import StaticConfig, load_static


TRANSFORMER_SETTINGS = "sentence_bert_config.json"
MAXIMUM_UNKNOWN = 0.5  # share of unknown tokens
SPARE = "_spare_pooler"  # attribute of a model


def load_backbone(
    name_or_path: str, pooling: str, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load encoder and tokenizer. A pooler that `pooling` does not use is set aside for `save_encoder`.

    Raises an `InputError` if it is not found, no encoder can be made of it, or it is not to be trusted (`mirror.common.trust`).
    """
    check_name(name_or_path)
    with loading(name_or_path):
        subfolder = backbone_subfolder(name_or_path)
        config = load_config(name_or_path, subfolder)
        if isinstance(config, StaticConfig):
            if pooling != "mean":
                reason = f"{name_or_path} is a static encoder, whose vectors are means"
                raise InputError(f"--pooling {pooling}: {reason}; use mean")
            trust.check_weights(name_or_path, subfolder)
            trust.check_normalizer(name_or_path, read_json(name_or_path, "tokenizer.json", dict, subfolder))
            model, tokenizer = load_static(name_or_path, subfolder, dtype)
            pad_right(tokenizer)
            check_vocabulary(tokenizer, model.config, name_or_path)
            return model, tokenizer
        tokenizer = load_tokenizer(name_or_path, config, subfolder)
        trust.check_weights(name_or_path, subfolder)
        check_size(name_or_path, config, subfolder)
        model, has_pooler = _load_weights(name_or_path, subfolder, config=config, dtype=dtype)
    if is_decoder(config):
        model.config.use_cache = False  # keys and values for a next token, which an encoder never has
    if pooling == "pooler":
        if not has_pooler:
            raise InputError(f"{name_or_path} ({config.model_type}) has no pooler; use --pooling cls or mean")
    else:
        _set_pooler_aside(model, has_pooler)
    return model, tokenizer


def load_tokenizer(
    name_or_path: str, config: PretrainedConfig, subfolder: str | None = None
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model. That of a decoder without a padding token pads with the end of a text.

    Raises an `InputError` if its files are missing or belong to another model.
    """
    with loading(name_or_path):
        subfolder = backbone_subfolder(name_or_path) if subfolder is None else subfolder
        trust.check_normalizer(name_or_path, read_json(name_or_path, "tokenizer.json", dict, subfolder))
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, subfolder=subfolder, **trust.remote_code())
        # A sentence-transformers checkpoint may ask for lower case, which the tokenizer's own files cannot:
        # transformers builds the normalizer of most tokenizers from their class.
        settings = read_json(name_or_path, TRANSFORMER_SETTINGS, dict, subfolder)
        if settings.get("do_lower_case") and not lowercases_first(tokenizer):
            if tokenizer.is_fast:
                backend = tokenizer.backend_tokenizer
                own = [] if backend.normalizer is None else [backend.normalizer]
                backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
            else:
                tokenizer.do_lower_case = True
    if is_decoder(config) and tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # which one changes nothing: no token of a text attends to it
    pad_right(tokenizer)
    check_vocabulary(tokenizer, config, name_or_path)
    return tokenizer


def pad_right(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer pad on the right, here and where it is saved again."""
    # Padding on the left shifts the positions of BERT in every library, so the vector of a text would depend on its batch.
    tokenizer.padding_side = "right"
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_padding()  # tokenizer.json has a side of its own


def tokenizer_of(name_or_path: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model alone, as `load_tokenizer`."""
    return load_tokenizer(name_or_path, load_config(name_or_path, backbone_subfolder(name_or_path)))


def lowercases_first(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer lowercases a text before anything else. A saved checkpoint then has to say so."""
    if not tokenizer.is_fast:
        return bool(getattr(tokenizer, "do_lower_case", False))
    normalizer = json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"] or {}
    return [step["type"] for step in normalizer.get("normalizers", ())][:1] == ["Lowercase"]


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, name_or_path: str) -> None:
    """Raise an `InputError` if there is no padding token, or the vocabulary does not fit the embeddings."""
    # Without any files transformers makes a tokenizer of five tokens, for which every word is unknown.
    rows = getattr(config, "vocab_size", None) or len(tokenizer)
    # The tokenizers of Gemma's text models have a token of pictures for which there is no embedding.
    added = tokenizer.added_tokens_decoder if is_decoder(config) else {}
    beyond = [token for token, index in tokenizer.get_vocab().items() if index >= rows and index not in added]
    if beyond or not rows / 2 <= len(tokenizer) <= rows + len(added):  # embeddings are often padded to a round number
        what = f"the tokenizer has {len(tokenizer):,} tokens, but the model has embeddings for {rows:,}"
        files = "its files (such as tokenizer.json or vocab.txt) are missing, or belong to another model"
        raise InputError(f"{name_or_path}: {what}; {files}")
    if tokenizer.pad_token_id is None:
        fix = 'add "pad_token" to its tokenizer_config.json, such as "[PAD]", with a token of its vocabulary'
        raise InputError(f"{name_or_path}: the tokenizer has no padding token, which batches need; {fix}")


def unknown_share(ids: Iterable[list[int]], tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the share of unknown tokens among token ids, special tokens included."""
    unknown_id = tokenizer.unk_token_id  # None is in no row
    counts = [(row.count(unknown_id), len(row)) for row in ids]
    return sum(unknown for unknown, _ in counts) / max(1, sum(total for _, total in counts))


def check_texts_are_known(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise an `InputError` if most tokens of `texts` are unknown to the tokenizer."""
    encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)
    if (share := unknown_share(encoded["input_ids"], tokenizer)) > MAXIMUM_UNKNOWN:
        raise InputError(
            f"{share:.0%} of the tokens of these texts are unknown to the tokenizer of {tokenizer.name_or_path}, so there is "
            "nothing to learn from; choose a model for this language or domain, or go on with --force"
        )


def keep_pooler(model: PreTrainedModel, name_or_path: str, from_scratch: bool = False) -> None:
    """Set the pooler of a checkpoint aside for `save_encoder`, for an encoder that a masked LM loaded without it."""
    if from_scratch:
        with torch.random.fork_rng(devices=[]):
            whole, has_pooler = AutoModel.from_config(model.config, **trust.remote_code()), False
    else:
        with loading(name_or_path):
            subfolder = backbone_subfolder(name_or_path)
            whole, has_pooler = _load_weights(name_or_path, subfolder, config=model.config, dtype=torch.float32)
    _set_pooler_aside(whole, has_pooler)
    setattr(model, SPARE, getattr(whole, SPARE, []))


def spare_pooler(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights of a pooler that `load_backbone` set aside, by their names in a checkpoint."""
    poolers = getattr(model, SPARE, ())
    return {f"pooler.{key}": value for pooler in poolers for key, value in pooler.state_dict().items()}


@torch.no_grad()
def _set_pooler_aside(model: PreTrainedModel, is_trained: bool) -> None:
    """Take the pooler, if the model can go without one, out of the forward pass. Keep it for the checkpoint."""
    pooler = getattr(model, "pooler", None)
    can_go = "add_pooling_layer" in inspect.signature(type(model).__init__).parameters
    if not (can_go and isinstance(pooler, nn.Module)):
        return
    model.pooler = None
    # Libraries that expect a pooler warn about random weights if a checkpoint has none. So the pooler of the base model is saved
    # again. A base model without one gets the identity, for which `pooler_output` is tanh of the first token's vector.
    for layer in () if is_trained else (module for module in pooler.modules() if isinstance(module, nn.Linear)):
        layer.weight.copy_(torch.eye(*layer.weight.shape))
        layer.bias.zero_()
    setattr(model, SPARE, [pooler])  # in a list, so that it is not a module of the model


def _load_weights(name_or_path: str, subfolder: str, **options) -> tuple[PreTrainedModel, bool]:
    """Load a model without the table of unused head weights. Also return whether the checkpoint has a pooler."""
    options |= {"subfolder": subfolder, "output_loading_info": True, **trust.weights()}
    with quiet(), torch.random.fork_rng(devices=[]):  # a missing pooler is drawn at random
        model, report = AutoModel.from_pretrained(name_or_path, **options)
    lacks_pooler = any(key.startswith("pooler.") for key in report["missing_keys"])
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
        name = type(model).__name__
        raise InputError(f"{name_or_path} lacks {len(missing)} weights of a {name}, first {missing[0]}")
    return model, getattr(model, "pooler", None) is not None and not lacks_pooler


def check_length(model: PreTrainedModel, max_seq_length: int) -> None:
    """Raise an `InputError` if rows are longer than the position embeddings allow."""
    if max_seq_length > (limit := position_limit(model)):
        raise InputError(f"--max_seq_length {max_seq_length} is more than the {limit} positions of the model")


def first_position(model: PreTrainedModel) -> int:
    """Return the position id of a text's first token: 0, or after the padding index in RoBERTa's family."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.padding_idx + 1
    return 0


def position_limit(model: PreTrainedModel) -> int:
    """Return the length of the longest row, in tokens, that the position embeddings allow."""
    return (getattr(model.config, "max_position_embeddings", None) or 1 << 30) - first_position(model)

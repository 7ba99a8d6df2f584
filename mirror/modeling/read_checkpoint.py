"""Read what a checkpoint says about itself: configuration, modules, pooling, length and prompts. Reads no weights of the backbone.

Whatever is wrong with a folder of somebody else becomes one line that names it, before anything large is allocated.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoConfig, AutoModel, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_FAMILIES
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED_FAMILIES
from transformers.utils import logging as transformers_logging

from mirror.common import trust
from mirror.common.errors import INSTEAD, InputError, hub_failure, library_errors
from mirror.modeling.pooling import POOLING_MODES
from mirror.modeling.static import UNLIMITED, StaticConfig


logger = logging.getLogger(__name__)

MIRROR_CONFIG = "mirror_config.json"  # the file that this project adds to a checkpoint
FIRST_MODULES = ("Transformer", "Pooling")
STATIC = "StaticEmbedding"  # the first module of an encoder that has no others before `LATER_MODULES`
ROLES = ("query", "document")  # prompts that sentence-transformers chooses by itself
LATER_MODULES = ("Dense", "LayerNorm", "Normalize", "Dropout")  # modules that turn one vector into another


def checkpoint_settings(name_or_path: str) -> dict:
    """Return what a checkpoint says about its embeddings. Empty for a plain language model.

    The keys, if stated: pooling, include_prompt, max_seq_length, head (modules after the pooling), prompts, default_prompt_name,
    role_prompts, truncate_dim, similarity_fn_name. Raises an `InputError` if the checkpoint is damaged or cannot be used.
    """
    check_name(name_or_path)
    with loading(name_or_path):
        settings = read_json(name_or_path, MIRROR_CONFIG, dict)
        if not settings or settings.get("has_head"):
            if modules := modules_of(name_or_path):
                settings = _sentence_transformers_settings(name_or_path, modules) | settings
            elif read_json(name_or_path, "config.json", dict).get("model_type") == "model2vec":
                raise InputError(
                    f"{name_or_path}: a model2vec folder without modules.json; save it again with model2vec"
                )
        prompts = settings.get("prompts") or {}
        if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
            raise ValueError(f"prompts {prompts!r} are not texts by name")
        if settings:
            # As sentence-transformers: a role without a prompt has none, not even the default prompt.
            settings["role_prompts"] = {role: prompts.get(role, "") for role in ROLES}
        if settings.get("pooling") not in (None, *POOLING_MODES):
            raise ValueError(f"pooling {settings['pooling']!r} is not one of {', '.join(POOLING_MODES)}")
        if not isinstance(settings.get("default_prompt_name"), str | None):
            raise ValueError(f"default_prompt_name {settings['default_prompt_name']!r} is not a name")
        for name in ("max_seq_length", "truncate_dim"):
            value = settings.get(name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} {value!r} is not a positive whole number")
    return settings


def warn_of_similarity(name_or_path: str, known: dict) -> None:
    """Log that a checkpoint names another similarity than the cosine. `known` are its `checkpoint_settings`."""
    if (similarity := known.get("similarity_fn_name") or "cosine") != "cosine":
        consequence = "checkpoints trained from it keep the name, but scores here are cosines"
        logger.warning("%s names the similarity '%s': %s", name_or_path, similarity, consequence)


def choose_prompt(name_or_path: str, known: dict, prompt: str | None, prompt_name: str | None) -> str:
    """Return the text before every text: the given one, the one of this name, or the checkpoint's default.

    `known` are its `checkpoint_settings`. Raises an `InputError` if there is no prompt of that name.
    """
    prompts = known.get("prompts") or {}
    name = prompt_name or known.get("default_prompt_name")
    if prompt is None and name is not None:
        if name not in prompts:
            # Versions of the library differ in which empty prompts they add.
            written = ", ".join(key for key, text in prompts.items() if text)
            has = f"{name_or_path} has no prompt '{name}'; it has {written or 'none'}"
            raise InputError(f"{has}; or give one with --prompt")
        prompt = prompts[name]
    return prompt or ""


def is_static(name_or_path: str) -> bool:
    """Return whether a checkpoint is a static encoder, of sentence-transformers or of model2vec."""
    modules = modules_of(name_or_path)
    return bool(modules) and modules[0]["type"].endswith(f".{STATIC}")


def _sentence_transformers_settings(name_or_path: str, modules: list[dict]) -> dict:
    """Let sentence-transformers read pooling, length and later modules of its own checkpoint."""
    from sentence_transformers import SentenceTransformer

    static = is_static(name_or_path)
    if not static:
        check_size(name_or_path, load_config(name_or_path))
    for module in modules:
        folder = check_inside(name_or_path, module["path"])
        trust.check_weights(name_or_path, folder)
        config = read_json(name_or_path, "config.json", dict, folder) if folder else {}
        # As `check_size`, for a Dense and a LayerNorm.
        sizes = [config[name] for name in ("in_features", "out_features", "dimension") if name in config]
        stored = trust.weights_bytes(name_or_path, folder) or 0
        if all(type(size) is int for size in sizes) and (sizes and math.prod(sizes) > 8 * stored):
            shape = " x ".join(f"{size:,}" for size in sizes)
            asked = f"{name_or_path}: {folder}/config.json asks for a layer of {shape} weights"
            raise InputError(f"{asked}, but what is stored has {stored:,} bytes")
    with quiet():
        loaded = SentenceTransformer(name_or_path, device="cpu", **trust.remote_code(), model_kwargs=trust.weights())
    stated = {name: getattr(loaded, name) for name in ("max_seq_length", "prompts", "default_prompt_name")}
    stated |= {"truncate_dim": getattr(loaded, "truncate_dim", None)}
    stated["similarity_fn_name"] = str(getattr(loaded.similarity_fn_name, "value", loaded.similarity_fn_name))
    if static:
        return stated | {"pooling": "mean", "max_seq_length": UNLIMITED, "head": list(loaded)[1:]}
    mode = {"lasttoken": "last"}.get(loaded[1].pooling_mode, loaded[1].pooling_mode)
    if mode not in POOLING_MODES:
        known = ", ".join(POOLING_MODES)
        raise InputError(f"{name_or_path}: its pooling {mode!r} is not one that can be used: {known}")
    included = getattr(loaded[1], "include_prompt", True)
    return stated | {"pooling": mode, "include_prompt": included, "head": list(loaded)[2:]}


def modules_of(name_or_path: str) -> list[dict]:
    """Return the content of `modules.json`, or an empty list if there is none.

    Raises an `InputError` if it is damaged, or names a module that this project can neither use nor train through.
    """
    modules = read_json(name_or_path, "modules.json", list)
    for number, module in enumerate(modules):
        library, _, kind = module["type"].rpartition(".")
        first = (STATIC,) if modules[0]["type"].endswith(f".{STATIC}") else FIRST_MODULES
        known = first[number : number + 1] or LATER_MODULES
        is_custom = not f"{library}.".startswith("sentence_transformers.")
        if is_custom and number >= len(first) and trust.remote_code()["trust_remote_code"]:
            continue
        if is_custom or kind not in known:
            what = f"{name_or_path}: its module {number + 1}, {module['type']}"
            usable = f"{', '.join(FIRST_MODULES)} or {STATIC}, and then {', '.join(LATER_MODULES)}"
            can = f"can be neither used nor trained through; what can is {usable} of sentence-transformers"
            raise InputError(f"{what}, {can}")
    return modules


def backbone_subfolder(name_or_path: str) -> str:
    """Return the folder of the backbone inside a checkpoint: "" or, in older ones, such as `0_Transformer`."""
    modules = modules_of(name_or_path)
    path = check_inside(name_or_path, modules[0]["path"]) if modules else ""
    return "" if path == "." else path


def check_inside(name_or_path: str, path: str) -> str:
    """Return the path of a module. Raise an `InputError` if it is outside the checkpoint."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise InputError(f"{name_or_path}: modules.json names '{path}', which is outside the checkpoint")
    return path


def read_json(name_or_path: str, filename: str, kind: type, subfolder: str = "") -> dict | list:
    """Return the content of a JSON file of a model, empty without one. Raise an `InputError` if it holds no `kind`."""
    filename = f"{subfolder}/{filename}".lstrip("/")
    path = trust.model_file(name_or_path, filename)
    if path is None:
        return kind()
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{name_or_path}: {filename} is not valid JSON ({error})") from error
    if not isinstance(content, kind):
        raise InputError(f"{name_or_path}: {filename} holds a {type(content).__name__}, expected a {kind.__name__}")
    return content


def load_config(name_or_path: str, subfolder: str | None = None, masked: bool = False) -> PretrainedConfig:
    """Return the configuration of a language model. Raise an `InputError` if no encoder can be made of it.

    `masked`: only of a masked LM, not of a decoder.
    """
    check_name(name_or_path)
    with loading(name_or_path):
        subfolder = backbone_subfolder(name_or_path) if subfolder is None else subfolder
        if is_static(name_or_path) and not masked:
            return StaticConfig()
        trust.check_counts(name_or_path, read_json(name_or_path, "config.json", dict, subfolder))
        config = AutoConfig.from_pretrained(name_or_path, subfolder=subfolder, **trust.remote_code())
    if config.is_encoder_decoder or (masked and is_decoder(config)):
        reason = f"{name_or_path} ({config.model_type}) is not a bidirectional encoder"
        raise InputError(f"{reason}; give a masked LM such as bert-base-uncased")
    kind = AutoModel._model_mapping[type(config)] if type(config) in AutoModel._model_mapping else None
    # Of text only, with attention that goes through transformers' interface.
    attends = kind and hasattr(config, "hidden_size") and kind._supports_attention_backend
    if is_decoder(config) and (not attends or getattr(kind, "_is_stateful", False)):
        reason = f"{name_or_path} ({config.model_type}) is not a decoder of text with attention that can be pooled"
        raise InputError(f"{reason}; give one such as Qwen3, Llama, Mistral or Gemma, or a masked LM")
    tasks = ("Classification", "QuestionAnswering", "MultipleChoice")  # ends of names of architectures
    heads = [name for name in config.architectures or () if name.endswith(tasks)]
    if heads and not subfolder and not modules_of(name_or_path):
        consequence = "its head is not used, and its vectors were trained for another task"
        logger.warning("%s is a %s, such as a cross-encoder: %s", name_or_path, heads[0], consequence)
    return config


def is_decoder(config: PretrainedConfig) -> bool:
    """Return whether this is the configuration of a decoder, such as Qwen3, whose attention may be causal or not."""
    return config.model_type in CAUSAL_FAMILIES and config.model_type not in MASKED_FAMILIES


def is_causal(config: PretrainedConfig) -> bool:
    """Return whether a token of this model sees only those before it."""
    # The two names under which transformers makes a decoder bidirectional, the second only Gemma's.
    causal = getattr(config, "is_causal", True) and not getattr(config, "use_bidirectional_attention", None)
    return is_decoder(config) and causal


def check_direction(config: PretrainedConfig, pooling: str, name_or_path: str) -> None:
    """Raise an `InputError` if the pooling takes the first token of a causal model, which sees no other token."""
    if pooling == "cls" and is_causal(config):
        reason = f"--pooling cls: {name_or_path} ({config.model_type}) is causal, so its first token sees no other"
        raise InputError(f"{reason}; use last or mean")


def check_name(name_or_path: str) -> None:
    """Raise an `InputError` if this is neither a folder with a model in it nor a Hub id."""
    if Path(name_or_path).is_dir():
        if not any((Path(name_or_path) / name).exists() for name in ("config.json", "modules.json")):
            raise InputError(f"{name_or_path}: no config.json in this folder; give a model folder or a Hub id")
        return
    if Path(name_or_path).is_file():
        raise InputError(f"cannot load model '{name_or_path}': it is a file; give a model folder or a Hub id")
    try:
        validate_repo_id(name_or_path)
    except HFValidationError as error:
        message = f"cannot load model '{name_or_path}': there is no such folder, and it is not a Hub id"
        raise InputError(message) from error
    if failure := hub_failure():
        if not any(trust.model_file(name_or_path, name) for name in ("config.json", "modules.json")):
            raise InputError(f"cannot load model '{name_or_path}': it is not cached, and {failure}; {INSTEAD}")


def check_size(name_or_path: str, config: PretrainedConfig, subfolder: str | None = None) -> None:
    """Refuse a configuration of more weights than the stored bits, before transformers allocates them."""
    subfolder = backbone_subfolder(name_or_path) if subfolder is None else subfolder
    stored = trust.weights_bytes(name_or_path, subfolder)
    if stored is None:
        return
    layers, width = (getattr(config, name, None) or 0 for name in ("num_hidden_layers", "hidden_size"))
    needed = layers * width**2  # a lower bound, because building very many layers would take minutes
    if needed <= 8 * stored:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = AutoModel.from_config(config, **trust.remote_code())
        needed = sum(weight.numel() for weight in model.parameters())
    if needed > 8 * stored:
        asked = f"its config.json asks for {layers:,} layers and {needed:,} weights or more"
        raise InputError(f"cannot load model '{name_or_path}': {asked}, but what is stored has {stored:,} bytes")


@contextmanager
def loading(name_or_path: str) -> Iterator[None]:
    """Turn errors of the libraries into one line that names the model."""
    what = f"cannot load model '{name_or_path}'"
    with library_errors(what):
        try:
            yield
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise InputError(f"{what}: the sizes in its config.json are not those of its weights") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and tables of the libraries."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()

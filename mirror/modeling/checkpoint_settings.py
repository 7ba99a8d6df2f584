"""What a checkpoint says about its embeddings: pooling, length, later modules, prompts."""

from __future__ import annotations

from mirror.common import loading_policy
from mirror.common.errors import InputError
from mirror.modeling.backbone import check_name, check_size, load_config, loading, quiet
from mirror.modeling.module_list import check_inside, modules_of, read_json
from mirror.modeling.pooling import POOLING_MODES


MIRROR_CONFIG = "mirror_config.json"  # what this project adds to a checkpoint


def checkpoint_settings(name_or_path: str) -> dict:
    """What a checkpoint says about its embeddings; empty for an LM.

    That is pooling, max_seq_length, head (later modules), prompts, default_prompt_name, truncate_dim: those that it has.

    Raises:
        InputError: it is damaged, or not a checkpoint that can be read.
    """
    check_name(name_or_path)
    with loading(name_or_path):
        settings = read_json(name_or_path, MIRROR_CONFIG, dict) or {}
        if not settings or settings.get("has_head"):
            modules = modules_of(name_or_path)
            settings = (_sentence_transformers_settings(name_or_path, modules) if modules else {}) | settings
        _check_settings(settings)
    return settings


def choose_prompt(name_or_path: str, known: dict, prompt: str | None, prompt_name: str | None) -> str:
    """The text before every text: as given, by its name in the checkpoint, or the checkpoint's default.

    Raises:
        InputError: no prompt of that name, or a checkpoint that leaves the prompt out of its pooling.
    """
    prompts = known.get("prompts") or {}
    name = prompt_name or known.get("default_prompt_name")
    if prompt is None and name is not None:
        if name not in prompts:
            # Versions of the library differ in which empty prompts they make up.
            written = ", ".join(key for key, text in prompts.items() if text)
            raise InputError(
                f"{name_or_path} has no prompt '{name}'; it has {written or 'none'}; or give one with --prompt"
            )
        prompt = prompts[name]
    if prompt and not known.get("include_prompt", True):
        raise InputError(
            f"{name_or_path} leaves the prompt out of its pooling, which is not supported; use --prompt ''"
        )
    return prompt or ""


def _check_settings(settings: dict) -> None:
    """
    Raises:
        ValueError: a value of another type than a checkpoint has.
    """
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ValueError(f"prompts {prompts!r} are not texts by name")
    if settings.get("pooling") not in (None, *POOLING_MODES):
        raise ValueError(f"pooling {settings['pooling']!r} is not one of {', '.join(POOLING_MODES)}")
    if not isinstance(settings.get("default_prompt_name"), str | None):
        raise ValueError(f"default_prompt_name {settings['default_prompt_name']!r} is not a name")
    for name in ("max_seq_length", "truncate_dim"):
        value = settings.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{name} {value!r} is not a positive whole number")


def _sentence_transformers_settings(name_or_path: str, modules: list[dict]) -> dict:
    """Pooling, length and later modules of a sentence-transformers checkpoint, read by that library itself."""
    from sentence_transformers import SentenceTransformer

    check_size(name_or_path, load_config(name_or_path))
    for module in modules:
        loading_policy.check_weights(name_or_path, check_inside(name_or_path, module["path"]))
        _check_layer_size(name_or_path, module["path"])
    with quiet():
        loaded = SentenceTransformer(
            name_or_path, device="cpu", **loading_policy.remote_code(), model_kwargs=loading_policy.weights()
        )
    mode = loaded[1].pooling_mode
    if mode not in POOLING_MODES:
        raise InputError(
            f"{name_or_path}: its pooling {mode!r} is not one that can be used: {', '.join(POOLING_MODES)}"
        )
    return {
        "pooling": mode,
        "max_seq_length": loaded.max_seq_length,
        "head": list(loaded)[2:],
        "prompts": loaded.prompts,
        "default_prompt_name": loaded.default_prompt_name,
        "include_prompt": getattr(loaded[1], "include_prompt", True),
        "truncate_dim": getattr(loaded, "truncate_dim", None),
    }


def _check_layer_size(name_or_path: str, folder: str) -> None:
    """`mirror.modeling.backbone.check_size` for a dense layer of sentence-transformers.

    Raises:
        InputError
    """
    config = read_json(name_or_path, f"{folder}/config.json", dict) or {} if folder else {}
    sizes = [config.get(name) for name in ("in_features", "out_features")]
    stored = loading_policy.weights_bytes(name_or_path, folder)
    if stored is not None and all(type(size) is int for size in sizes) and sizes[0] * sizes[1] > 8 * stored:
        raise InputError(
            f"{name_or_path}: {folder}/config.json asks for a layer of {sizes[0]:,} x {sizes[1]:,} weights, but what is stored "
            f"has {stored:,} bytes"
        )
